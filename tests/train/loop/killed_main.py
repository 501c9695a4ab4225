"""A training process that kills itself: `killed_main.py FOLDER KIND [STEP:POINT]`. Goes on from its newest checkpoint.

POINT is where `kill -9` falls in that step: `step` (the batch is cut, the learner works on it), `report` (the step is
over, nothing is saved), `save` (half of the checkpoint is written), `saved` (it has just been named). KIND is
`simulated`, with rollouts that take random time, or `torch`, with everything real and max_lag=0. A run that gets to its
end writes, as JSON, what its weights have been trained on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from verifiers.train.checkpoint import Checkpoints
from verifiers.train.config import LoopConfig

STEPS = 6


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Watched:
    """A learner that keeps what it has been trained on with its weights, and dies where it is told to."""

    def __init__(self, learner: Any, at: tuple[int, str]) -> None:
        self._learner = learner
        self._at = at
        self.trained: list[str] = []

    @property
    def version(self) -> int:
        return self._learner.version

    def step(self, rows: Any) -> dict[str, float]:
        if self._at == (self.version + 1, "step"):
            die()
        self.trained += [f"{row.task_id[:8]} {row.rollout_id}" for row in rows]
        return self._learner.step(rows)

    def weights(self) -> Any:
        return self._learner.weights()

    def save(self, folder: Path) -> None:
        if self._at == (self.version - 1, "saved"):
            die()  # the checkpoint before this one has its name, and what came after it is lost
        (folder / "trained.json").write_text(json.dumps(self.trained))
        if self._at == (self.version, "save"):
            die()
        self._learner.save(folder)

    def load(self, folder: Path) -> None:
        self._learner.load(folder)
        self.trained = json.loads((folder / "trained.json").read_text())

    def report(self, report: Any) -> None:
        if self._at == (report.step, "report"):
            die()


async def simulated(folder: Path, at: tuple[int, str]) -> dict[str, Any]:
    """Many versions of lag, groups in flight and ready at every checkpoint."""
    from tests.support.training import RecordingLearner, Setup

    learner = Watched(RecordingLearner(), at)
    made = Setup(
        learner=learner,
        checkpoints=Checkpoints(folder, every=1),
        seconds=lambda random: 0.005 * random.lognormvariate(0, 1),
        loop={"steps": STEPS, "max_lag": 8},
        tasks=30,
    )
    made.loop._observers.append(learner.report)
    await made.loop.resume()
    await made.run()
    return {"trained": sorted(learner.trained)}


async def real(folder: Path, at: tuple[int, str]) -> dict[str, Any]:
    """A model, its engine and its learner; without lag even the weights are those of an unbroken run."""
    import hashlib

    from tests.support.toy_tasks import single_turn
    from tests.support.training_torch import toy_engine, toy_learner, toy_loop, toy_source

    engine, torch_learner = toy_engine(), toy_learner()
    learner = Watched(torch_learner, at)
    config = LoopConfig(steps=STEPS, groups_per_batch=3, group_size=4, max_lag=0)
    async with toy_source(single_turn(), engine) as source:
        checkpoints = Checkpoints(folder, every=1)
        loop = toy_loop(
            {"toy": source}, engine, learner, config, checkpoints=checkpoints, observers=[learner.report]
        )
        await loop.resume()
        await loop.run()
    await engine.close()
    weights = torch_learner.policy.trained
    digest = hashlib.sha256(b"".join(weights[name].detach().numpy().tobytes() for name in sorted(weights)))
    return {"trained": sorted(learner.trained), "weights": digest.hexdigest()}


if __name__ == "__main__":
    step, _, point = sys.argv[3].partition(":") if len(sys.argv) > 3 else ("0", "", "")
    run = simulated if sys.argv[2] == "simulated" else real
    sys.stdout.write(json.dumps(asyncio.run(run(Path(sys.argv[1]), (int(step), point)))))
