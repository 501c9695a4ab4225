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
from enum import StrEnum
from functools import cached_property
from itertools import compress

from verifiers.errors import InexactEvidenceError, TrainingError
from verifiers.train.advantages import has_signal
from verifiers.train.curriculum import Ask
from verifiers.train.groups import Algorithm, Group
from verifiers.train.rows import Row
from verifiers.types import Outcome

PLAY_IT = "Play the environment with vf-eval and look at the errors; loop.max_empty_batches is the limit."

HINTS = {
    "usage": "The sampler refuses what it is asked for: look at [sampling].",
    "model": "The policy can not be asked like that. Base models have no chat template: fine-tune one first (vf-sft), "
    "or let the environment complete texts (message_type).",
    "infrastructure": "The sampler fails, and log.txt has how. If an update broke the weights, lower trainer.lr, and "
    "go on from a checkpoint before it.",
    "limit": "Prompts have to fit into sampler.max_context with their reply, and groups to end within "
    "loop.straggler_seconds.",
}
"""What to do about groups that give nothing, by the kind of most of their errors; otherwise `PLAY_IT`."""


CUT_OFF = (
    "Every reply was cut off, and advantage.overlong leaves such rollouts out of the loss: raise sampling.max_tokens, "
    "or take advantage.overlong=keep."
)
"""What to do about groups that are scored, and of which nothing is trained."""


class Fate(StrEnum):
    """What became of a group. Figures count them as `groups/FATE`."""

    TRAINED = "trained"
    """It was in a batch."""
    STALE = "stale"
    """Every row of it was more than `max_lag` versions old when a batch was cut."""
    NO_SIGNAL = "no_signal"
    """All advantages are 0: its rollouts were equally good."""
    NO_ROWS = "no_rows"
    """Enough rollouts were scored, and the algorithm left none of them over (all too long, say)."""
    TOO_FEW_VALID = "too_few_valid"
    """Fewer than two rollouts were scored; the others ended in different ways."""
    FAILED = "failed"
    UNSCORED = "unscored"
    CANCELLED = "cancelled"
    """Fewer than two were scored, and all others failed, could not be scored, or were cut off, by the deadline of
    stragglers or because they had become too old."""
    INVALID_TASK = "invalid_task"
    """The environment declared the task unfit; it is not asked for again."""
    NO_EVIDENCE = "no_evidence"
    """Rollouts were scored, and fewer than two had token evidence that can be trained on."""


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
    """See the module. `max_empty` groups in a row without anything to train on end the run (TrainingError)."""

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
        self._empty: Counter[Fate] = Counter()
        self._stale = 0
        self._alike: list[float] = []
        self._errors: Counter[str] = Counter()
        self._last_error: str | None = None

    @property
    def under_way(self) -> int:
        """Groups in flight and ready."""
        return len(self.in_flight) + len(self.ready)

    # --- in ---------------------------------------------------------------------------------------------------

    def ask(self, ask: Ask) -> None:
        """A group is asked for."""
        self.asked += 1
        self.in_flight[ask.group_id] = ask

    def arrived(self, group: Group) -> Arrival:
        """A group that was asked for has ended.

        InexactEvidenceError if a batch's worth of groups was scored and their token evidence was refused before any
        group gave rows: that is a matter of settings. TrainingError after `max_empty` groups in a row without
        anything to train on.
        """
        ask = self.in_flight[group.group_id]
        fate = _fate_without_rows(group)
        rows: list[Row] = []
        if fate is None:
            rows = self._algorithm(group)
            fate = None if rows else Fate.NO_ROWS
            if rows and self._filter and not has_signal(rows):
                fate = Fate.NO_SIGNAL
        del self.in_flight[group.group_id]  # not before: an algorithm that raises leaves it to be played again
        if fate is None:
            self.ready.append(Ready(ask, rows))
            self._empty.clear()
            self._alike.clear()
            self._errors.clear()
        else:
            self.fates[fate] += 1
            self._count_empty(fate, group)
        return Arrival(ask, fate, rows)

    def _count_empty(self, fate: Fate, group: Group) -> None:
        self._empty[fate] += 1
        if fate is Fate.NO_SIGNAL:
            self._alike += [member.reward for member in group.valid if member.reward is not None]
        self._errors.update(member.error_kind for member in group.members if member.error_kind)
        said = [member.error for member in group.members if member.error]
        self._last_error = said[-1] if said else self._last_error
        refused = self.fates[Fate.NO_EVIDENCE]
        if refused == self._groups_per_batch == self._empty[Fate.NO_EVIDENCE] and not self.fates[Fate.TRAINED]:
            raise InexactEvidenceError(
                f"the first {refused} groups that were scored have no token evidence that can be trained on",
                hint="The rollouts must be sampled by the trainer's sampler, through its client, which reports the "
                "ids, logprobs and versions of what it sampled.",
            )
        if self._empty.total() >= self._max_empty:
            raise TrainingError(
                f"{self._empty.total()} groups in a row gave nothing to train on: {self._reason()}", hint=self._hint()
            )

    def _reason(self) -> str:
        causes = ", ".join(f"{count} {fate}" for fate, count in self._empty.most_common())
        if self._alike:
            causes += f" (mean reward {sum(self._alike) / len(self._alike):.3f})"
        errors = ", ".join(f"{kind} ({count})" for kind, count in self._errors.most_common(3))
        return f"{causes}; errors of their rollouts: {errors}, the last: {self._last_error}" if errors else causes

    def _hint(self) -> str:
        if self._empty.most_common(1)[0][0] is Fate.NO_SIGNAL:
            return (
                "Every rollout of a group earns the same: take tasks that the model solves sometimes, larger groups "
                "(loop.group_size), or a model that has been fine-tuned on the format first (vf-sft)."
            )
        if self._empty.most_common(1)[0][0] is Fate.NO_ROWS:
            return CUT_OFF
        common = self._errors.most_common(1)
        return HINTS.get(common[0][0] if common else "", PLAY_IT)

    # --- out --------------------------------------------------------------------------------------------------

    def cut(self, version: int) -> Batch | None:
        """The next batch, to be trained at `version`: the longest asked for of what is ready and not too old.

        TrainingError if so many groups have become too old since the last batch that none will ever be young enough.
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
            young = [version - oldest <= self._max_lag for oldest in one.oldest]
            rows = list(compress(one.rows, young))
            self.stale_rows += len(one.rows) - len(rows)
            if rows:
                kept.append(one if all(young) else Ready(one.ask, rows))
            else:
                self.fates[Fate.STALE] += 1
                self._stale += 1
        before, self.ready = self.ready, kept
        if self._stale >= self._max_empty:
            oldest = before[-1].oldest[0]
            raise TrainingError(
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
        return again


def _fate_without_rows(group: Group) -> Fate | None:
    """Why a group has no two valid members; None if it has."""
    outcomes = Counter(member.outcome for member in group.members)
    if outcomes[Outcome.INVALID_TASK]:
        return Fate.INVALID_TASK
    if len(group.valid) >= 2:
        return None
    if sum(member.outcome.is_scored for member in group.members) >= 2:
        return Fate.NO_EVIDENCE
    ends = [outcome for outcome in outcomes if not outcome.is_scored]
    return Fate(str(ends[0])) if len(ends) == 1 else Fate.TOO_FEW_VALID
