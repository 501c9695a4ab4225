"""Groups of rollouts for trainers: asked for one by one, played side by side, each reported exactly once.

`RolloutSource` is the seam between rollouts and training; trainers know nothing else of how rollouts are played. What
is played is anything with `play`: an `Engine` in this process, or a `WorkerPool` here or on a Ray cluster.

    async with GroupSource(rows, lambda request: engine) as source:
        await source.submit(RolloutRequest(task_id, "group-1", n=8, seed=1))
        async for result in source.results():
            rewards = [member.record["reward"] for member in result.valid]

Whatever happens to a group, its result names every member with how it ended: one failed member does not fail its
group, one failed group does not fail the others. A straggler is cut off by a deadline, and what the others did is
reported without it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from verifiers.envs.lifecycle import CLEANUP_SECONDS
from verifiers.error_text import error_record
from verifiers.errors import ConfigError, EnvironmentCodeError, Error, LimitError, as_error
from verifiers.loops import GRACE_S, ends_within, shielded
from verifiers.rollouts.engine import OnSealed
from verifiers.rollouts.plan import PlannedRollout, RowReader, Rows, rollout_id_of, task_id_of
from verifiers.types import Outcome, RolloutOutput, SamplingArgs, State

logger = logging.getLogger(__name__)

CLEANUP_GRACE_S = CLEANUP_SECONDS + 2 * GRACE_S
"""How long a group that was stopped may take to clean up: one slow handler of each rollout, and what surrounds it."""


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """One group to roll out: `n` rollouts of a task.

    task_id: the hash of the task's content (`verifiers.rollouts.plan.task_id_of`).
    group_id: names this group in its result; no two groups in flight have the same.
    seed: with the task it decides the ids of the rollouts, and the sampling seeds that players derive from them: give
        every group one of its own.
    policy_version: of the policy that the trainer has when it asks.
    env_id, env_version: which environment is meant, for the trainer's records.
    """

    task_id: str
    group_id: str
    n: int = 1
    seed: int = 0
    sampling: SamplingArgs = field(default_factory=dict)
    policy_version: int = 0
    env_id: str = ""
    env_version: str | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One rollout of a group. `record` is None if it was stopped before it had one; `error` says why it has no
    reward."""

    rollout_id: str
    rollout_index: int
    outcome: Outcome
    record: RolloutOutput | None = None
    error: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class GroupResult:
    """How a group ended: its `n` members in order. `seconds` is wall time; `version` the source's at the end."""

    request: RolloutRequest
    members: list[Member]
    seconds: float = 0.0
    version: int = 0

    @property
    def valid(self) -> list[Member]:
        """The members that have a reward. Fewer than two give no advantage."""
        return [member for member in self.members if member.outcome.is_scored]


@dataclass(frozen=True, slots=True)
class Health:
    """What a source is doing. `groups` and `rollouts` are in flight; `outcomes` counts all members reported.

    error: what makes every further group fail too, such as a refused key; None is well.
    """

    groups: int
    rollouts: int
    reported: int
    paused: bool
    version: int
    outcomes: Mapping[str, int]
    error: Error | None = None


class RolloutSource(Protocol):
    """Where a trainer's rollouts come from."""

    async def submit(self, request: RolloutRequest) -> None:
        """Play a group. Waits for room, and while paused; from its return on the group will be reported."""
        ...

    def results(self) -> AsyncIterator[GroupResult]:
        """Groups as they end, each once. Ends when the source is closed and all are reported."""
        ...

    async def set_version(self, version: int) -> None:
        """The policy has new weights."""
        ...

    async def pause(self) -> None:
        """Start no further group. Those in flight go on."""
        ...

    async def resume(self) -> None:
        """Start groups again."""
        ...

    async def health(self) -> Health:
        """What is in flight, and whether anything is wrong."""
        ...


class Player(Protocol):
    """Plays the rollouts of a plan; several plays may be under way at once. See `Engine.play`."""

    async def play(self, rows: Rows, plan: Sequence[PlannedRollout], on_sealed: OnSealed) -> Any: ...


@dataclass(slots=True)
class _Playing:
    """A group in flight. `cut_off` says which limit stopped it early."""

    request: RolloutRequest
    plan: list[PlannedRollout]
    records: dict[str, RolloutOutput] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None
    cut_off: LimitError | None = None
    began: float = field(default_factory=time.monotonic)


class GroupSource:
    """A `RolloutSource` over players.

    rows: the tasks that may be asked for. player_for: who plays a request; it may make an engine with the request's
        sampling arguments, or answer with one pool for all. It raises ConfigError for what it can not play.
    max_rollouts: rollouts in flight; a group that is larger is played alone.
    straggler_seconds: deadline of a group from its start. What is then unfinished is cancelled, with its cleanup; where
        reward functions need the whole group, nothing of it is scored before its last member is done.
    max_lag: groups of a policy that is more versions old are cancelled. It saves work; whether a rollout is too old to
        train on is decided where it is used.
    """

    def __init__(
        self,
        rows: Rows,
        player_for: Callable[[RolloutRequest], Player],
        *,
        max_rollouts: int = 256,
        straggler_seconds: float | None = None,
        max_lag: int | None = None,
    ) -> None:
        self._rows = RowReader(rows) if hasattr(rows, "column_names") else rows  # others are read one by one anyhow
        self._player_for = player_for
        self._max_rollouts = max_rollouts
        self._straggler_seconds = straggler_seconds
        self._max_lag = max_lag
        self._positions = {task_id_of(dict(self._rows[position])): position for position in range(len(rows))}
        self._playing: dict[str, _Playing] = {}
        self._ended: deque[GroupResult] = deque()
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._outcomes: Counter[str] = Counter()
        self._reported = 0
        self._version = 0
        self._paused = False
        self._closed = False
        self._error: Error | None = None

    @property
    def task_ids(self) -> list[str]:
        """The tasks that may be asked for, in the order of the rows."""
        return list(self._positions)

    # --- asking -----------------------------------------------------------------------------------------------

    async def submit(self, request: RolloutRequest) -> None:
        """Play a group. See `RolloutSource.submit`.

        ConfigError for a task that is not there or a group that is in flight already; what makes every group fail
        (`Health.error`) is raised here, too.
        """
        if request.task_id not in self._positions:
            raise ConfigError(
                f"there is no task {request.task_id[:12]!r} among the {len(self._positions)} rows of the source",
                hint="Ask for tasks by their content's hash: GroupSource.task_ids lists them.",
            )
        if request.n < 1:
            raise ConfigError(f"a group has at least one rollout, not {request.n}")
        player = self._player_for(request)
        async with self._turn:  # first come, first served
            await self._until(lambda: self._closed or self._error is not None or self._has_room(request.n))
            self._refuse(request)
            playing = self._playing[request.group_id] = _Playing(request, self._plan(request))
            playing.task = asyncio.create_task(self._play(playing, player))
            # A callback, since a task that is cancelled before its first step runs none of its code.
            playing.task.add_done_callback(lambda task: self._report(playing, task))

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._changed.clear()
            await self._changed.wait()

    def _has_room(self, n: int) -> bool:
        in_flight = self._in_flight
        return not self._paused and (in_flight == 0 or in_flight + n <= self._max_rollouts)

    def _refuse(self, request: RolloutRequest) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise ConfigError("the source is closed")
        if request.group_id in self._playing:
            raise ConfigError(
                f"a group {request.group_id!r} is in flight", hint="Give every group an id of its own."
            )

    def _plan(self, request: RolloutRequest) -> list[PlannedRollout]:
        position = self._positions[request.task_id]
        example_id = dict(self._rows[position]).get("example_id", position)
        ids = [rollout_id_of(request.seed, request.task_id, index) for index in range(request.n)]
        return [
            PlannedRollout(position, example_id, request.task_id, index, one) for index, one in enumerate(ids)
        ]

    # --- playing ----------------------------------------------------------------------------------------------

    async def _play(self, playing: _Playing, player: Player) -> None:
        def on_sealed(record: RolloutOutput, _: State) -> None:
            playing.records[record["rollout_id"]] = record
            if self._turn.locked():  # someone waits for room
                self._changed.set()

        task = asyncio.create_task(player.play(self._rows, playing.plan, on_sealed))
        try:
            await asyncio.wait({task}, timeout=self._straggler_seconds)
            if task.done():
                task.result()
                return
            playing.cut_off = LimitError(
                f"it was unfinished {self._straggler_seconds:g} s after its group began",
                hint="Raise straggler_seconds, or look for what hangs.",
            )
        finally:
            if not task.done():
                await shielded(self._end_play(playing, task))
            if task.done() and not task.cancelled():
                task.exception()  # cut off already: what it says then is no news

    async def _end_play(self, playing: _Playing, task: asyncio.Task[Any]) -> None:
        """Stop what is still played, and wait for its cleanup; code that swallows its cancellation is left behind."""
        if await ends_within(task, CLEANUP_GRACE_S):
            return
        logger.warning(
            "group %s does not end %g s after it was stopped: code of its environment swallows its cancellation. "
            "What it still does is lost",
            playing.request.group_id,
            CLEANUP_GRACE_S,
        )

    def _report(self, playing: _Playing, task: asyncio.Task[None]) -> None:
        """The one place where a group ends, however it did."""
        error: Error | None = None
        if not task.cancelled() and (raised := task.exception()) is not None:
            error = as_error(raised, EnvironmentCodeError, "playing its group")
            self._error = error if error.fatal else self._error
        stopped = playing.cut_off is not None or task.cancelled()
        members = [
            _member(
                planned, playing.records.get(planned.rollout_id), playing.cut_off or error, stopped=stopped
            )
            for planned in playing.plan
        ]
        self._ended.append(
            GroupResult(playing.request, members, time.monotonic() - playing.began, self._version)
        )
        self._outcomes.update(str(member.outcome) for member in members)
        del self._playing[playing.request.group_id]
        self._changed.set()

    @property
    def _in_flight(self) -> int:
        return sum(len(playing.plan) - len(playing.records) for playing in self._playing.values())

    # --- results ----------------------------------------------------------------------------------------------

    async def results(self) -> AsyncIterator[GroupResult]:
        """Groups as they end. See `RolloutSource.results`. Several readers share them."""
        while True:
            await self._until(lambda: bool(self._ended) or (self._closed and not self._playing))
            if not self._ended:
                return
            self._reported += 1
            yield self._ended.popleft()

    # --- control ----------------------------------------------------------------------------------------------

    async def set_version(self, version: int) -> None:
        """The policy has new weights; groups that are too old now are cancelled."""
        self._version = version
        for playing in list(self._playing.values()):
            lag = version - playing.request.policy_version
            if self._max_lag is not None and lag > self._max_lag:
                playing.cut_off = LimitError(
                    f"its policy is {lag} versions old, and {self._max_lag} is the most"
                )
                self._stop(playing)

    async def cancel(self, group_id: str) -> bool:
        """Stop a group, with the cleanup of its rollouts. It is reported with what it has. False if it is not in
        flight."""
        playing = self._playing.get(group_id)
        if playing is not None:
            self._stop(playing)
        return playing is not None

    def _stop(self, playing: _Playing) -> None:
        assert playing.task is not None
        playing.task.cancel()

    async def pause(self) -> None:
        """Start no further group. See `RolloutSource.pause`."""
        self._paused = True

    async def resume(self) -> None:
        """Start groups again."""
        self._paused = False
        self._changed.set()

    async def health(self) -> Health:
        """What is in flight. See `RolloutSource.health`."""
        return Health(
            groups=len(self._playing),
            rollouts=self._in_flight,
            reported=self._reported,
            paused=self._paused,
            version=self._version,
            outcomes=dict(self._outcomes),
            error=self._error,
        )

    async def close(self) -> None:
        """Cancel what is in flight. `results` still gives what is not yet reported, and then ends."""
        self._closed = True
        self._changed.set()
        for playing in list(self._playing.values()):
            self._stop(playing)
        await self._until(lambda: not self._playing)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _member(
    planned: PlannedRollout, record: RolloutOutput | None, error: Error | None, *, stopped: bool
) -> Member:
    """A rollout as it is reported: by its record, or by what kept it from having one."""
    identity = (planned.rollout_id, planned.rollout_index)
    if record is not None:
        return Member(*identity, Outcome(record["outcome"]), record, record.get("error"))
    if not stopped and error is None:
        error = EnvironmentCodeError("it ended without a record")
    outcome = Outcome.CANCELLED if stopped else Outcome.FAILED
    return Member(*identity, outcome, None, None if error is None else error_record(error))
