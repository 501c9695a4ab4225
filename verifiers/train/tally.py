"""Figures that add up exactly over micro-batches, ranks and groups: sums, counts and maxima. No torch.

    tally = Tally()
    tally.add(output.sums, output.counts, output.maxima)     # of losses: tensors; of groups: floats
    tally.figures()                                          # {"loss/ratio": …, "loss/ratio/max": …}

A mean is a sum over a count, and only `figures` divides: the mean of means would depend on how rows were packed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Tally:
    """Sums and counts have the same names, maxima names of their own. Values are floats, or scalars that act alike."""

    sums: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    maxima: dict[str, Any] = field(default_factory=dict)

    def add(self, sums: Mapping[str, Any], counts: Mapping[str, Any], maxima: Mapping[str, Any]) -> None:
        """Take in the figures of another part."""
        for mine, theirs in ((self.sums, sums), (self.counts, counts)):
            for name, value in theirs.items():
                mine[name] = mine[name] + value if name in mine else value
        for name, value in maxima.items():
            known = self.maxima.get(name)
            self.maxima[name] = value if known is None or value > known else known

    def mean(self, name: str, values: list[float]) -> None:
        """Count values, floats, of a mean."""
        self.add({name: sum(values)}, {name: float(len(values))}, {})

    def figures(self) -> dict[str, float]:
        """Means as `name`, maxima as `name/max`. What nothing was counted for is left out: it is not 0."""
        means = {name: float(self.sums[name]) / float(count) for name, count in self.counts.items() if count}
        maxima = {f"{name}/max": float(value) for name, value in self.maxima.items() if value > float("-inf")}
        return means | maxima
