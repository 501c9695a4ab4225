"""Figures that add up exactly over micro-batches, ranks and groups: sums, counts and maxima. No torch.

    tally = Tally()
    tally.add(output)               # what has sums, counts and maxima: a LossOutput of tensors, a Tally of floats
    tally.figures()                 # {"loss/ratio": …, "loss/ratio/max": …}

A mean is a sum over a count, and only `figures` divides: the mean of means would depend on how rows were packed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


class Part(Protocol):
    """What adds up. Sums and counts have the same names, maxima names of their own."""

    @property
    def sums(self) -> Mapping[str, Any]: ...

    @property
    def counts(self) -> Mapping[str, Any]: ...

    @property
    def maxima(self) -> Mapping[str, Any]: ...


@dataclass(slots=True)
class Tally:
    """A `Part` that grows. Values are floats, or scalar tensors, which are added where they are without waiting."""

    sums: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    maxima: dict[str, Any] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        """Take in the figures of another part."""
        _merge(self.sums, part.sums, lambda one, other: one + other)
        _merge(self.counts, part.counts, lambda one, other: one + other)
        _merge(self.maxima, part.maxima, _larger)

    def mean(self, name: str, values: list[float]) -> None:
        """Count values, floats, of a mean."""
        self.sums[name] = self.sums.get(name, 0) + sum(values)
        self.counts[name] = self.counts.get(name, 0) + float(len(values))

    def on_host(self) -> Tally:
        """The same with floats."""
        parts = (self.sums, self.counts, self.maxima)
        return Tally(*({name: float(value) for name, value in part.items()} for part in parts))

    def figures(self) -> dict[str, float]:
        """Means as `name`, maxima as `name/max`. What nothing was counted for is left out: it is not 0."""
        means = {name: float(self.sums[name]) / float(count) for name, count in self.counts.items() if count}
        maxima = {f"{name}/max": float(value) for name, value in self.maxima.items() if value > float("-inf")}
        return means | maxima


def _merge(mine: dict[str, Any], theirs: Mapping[str, Any], join: Callable[[Any, Any], Any]) -> None:
    for name, value in theirs.items():
        mine[name] = join(mine[name], value) if name in mine else value


def _larger(one: Any, other: Any) -> Any:
    return one.maximum(other) if hasattr(one, "maximum") else max(one, other)
