"""Supervised fine-tuning: rows are imitated, epoch after epoch. What `vf-sft` runs.

    policy = load_policy(config.model)
    data = read_sft(config.data.files, policy.tokenizer, config.data)
    rows, held_out = split(data.rows, config.data.validation_share)
    loop = SftLoop(rows, config.sft, validation=held_out, observers=[print], checkpoints=checkpoints)
    loop.run(make_sft_learner(policy, config.trainer, loop.total_steps))

It is the trainer of reinforcement learning with another loss, so packing, precision, LoRA, mixtures of experts and
several ranks are the same, and so are its checkpoints. Batches are a function of the seed and the step: a run that goes
on after any checkpoint makes the updates that an unbroken one makes.
"""

from __future__ import annotations

import hashlib
import logging
import random
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from verifiers.errors import DatasetError, ResumeError, StoreError
from verifiers.train.buffer import Snapshot
from verifiers.train.checkpoint import Checkpoints, RunState
from verifiers.train.config import SftLoopConfig
from verifiers.train.learner import Learner
from verifiers.train.report import Observer, StepReport, tell
from verifiers.train.rows import Row

logger = logging.getLogger(__name__)


class MeasuringLearner(Learner, Protocol):
    """A learner that can tell its loss without learning."""

    def measure(self, rows: Sequence[Row]) -> dict[str, float]:
        """The figures of the loss on rows."""
        ...


def split(rows: Sequence[Row], share: float) -> tuple[list[Row], list[Row]]:
    """What is learned, and the share that is held out: whole tasks, the same ones whatever else there is.

    Rows without a task are of one if their rollouts were asked the same, which the first row of each tells.
    """
    learned: list[Row] = []
    held_out: list[Row] = []
    asked: dict[str, str] = {}
    for row in rows:
        task = row.task_id or repr(row.tokens[: row.mask.index(True)])
        if not row.task_id and row.rollout_id:
            task = asked.setdefault(row.rollout_id, task)
        (held_out if zlib.crc32(task.encode()) < share * 2**32 else learned).append(row)
    return learned, held_out


@dataclass(frozen=True, slots=True)
class SftResult:
    """How a run ended: after which update, in which epoch, the last loss and validation loss, if `stop` ended it."""

    step: int
    epoch: float
    loss: float | None
    validation: float | None
    stopped: bool


class SftLoop:
    """See the module. DatasetError without rows."""

    def __init__(
        self,
        rows: Sequence[Row],
        config: SftLoopConfig | None = None,
        *,
        validation: Sequence[Row] = (),
        observers: Sequence[Observer] = (),
        checkpoints: Checkpoints | None = None,
    ) -> None:
        if not rows:
            raise DatasetError("there is nothing to learn from", hint="Look at what was left out, and why.")
        # A row's temperature is that of its sampler; what is imitated are probabilities at 1.
        self._rows = [replace(row, sampling={}) for row in rows]
        self._validation = [replace(row, sampling={}) for row in validation]
        self.config = config or SftLoopConfig()
        self._observers = list(observers)
        self._checkpoints = checkpoints
        self.step = 0
        self._stopping = False
        self._loss: float | None = None
        self._measured: float | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Updates in which every row is learned once."""
        return -(-len(self._rows) // self.config.rows_per_batch)

    @property
    def total_steps(self) -> int:
        """Updates of the whole run."""
        whole = self.config.epochs * self.steps_per_epoch
        return min(whole, self.config.steps or whole)

    def observe(self, observer: Observer) -> None:
        """Tell this one, too, from now on."""
        self._observers.append(observer)

    def stop(self) -> None:
        """End the run after the present update, with a checkpoint."""
        self._stopping = True

    def resume(self, learner: Learner) -> bool:
        """Go on from the newest checkpoint; False if there is none. ResumeError if it is of other data."""
        found = self._checkpoints.latest() if self._checkpoints is not None else None
        if self._checkpoints is None or found is None:
            return False
        state = self._checkpoints.load(found, learner)
        if state.curriculum != self._identity():
            raise ResumeError(
                f"{found} was made with other data or another order: it has {dict(state.curriculum)}, now it is "
                f"{self._identity()}",
                hint="Go on with the same files and settings, or take another output folder.",
            )
        self.step = state.step
        return True

    def run(self, learner: MeasuringLearner) -> SftResult:
        """Learn until the epochs or the steps are through, or `stop`. Blocks; errors of the learner come out."""
        if self.step == 0 and self._validation:
            began = time.perf_counter()
            figures = self._validated(learner)
            tell(self._observers, StepReport(0, learner.version, False, time.perf_counter() - began, figures))
        while self.step < self.total_steps and not self._stopping:
            self._turn(learner)
        if self._checkpoints is not None and self.step % self._checkpoints.every:
            self._save(learner)
        return SftResult(self.step, self._epoch, self._loss, self._measured, self.step < self.total_steps)

    def batch(self, step: int) -> list[Row]:
        """What update `step` (0, 1, …) learns from."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = list(range(len(self._rows)))
        if self.config.shuffle:
            random.Random(f"{self.config.seed}/{epoch}").shuffle(order)
        size = self.config.rows_per_batch
        return [self._rows[number] for number in order[place * size : (place + 1) * size]]

    def _turn(self, learner: MeasuringLearner) -> None:
        began, before = time.perf_counter(), learner.version
        figures = learner.step(self.batch(self.step))
        self.step += 1
        self._loss = figures.get("loss/cross_entropy", self._loss)
        if self._validation and self._validates():
            figures = figures | self._validated(learner)
        figures["sft/epoch"] = self._epoch
        seconds = time.perf_counter() - began
        tell(self._observers, StepReport(self.step, learner.version, learner.version != before, seconds, figures))
        if self._checkpoints is not None and self.step % self._checkpoints.every == 0:
            self._save_if_possible(learner)

    @property
    def _epoch(self) -> float:
        return self.step / self.steps_per_epoch

    def _validates(self) -> bool:
        every = self.config.validate_every or self.steps_per_epoch
        return self.step % every == 0 or self.step == self.total_steps

    def _validated(self, learner: MeasuringLearner) -> dict[str, float]:
        figures = learner.measure(self._validation)
        self._measured = figures.get("loss/cross_entropy")
        return {f"validation/{name.removeprefix('loss/')}": value for name, value in figures.items()}

    def _save_if_possible(self, learner: Learner) -> None:
        """One that can not be written is explained, and training goes on, as in `AsyncLoop`; not so the last one."""
        try:
            self._save(learner)
        except StoreError as error:
            if self.step == self.total_steps or self._stopping:
                raise
            logger.error("%s (%s)", error, error.hint)

    def _save(self, learner: Learner) -> None:
        assert self._checkpoints is not None
        state = RunState(self.step, learner.version, self._identity(), Snapshot())
        self._checkpoints.save(state, learner)

    def _identity(self) -> dict[str, Any]:
        """What batches are a function of, beside the step."""
        digest = hashlib.sha256()
        for row in self._rows:
            digest.update(repr((row.tokens, row.mask)).encode())
        order = {"rows_per_batch": self.config.rows_per_batch, "shuffle": self.config.shuffle}
        return {"data": digest.hexdigest(), **order, "seed": self.config.seed}
