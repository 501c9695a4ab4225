"""Groups from the curriculum through the sources to the buffer: asked for, played, taken in, counted.

It decides nothing about when: the loop says how many batches are left and how far the trainer is ahead, `pacing` what
may be asked for. A source that has no room keeps no other environment waiting, and a group that waits for room gets
the version that the sampler has when its turn comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from verifiers.errors import ConfigError
from verifiers.rollouts.source import GroupResult, RolloutRequest, RolloutSource
from verifiers.train.buffer import Batch, Buffer, Snapshot
from verifiers.train.config import LoopConfig
from verifiers.train.curriculum import Ask, Course, Curriculum, Pools
from verifiers.train.evidence import Checks
from verifiers.train.fates import Fate
from verifiers.train.groups import Algorithm, Group, group_of
from verifiers.train.merge import MergeOptions
from verifiers.train.pacing import Pace
from verifiers.train.rows import EnvRef
from verifiers.train.turn import Turn
from verifiers.types import SamplingArgs

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnvironmentSource:
    """An environment to learn from: where its groups come from, its tasks, its share of the groups, what it is."""

    name: str
    source: RolloutSource
    task_ids: Sequence[str]
    ratio: float = 1.0
    pools: Pools | None = None
    ref: EnvRef = field(default_factory=EnvRef)


class GroupFlow:
    """See the module. `on_arrival` is called after each group that ended; `turn` counts what happens in this turn."""

    def __init__(
        self,
        sources: Sequence[EnvironmentSource],
        algorithm: Algorithm,
        config: LoopConfig,
        sampling: SamplingArgs,
        on_arrival: Callable[[], None],
        checks: Checks | None = None,
    ) -> None:
        courses = [Course(one.name, one.task_ids, one.ratio, one.pools) for one in sources]
        self.curriculum = Curriculum(courses, config.seed)
        self.buffer = Buffer(
            algorithm,
            groups_per_batch=config.groups_per_batch,
            max_lag=config.max_lag,
            filter_zero_advantage=config.filter_zero_advantage,
            max_empty=config.max_empty_batches * config.groups_per_batch,
        )
        self.turn = Turn()
        self.sampler_version = 0
        self.sources = sources
        self._config = config
        self._sampling = sampling
        self._checks = checks or Checks()
        self._doubted = False
        self._pace = Pace(config.groups_per_batch, config.max_lag, config.oversample)
        self._starved = False
        self._on_arrival = on_arrival
        self._asks: dict[str, asyncio.Queue[Ask]] = {one.name: asyncio.Queue() for one in sources}
        self._told: Counter[Fate] = Counter()

    def ask(self, *, behind: int, batches: int) -> None:
        """Ask for what pacing allows: `behind` versions lie between the sampler and the next batch, and `batches` are
        left to be made."""
        owed = batches * self._config.groups_per_batch
        for _ in range(self._pace.room(under_way=self.buffer.under_way, behind=behind, owed=owed)):
            ask = self.curriculum.next()
            self.buffer.ask(ask)
            self._asks[ask.env].put_nowait(ask)

    def cut(self, version: int) -> Batch | None:
        """The batch to be trained at that version, None while there is not enough for one."""
        batch = self.buffer.cut(version)
        if batch is None:
            self._starved = True
        else:
            self._pace.adapt(starved=self._starved, ready=len(self.buffer.ready))
            self._starved = False
            self.curriculum.settle()
        return batch

    async def set_version(self, version: int) -> None:
        """The sampler has new weights."""
        self.sampler_version = version
        for one in self.sources:
            await one.source.set_version(version)

    def start(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        """Begin to submit and to take in; the tasks run until they are cancelled, or a source fails for good."""
        return [tasks.create_task(work(one)) for one in self.sources for work in (self._submit, self._collect)]

    async def _submit(self, one: EnvironmentSource) -> None:
        while True:
            ask = await self._asks[one.name].get()
            request = RolloutRequest(
                ask.task_id,
                ask.group_id,
                self._config.group_size,
                ask.seed,
                dict(self._sampling),
                self.sampler_version,
                one.name,
                one.ref.version,
            )
            try:
                await one.source.submit(request)
            except asyncio.CancelledError:
                self._asks[one.name].put_nowait(ask)  # the source never had it: the next run asks for it again
                raise

    async def _collect(self, one: EnvironmentSource) -> None:
        async for result in one.source.results():
            self._arrived(one, result)
            self._on_arrival()
        raise ConfigError(
            f"the source of environment {one.name} was closed while it was trained on",
            hint="Close sources after AsyncLoop.run has returned.",
        )

    def _arrived(self, one: EnvironmentSource, result: GroupResult) -> None:
        if result.request.group_id not in self.buffer.in_flight:
            self.turn.counts["groups/unasked"] += 1
            return
        options = MergeOptions(env=one.ref, sampling=self._sampling, checks=self._checks)
        group = group_of(result, options)
        self._tell_doubts(group)
        arrival = self.buffer.arrived(group)
        self.turn.arrived(group, arrival.rows)
        if arrival.fate is Fate.INVALID_TASK:
            self.curriculum.drop(arrival.ask)
        if group.valid:
            rewards = [member.reward for member in group.valid if member.reward is not None]
            self.curriculum.observe(arrival.ask, sum(rewards) / len(rewards))

    def _tell_doubts(self, group: Group) -> None:
        """Say once why a rollout that was scored gives no rows; the figures count them (`rows/none/invalid`)."""
        for member in group.members:
            if member.outcome.is_scored and member.error and not self._doubted:
                self._doubted = True
                logger.warning("a rollout of %s is not trained on: %s", group.env_id, member.error)

    def told(self) -> str:
        """The groups that are ready and under way, and what became of those since the last report, in words."""
        fates = {"ready": len(self.buffer.ready), "in flight": len(self.buffer.in_flight)}
        fates |= {fate.replace("_", " "): count for fate, count in (self.buffer.fates - self._told).items()}
        counts = ", ".join(f"{count} {fate}" for fate, count in fates.items())
        reward = self.turn.figures().get("reward/mean")
        return f"groups: {counts}" + (f", mean reward {reward:.3f}" if reward is not None else "")

    def take_figures(self) -> dict[str, float]:
        """What happened since the last call: fates of groups, and all that the turn counted."""
        fates, self._told = self.buffer.fates - self._told, self.buffer.fates.copy()
        turn, self.turn = self.turn, Turn()
        return {
            **turn.figures(),
            **{f"groups/{fate}": float(count) for fate, count in fates.items()},
            "groups/in_flight": float(len(self.buffer.in_flight)),
            "groups/ready": float(len(self.buffer.ready)),
            "lag/lead": float(self._pace.lead),
            "rows/stale": float(self.buffer.take_stale_rows()),
            **self.curriculum.figures(),
        }

    # --- going on ---------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[dict[str, Any], Snapshot]:
        """The curriculum's state, and what the buffer holds."""
        return self.curriculum.state(), self.buffer.snapshot()

    def restore(self, curriculum: Any, buffer: Snapshot) -> None:
        """Go on from a snapshot. Groups that were in flight are asked for again, before any other."""
        self.curriculum.restore(curriculum)
        for ask in self.buffer.restore(buffer):
            self._asks[ask.env].put_nowait(ask)
        self._told = self.buffer.fates.copy()
