"""What the tests of the loop share: a learner that records, a sampler over a table, sources whose rollouts take virtual
time. They stand where the protocols of training have seams; sources, buffer and loop are the real ones.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.virtual_time import run_virtual
from verifiers.clients.sampler import Completion, EngineInfo
from verifiers.rollouts.plan import PlannedRollout, sampling_seed_of
from verifiers.rollouts.source import GroupSource
from verifiers.train.advantages import make_algorithm
from verifiers.train.checkpoint import Checkpoints
from verifiers.train.config import AdvantageConfig, LoopConfig
from verifiers.train.evaluation import Evaluation
from verifiers.train.flow import EnvironmentSource
from verifiers.train.learner import Weights
from verifiers.train.loop import AsyncLoop, LoopResult
from verifiers.train.report import StepReport
from verifiers.train.rows import Row


class RecordingLearner:
    """Keeps what it was given; every step makes a new version."""

    def __init__(self) -> None:
        self.version = 0
        self.steps: list[tuple[int, list[Row]]] = []

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        self.steps.append((self.version, list(rows)))
        self.version += 1
        return {"loss/total": 1.0 / self.version}

    def weights(self) -> Weights:
        return Weights(self.version, tensors={})

    def save(self, folder: Path) -> None:
        (folder / "learner.json").write_text(json.dumps({"version": self.version}))

    def load(self, folder: Path) -> None:
        self.version = json.loads((folder / "learner.json").read_text())["version"]


class TableSampler:
    """Samples token after token, `seconds` each; the weights may be replaced in between.

    The tokens of a request depend on its seed alone: `table(seed)`. A paused sampler keeps its requests.
    """

    def __init__(self, table: Callable[[int], list[int]] | None = None, seconds: float = 0.0) -> None:
        self.version = 0
        self.seconds = seconds
        self.updates: list[int] = []
        self._table = table or (lambda seed: [seed % 7 + 1] * (seed % 5 + 1))
        self._running = asyncio.Event()
        self._running.set()

    async def generate(self, token_ids: list[int], params: dict[str, Any]) -> Completion:
        tokens = self._table(params.get("seed") or 0)
        versions = []
        for _ in tokens:
            await asyncio.sleep(self.seconds)
            await self._running.wait()
            versions.append(self.version)
        return Completion(tokens, [-1.0] * len(tokens), versions, "stop")

    async def score(self, token_ids: list[int]) -> list[float]:
        return [0.0] + [-1.0] * (len(token_ids) - 1)

    async def pause(self) -> None:
        self._running.clear()

    async def resume(self) -> None:
        self._running.set()

    async def update_weights(self, source: Weights, version: int) -> None:
        assert source.version == version and not self._running.is_set()
        self.version = version
        self.updates.append(version)

    def info(self) -> EngineInfo:
        return EngineInfo("table", 259, 2048, self.version)


Reward = Callable[[str, int, int], float]
"""Of a rollout, by its task's id, the number within its group, and its seed."""


def seeded_reward(task_id: str, index: int, seed: int) -> float:
    """0 or 1, half and half over the members of a group, whatever is sampled."""
    return float((index + int(task_id[:4], 16)) % 2)


class SimulatedPlayer:
    """Plays rollouts of one turn on a sampler, and `seconds(random)` of other work, `concurrent` at a time.

    turns: how many turns of the event loop a rollout gives way for first.
    """

    def __init__(
        self,
        sampler: TableSampler,
        *,
        seconds: Callable[[random.Random], float] = lambda _: 0.0,
        turns: Callable[[random.Random], int] = lambda _: 0,
        reward: Reward = seeded_reward,
        outcome: Callable[[PlannedRollout], str] = lambda _: "ok",
        concurrent: int = 10_000,
    ) -> None:
        self.sampler = sampler
        self.played: list[str] = []
        self._seconds = seconds
        self._turns = turns
        self._reward = reward
        self._outcome = outcome
        self._places = asyncio.Semaphore(concurrent)

    async def play(self, rows: Any, plan: Sequence[PlannedRollout], on_sealed: Any) -> None:
        async with asyncio.TaskGroup() as tasks:
            for planned in plan:
                tasks.create_task(self._play_one(planned, on_sealed))

    async def _play_one(self, planned: PlannedRollout, on_sealed: Any) -> None:
        seed = sampling_seed_of(planned.rollout_id)
        async with self._places:
            for _ in range(self._turns(random.Random(seed))):
                await asyncio.sleep(0)
            self.played.append(planned.rollout_id)
            completion = await self.sampler.generate([1, 2], {"seed": seed})
            await asyncio.sleep(self._seconds(random.Random(seed)))
        on_sealed(self._record(planned, seed, completion), None)

    def _record(self, planned: PlannedRollout, seed: int, completion: Completion) -> dict[str, Any]:
        outcome = self._outcome(planned)
        scored = outcome in ("ok", "truncated")
        tokens = {
            "prompt_ids": [1, 2],
            "completion_ids": completion.tokens,
            "completion_logprobs": completion.logprobs,
            "completion_versions": completion.versions,
        }
        return {
            "rollout_id": planned.rollout_id,
            "task_id": planned.task_id,
            "outcome": outcome,
            "reward": self._reward(planned.task_id, planned.rollout_index, seed) if scored else None,
            "metrics": {},
            "error": None if scored else {"error": "ModelError", "kind": "model", "message": "no"},
            "stop_condition": "done",
            "trajectory": [{"tokens": tokens, "is_truncated": False}],
        }


def simulated_source(player: Any, tasks: int = 16, name: str = "q", **limits: Any) -> GroupSource:
    """A real source of `tasks` tasks over a player."""
    rows = [{"example_id": number, "question": f"{name}{number}"} for number in range(tasks)]
    return GroupSource(rows, lambda request: player, **limits)


class VirtualBlocking:
    """`Blocking` that takes `seconds` of virtual time a step, and none for other calls."""

    def __init__(self, seconds: Callable[[], float] | float = 0.0) -> None:
        self._seconds = seconds

    async def __call__(self, function: Callable[..., Any], /, *args: Any) -> Any:
        if function.__name__ == "step":
            await asyncio.sleep(self._seconds() if callable(self._seconds) else self._seconds)
        return function(*args)

    def close(self) -> None:
        pass


class Setup:
    """A loop over simulated rollouts, with everything in reach."""

    def __init__(
        self,
        *,
        train_seconds: Callable[[], float] | float = 0.0,
        token_seconds: float = 0.0,
        tasks: int = 16,
        limits: dict[str, Any] | None = None,
        table: Callable[[int], list[int]] | None = None,
        loop: dict[str, Any] | None = None,
        checkpoints: Checkpoints | None = None,
        evaluation: Callable[[Setup], Evaluation] | None = None,
        learner: Any = None,
        **player: Any,
    ) -> None:
        self.config = LoopConfig(**{"steps": 6, "groups_per_batch": 2, "group_size": 4, "max_lag": 2, **(loop or {})})
        self.sampler = TableSampler(table, token_seconds)
        self.player = SimulatedPlayer(self.sampler, **player)
        self.source = simulated_source(self.player, tasks, **(limits or {}))
        self.learner = learner or RecordingLearner()
        self.reports: list[StepReport] = []
        self.seconds = 0.0
        self.result: LoopResult | None = None
        self.loop = AsyncLoop(
            [EnvironmentSource("toy", self.source, self.source.task_ids)],
            self.sampler,
            self.learner,
            make_algorithm(AdvantageConfig()),
            self.config,
            sampling={"temperature": 1.0},
            observers=[self.reports.append],
            blocking=VirtualBlocking(train_seconds),
            checkpoints=checkpoints,
            evaluation=evaluation(self) if evaluation else None,
        )

    @property
    def steps(self) -> list[StepReport]:
        """The reports of steps, without those of evaluations."""
        return [report for report in self.reports if "batch/rows" in report.figures]

    async def run(self) -> Any:
        async with self.source:
            return await self.loop.run()


def play(*, resume: bool = False, **options: Any) -> Setup:
    """Run a loop to its end in virtual time."""

    async def main() -> Setup:
        made = Setup(**options)
        if resume:
            await made.loop.resume()
        made.result = await made.run()
        made.seconds = asyncio.get_running_loop().time()
        return made

    return run_virtual(main())
