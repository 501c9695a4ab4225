"""Groups in, batches of rows out: what became of every group that was asked for, and the cut of what is too old.

    buffer.ask(ask)                      # from now on it is under way
    buffer.arrived(group)                # ended: ready for a batch, or counted by why not
    batch = buffer.cut(learner.version)  # None until enough groups are ready

Each group meets exactly one `Fate`, and `asked` is always the sum of the fates, of those in flight and of those that
are ready. Lag is measured where it matters, at the cut: version that is about to be trained minus the oldest version
that sampled a trainable token of the row. It knows neither time nor tasks; the order of groups in a batch is that in
which they were asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress

from verifiers.errors import InexactEvidenceError, NothingToTrainError
from verifiers.train.advantages import has_signal
from verifiers.train.curriculum import Ask
from verifiers.train.fates import Fate, Streak, fate_without_rows
from verifiers.train.groups import Algorithm, Group
from verifiers.train.rows import Row


@dataclass(frozen=True)
class Ready:
    """A group that waits for its batch."""

    ask: Ask
    rows: list[Row]

    @cached_property
    def oldest(self) -> list[int]:
        """Of each row, the oldest version that sampled a trainable token; asked for at every cut."""
        return [min(compress(row.versions, row.mask)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a group that ended came to: a fate, or None if it is ready; and the rows that the algorithm made of it."""

    ask: Ask
    fate: Fate | None
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step is made of, in the order in which the groups were asked for. `lags`: one a row."""

    asks: list[Ask]
    rows: list[Row]
    lags: list[int]

    def figures(self) -> dict[str, float]:
        """`lag/mean`, `lag/max`, `lag/rows/N` (rows that lagged by N), and what the batch holds."""
        figures = {"batch/groups": float(len(self.asks)), "batch/rows": float(len(self.rows))}
        figures["tokens/trained"] = float(sum(row.trainable for row in self.rows))
        if self.lags:
            figures["lag/mean"] = sum(self.lags) / len(self.lags)
            figures["lag/max"] = float(max(self.lags))
            counted = sorted(Counter(self.lags).items())
            figures |= {f"lag/rows/{lag}": float(count) for lag, count in counted}
        return figures


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a buffer holds between two steps. `in_flight`: groups whose rollouts have to be played again."""

    asked: int = 0
    fates: Mapping[str, int] = field(default_factory=dict)
    stale_rows: int = 0
    in_flight: Sequence[Ask] = ()
    ready: Sequence[Ready] = ()


class Buffer:
    """See the module. `max_empty` groups in a row without anything to train on end the run: NothingToTrainError, or, if
    the model was trained and solves them all by now, `mastered`."""

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        groups_per_batch: int,
        max_lag: int,
        filter_zero_advantage: bool = True,
        max_empty: int = 80,
    ) -> None:
        self._algorithm = algorithm
        self._groups_per_batch = groups_per_batch
        self._max_lag = max_lag
        self._filter = filter_zero_advantage
        self._max_empty = max_empty
        self.asked = 0
        self.fates: Counter[Fate] = Counter()
        self.stale_rows = 0
        self.in_flight: dict[str, Ask] = {}
        self.ready: list[Ready] = []
        self.mastered = ""
        """Why there is nothing left to learn; empty while there may be something."""
        self._streak = Streak()
        self._environments: set[str] = set()
        """Those asked for groups. One that declares a task unfit may have no other, until it is asked again."""
        self._stale = 0

    @property
    def under_way(self) -> int:
        """Groups in flight and ready."""
        return len(self.in_flight) + len(self.ready)

    # --- in ---------------------------------------------------------------------------------------------------

    def ask(self, ask: Ask) -> None:
        """A group is asked for."""
        self.asked += 1
        self._environments.add(ask.env)
        self.in_flight[ask.group_id] = ask

    def arrived(self, group: Group) -> Arrival:
        """A group that was asked for has ended.

        InexactEvidenceError if a batch's worth of groups was scored and their token evidence was refused before any
        group gave rows: that is a matter of settings. NothingToTrainError after `max_empty` groups in a row without
        anything to train on, unless they are `mastered`.
        """
        ask = self.in_flight[group.group_id]
        self._streak.see(group)
        fate = fate_without_rows(group)
        rows: list[Row] = []
        if fate is None:
            rows = self._algorithm(group)
            fate = None if rows else Fate.NO_ROWS
            if rows and self._filter and not has_signal(rows):
                fate = Fate.NO_SIGNAL
        del self.in_flight[group.group_id]  # not before: an algorithm that raises leaves it to be played again
        if fate is None:
            self.ready.append(Ready(ask, rows))
            self._streak.end()
        else:
            self.fates[fate] += 1
            if fate is Fate.INVALID_TASK:
                self._environments.discard(ask.env)
            self._count_empty(fate, group)
        return Arrival(ask, fate, rows)

    def _count_empty(self, fate: Fate, group: Group) -> None:
        self._streak.add(fate, group)
        refused = self.fates[Fate.NO_EVIDENCE]
        if refused == self._groups_per_batch == self._streak.fates[Fate.NO_EVIDENCE] and not self.fates[Fate.TRAINED]:
            why = next((member.error for member in group.members if member.error), "their rollouts sampled nothing")
            raise InexactEvidenceError(
                f"the first {refused} groups that were scored have no token evidence that can be trained on: {why}",
                hint="The rollouts must be sampled by the trainer's sampler, through its client, which reports the "
                "ids, logprobs and versions of what it sampled.",
            )
        if self._streak.count < self._max_empty or self.mastered:
            return
        why = self._streak.mastered() if self.fates[Fate.TRAINED] else ""
        if not why:
            raise self._streak.error()
        if self._streak.covers(self._environments):  # else wait: one whose rollouts take longer may have more to learn
            self.mastered = why

    # --- out --------------------------------------------------------------------------------------------------

    def cut(self, version: int) -> Batch | None:
        """The next batch, to be trained at `version`: the longest asked for of what is ready and not too old.

        NothingToTrainError if so many groups have become too old since the last batch that none will ever be young.
        """
        self._drop_stale(version)
        if len(self.ready) < self._groups_per_batch:
            return None
        self.ready.sort(key=lambda one: one.ask.number)
        taken = self.ready[: self._groups_per_batch]
        del self.ready[: self._groups_per_batch]
        self.fates[Fate.TRAINED] += len(taken)
        self._stale = 0
        rows = [row for one in taken for row in one.rows]
        return Batch([one.ask for one in taken], rows, [version - oldest for one in taken for oldest in one.oldest])

    def _drop_stale(self, version: int) -> None:
        kept: list[Ready] = []
        for one in self.ready:
            if version - min(one.oldest) <= self._max_lag:
                kept.append(one)
                continue
            young = [version - oldest <= self._max_lag for oldest in one.oldest]
            rows = list(compress(one.rows, young))
            self.stale_rows += len(one.rows) - len(rows)
            if rows:
                kept.append(Ready(one.ask, rows))
            else:
                self.fates[Fate.STALE] += 1
                self._stale += 1
        before, self.ready = self.ready, kept
        if self._stale >= self._max_empty:
            oldest = before[-1].oldest[0]
            raise NothingToTrainError(
                f"{self._stale} groups in a row were more than {self._max_lag} versions old when a batch was cut: the "
                f"trainer is at version {version}, and their tokens are of version {oldest}",
                hint="Check that the sampler takes the new weights. If rollouts simply take longer than that many "
                "steps, raise loop.max_lag, or cut them off by loop.straggler_seconds.",
            )

    def take_stale_rows(self) -> int:
        """Rows that were cut since the last call, those of groups that were trained without them, too."""
        count, self.stale_rows = self.stale_rows, 0
        return count

    # --- going on ---------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """What is under way and what was counted. Nothing is copied: rows do not change any more."""
        fates = {str(fate): count for fate, count in self.fates.items()}
        return Snapshot(self.asked, fates, self.stale_rows, list(self.in_flight.values()), list(self.ready))

    def restore(self, saved: Snapshot) -> list[Ask]:
        """Go on from a snapshot. Returns the groups that were in flight: they have to be submitted again."""
        self.asked, self.stale_rows, self.ready = saved.asked, saved.stale_rows, list(saved.ready)
        self.fates = Counter({Fate(name): count for name, count in saved.fates.items()})
        again = sorted(saved.in_flight, key=lambda ask: ask.number)
        self.in_flight = {ask.group_id: ask for ask in again}
        self._environments = {ask.env for ask in again}
        return again
