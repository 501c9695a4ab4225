"""The figures of one turn of the loop: what arrived, what became of it, who waited for whom.

Rewards are means over all groups that ended in the turn, also those without a signal that no batch holds: means over
batches alone would show the filter. Failed rollouts are counted by outcome and by kind of error, and are in no mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from verifiers.train.advantages import tally_group
from verifiers.train.groups import Group
from verifiers.train.merge import MergeReport
from verifiers.train.rows import Row
from verifiers.train.tally import Tally


class Turn:
    """Counts from one report to the next."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._tally = Tally()
        self._merged = MergeReport()

    def arrived(self, group: Group, rows: Sequence[Row]) -> None:
        """A group has ended, with whatever fate; `rows` are what the algorithm made of it."""
        self._tally.add(tally_group(group, rows))
        self.counts["groups/ended"] += 1
        for outcome, count in Counter([member.outcome for member in group.members]).items():
            self.counts[f"outcomes/{outcome}"] += count
        for member in group.members:
            if member.error_kind is not None:
                self.counts[f"errors/{member.error_kind}"] += 1
        self.counts["tokens/sampled"] += sum([row.trainable for member in group.members for row in member.rows])
        valid = group.valid
        if valid:
            self._tally.mean(f"reward/{group.env_id}", [member.reward or 0.0 for member in valid])
        metrics: dict[str, list[float]] = {}
        for member in valid:
            for name, value in member.rows[0].metrics.items():
                metrics.setdefault(name, []).append(value)
        for name, values in metrics.items():
            self._tally.mean(f"metrics/{group.env_id}/{name}", values)
        self._merged.add(group.report)

    def figures(self) -> dict[str, float]:
        """What was counted. A mean of nothing is left out."""
        counts = {name: float(count) for name, count in sorted(self.counts.items())}
        return counts | self._tally.figures() | self._merged.metrics()


class Waits:
    """How long each side has waited since the last report, by the clock that it is given.

    The trainer waits while no step runs; the sampler while no rollout is in flight, or while its weights are replaced.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()
        self._waiting: dict[str, float] = {}
        self._waited: dict[str, float] = {}

    def mark(self, side: str, waiting: bool) -> None:
        """From now on that side waits, or no longer does."""
        if waiting:
            self._waiting.setdefault(side, self._clock())
        elif side in self._waiting:
            self._waited[side] = self._waited.get(side, 0.0) + self._clock() - self._waiting.pop(side)

    def take(self) -> tuple[float, dict[str, float]]:
        """Seconds since the last call, and `wait/SIDE_s` and `wait/SIDE_share` of them."""
        now = self._clock()
        for side in list(self._waiting):
            self.mark(side, False)
            self.mark(side, True)
        seconds, self._since = now - self._since, now
        waited, self._waited = self._waited, {}
        return seconds, _shares(waited, seconds)


def _shares(waited: Mapping[str, float], seconds: float) -> dict[str, float]:
    figures = {f"wait/{side}_s": time for side, time in waited.items()}
    if seconds > 0:
        figures |= {f"wait/{side}_share": time / seconds for side, time in waited.items()}
    return figures

