"""The training loop: sampling and training at once, with weights that change while rollouts are under way.

    loop = AsyncLoop(
        [EnvironmentSource("math", source, source.task_ids)], sampler, learner, algorithm, config.loop,
        sampling={"temperature": 1.0, "max_tokens": 512}, observers=[print],
    )
    await loop.run()

One event loop asks for groups as `pacing` allows, takes them in, and hands weights to the sampler; the learner's
methods run in one thread beside it. A batch is cut when enough groups are ready, whatever is still in flight. After a
step the sampler is paused, given the new weights, and resumed: rollouts go on in the middle of a reply, and their
tokens say which version sampled them. `max_lag=0` is the same code: nothing is asked for while a batch is trained.

Sources, sampler and learner belong to the caller, who closes them. What each figure of a report means is in
docs/guides/training-loop.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from verifiers.clients.sampler import Sampler
from verifiers.envs.lifecycle import shielded
from verifiers.errors import ConfigError, Error, TrainingError
from verifiers.rollouts.source import GroupResult, RolloutRequest, RolloutSource
from verifiers.train.buffer import Batch, Buffer, Fate
from verifiers.train.config import LoopConfig
from verifiers.train.curriculum import Ask, Course, Curriculum, Pools
from verifiers.train.groups import Algorithm, group_of
from verifiers.train.learner import Learner, Weights
from verifiers.train.merge import MergeOptions
from verifiers.train.pacing import Pace
from verifiers.train.report import Observer, StepReport
from verifiers.train.rows import EnvRef
from verifiers.train.turn import Turn, Waits
from verifiers.types import SamplingArgs

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Blocking(Protocol):
    """Runs the learner's blocking methods, one at a time; tests let virtual time pass instead."""

    async def __call__(self, function: Callable[..., T], /, *args: Any) -> T: ...


@dataclass(frozen=True, slots=True)
class EnvironmentSource:
    """An environment to learn from: where its groups come from, its tasks, its share of the groups, what it is."""

    name: str
    source: RolloutSource
    task_ids: Sequence[str]
    ratio: float = 1.0
    pools: Pools | None = None
    ref: EnvRef = field(default_factory=EnvRef)


@dataclass(frozen=True, slots=True)
class LoopResult:
    """How a run ended: after which step, at which policy version, and whether `stop` ended it early."""

    step: int
    version: int
    stopped: bool


class AsyncLoop:
    """See the module.

    sampling: arguments of every request; they stand in the rows. blocking: how the learner is called, a thread of its
    own if None. checkpoints, evaluation: see `verifiers.train.checkpoint` and `verifiers.train.evaluation`.
    """

    def __init__(
        self,
        sources: Sequence[EnvironmentSource],
        sampler: Sampler,
        learner: Learner,
        algorithm: Algorithm,
        config: LoopConfig,
        *,
        sampling: SamplingArgs | None = None,
        observers: Sequence[Observer] = (),
        blocking: Blocking | None = None,
    ) -> None:
        self.config = config
        self.step = 0
        self.version = learner.version
        self.sampler_version = sampler.info().version
        self._sources = {one.name: one for one in sources}
        self._sampler = sampler
        self._learner = learner
        self._sampling: SamplingArgs = dict(sampling or {})
        self._observers = list(observers)
        self._blocking: Blocking = blocking or Thread()
        courses = [Course(one.name, one.task_ids, one.ratio, one.pools) for one in sources]
        self.curriculum = Curriculum(courses, config.seed)
        self.buffer = Buffer(
            algorithm,
            groups_per_batch=config.groups_per_batch,
            max_lag=config.max_lag,
            filter_zero_advantage=config.filter_zero_advantage,
            max_empty=config.max_empty_batches * config.groups_per_batch,
        )
        self._pace = Pace(config.groups_per_batch, config.max_lag, config.oversample)
        self._options = {
            one.name: MergeOptions(env=one.ref, sampling=self._sampling, version=self.version) for one in sources
        }
        self._asks: dict[str, asyncio.Queue[Ask]] = {one.name: asyncio.Queue() for one in sources}
        self._changed = asyncio.Event()
        self._stopping = self._training = False
        self._untrained = 0
        self._update: asyncio.Task[None] | None = None
        self._turn = Turn()
        self._told: Counter[Fate] = Counter()

    async def run(self) -> LoopResult:
        """Train until `config.steps` turns are done.

        Raises what ended the run, if something did: an error of the sampler, what makes every further group of a source
        fail, TrainingError when the learner raises or too much gave nothing to train on. A cancelled run lets the
        present step end first.
        """
        self._waits = Waits(asyncio.get_running_loop().time)
        self._waits.mark("trainer", True)
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                beside = [
                    tasks.create_task(work(one))
                    for one in self._sources.values()
                    for work in (self._submit, self._collect)
                ]
                await self._train()
                for task in beside:
                    task.cancel()
        except BaseExceptionGroup as group:
            first = _first(group)
            raise first from first.__cause__
        return LoopResult(self.step, self.version, self.step < self.config.steps)

    def stop(self) -> None:
        """End the run after the present step, in order."""
        self._stopping = True
        self._changed.set()

    # --- training ---------------------------------------------------------------------------------------------

    async def _train(self) -> None:
        while self.step < self.config.steps:
            batch = await self._next_batch()
            if batch is None:
                break
            # To its end whatever happens, so that learner, buffer and step say the same when the run stops.
            await shielded(self._turn_on(batch))
        await self._publish()
        while self._update is not None:
            await self._change()

    async def _next_batch(self) -> Batch | None:
        """Wait for a batch. None: the run is to stop."""
        while not self._stopping:
            await self._publish()
            batch = self.buffer.cut(self.version)
            if batch is not None:
                self.curriculum.settle()
                return batch
            self._ask()
            await self._change()
        return None

    async def _turn_on(self, batch: Batch) -> None:
        """One turn: a step of the learner, while groups are asked for and come in."""
        before = self.version
        self._training = True
        self._ask()
        self._waits.mark("trainer", False)
        try:
            figures = await self._on_learner(self._learner.step, batch.rows)
        finally:
            self._waits.mark("trainer", True)
            self._training = False
        self.step += 1
        self._report(batch, self.version != before, figures)
        self._untrained = 0 if self.version != before else self._untrained + 1
        if self._untrained >= self.config.max_empty_batches:
            raise TrainingError(
                f"{self._untrained} batches in a row had no token to train on after masking",
                hint="Look at the figures of the masks (loss/…): the settings of the loss drop everything.",
            )

    async def _on_learner(self, method: Callable[..., T], *args: Any) -> T:
        try:
            return await self._blocking(method, *args)
        except Error:
            raise
        except Exception as error:  # boundary: a learner's own code
            name = getattr(method, "__name__", "a method")
            raise TrainingError(
                f"the trainer failed in `{name}`, after {self.step} steps: {type(error).__name__}: {error}"
            ) from error
        finally:
            self.version = self._learner.version

    def _report(self, batch: Batch, trained: bool, figures: dict[str, float]) -> None:
        seconds, waits = self._waits.take()
        turn, self._turn = self._turn, Turn()
        fates, self._told = self.buffer.fates - self._told, self.buffer.fates.copy()
        groups = {f"groups/{fate}": float(count) for fate, count in fates.items()}
        groups |= {
            "groups/in_flight": float(len(self.buffer.in_flight)),
            "groups/ready": float(len(self.buffer.ready)),
            "rows/stale": float(self.buffer.stale_rows),
        }
        told = {**turn.figures(), **batch.figures(), **groups, **self.curriculum.figures(), **waits, **figures}
        self._tell(StepReport(self.step, self.version, trained, seconds, told))

    def _tell(self, report: StepReport) -> None:
        for observer in self._observers:
            try:
                observer(report)
            except Exception:  # boundary: an observer's own code must not end a run
                self._turn.counts["observers/failed"] += 1
                logger.exception("an observer failed at step %d; training goes on", report.step)

    # --- weights ----------------------------------------------------------------------------------------------

    async def _publish(self) -> None:
        """Begin to hand the newest weights to the sampler, unless it has them or is just being given some.

        Only the training task calls the learner, so this never waits behind a step, and weights stay valid until the
        sampler has them: the next are asked for afterwards.
        """
        if self._update is None and self.version != self.sampler_version:
            weights = await self._on_learner(self._learner.weights)
            self._update = self._tasks.create_task(self._replace(weights))

    async def _replace(self, weights: Weights) -> None:
        self._waits.mark("update", True)
        await self._sampler.pause()
        try:
            await self._sampler.update_weights(weights, weights.version)
        except BaseException:
            with contextlib.suppress(Exception):  # the first error says more
                await self._sampler.resume()
            raise
        await self._sampler.resume()
        self._waits.mark("update", False)
        self.sampler_version = weights.version
        for one in self._sources.values():
            await one.source.set_version(weights.version)
        self._update = None
        self._signal()

    # --- groups -----------------------------------------------------------------------------------------------

    def _ask(self) -> None:
        """Ask for as many groups as pacing allows."""
        left = self.config.steps - self.step - self._training
        behind = max(0, self.version + self._training - self.sampler_version)
        owed = 0 if self._stopping else left * self.config.groups_per_batch
        for _ in range(self._pace.room(under_way=self.buffer.under_way, behind=behind, owed=owed)):
            ask = self.curriculum.next()
            self.buffer.ask(ask)
            self._asks[ask.env].put_nowait(ask)
        self._waits.mark("sampler", not self.buffer.in_flight)

    async def _submit(self, one: EnvironmentSource) -> None:
        """Submit an environment's groups in turn: a source that has no room keeps no other environment waiting."""
        while True:
            ask = await self._asks[one.name].get()
            request = RolloutRequest(
                ask.task_id,
                ask.group_id,
                self.config.group_size,
                ask.seed,
                dict(self._sampling),
                self.sampler_version,
                one.name,
                one.ref.version,
            )
            await one.source.submit(request)

    async def _collect(self, one: EnvironmentSource) -> None:
        async for result in one.source.results():
            self._arrived(one, result)
        raise ConfigError(
            f"the source of environment {one.name} was closed while it was trained on",
            hint="Close sources after AsyncLoop.run has returned.",
        )

    def _arrived(self, one: EnvironmentSource, result: GroupResult) -> None:
        ask = self.buffer.in_flight.get(result.request.group_id)
        if ask is None:
            self._turn.counts["groups/unasked"] += 1
            return
        group = group_of(result, self._options[one.name])
        self._turn.arrived(group)
        if self.buffer.arrived(group) is Fate.INVALID_TASK:
            self.curriculum.drop(ask)
        if group.valid:
            rewards = [member.reward for member in group.valid if member.reward is not None]
            self.curriculum.observe(ask, sum(rewards) / len(rewards))
        self._ask()
        self._signal()

    # --- waiting ----------------------------------------------------------------------------------------------

    def _signal(self) -> None:
        self._changed.set()

    async def _change(self) -> None:
        """Until something has arrived, or the sampler has new weights."""
        await self._changed.wait()
        self._changed.clear()


class Thread:
    """`Blocking` as one thread, which the first call starts."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "trainer")

    async def __call__(self, function: Callable[..., T], /, *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
