"""Rows that begin with the same prompt, put behind it as one piece, so that the prompt is computed once. No torch.

    [prompt][reply 1][reply 2]…         each reply sees the prompt and itself, its positions go on from the prompt's

The members of a group differ from their first sampled token on. What stands before it is not trained, and its hidden
states are the same for all, so one copy serves: the loss and its gradient are those of whole rows (Prefix Grouper,
arXiv 2506.05433). Only the arithmetic differs, and `Sharing` says when there is less of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress, count

from verifiers.train.rows import Row


@dataclass(frozen=True, slots=True)
class Sharing:
    """What a model computes in one pass: `token` operations a token, and `pair` for each pair of places of a sequence.

    pair: 0 where attention goes row by row, as if rows were whole: then sharing always saves.
    """

    token: float
    pair: float

    def pays(self, prompt: int, own: int, length: int) -> bool:
        """Whether a row of `prompt` and `own` tokens is cheaper behind `length` places that have its prompt.

        Alone, it is half a square of attention, as kernels know plain causal attention; behind others it makes the
        square larger.
        """
        return prompt * self.token > self.pair * (own * (2 * length + own) - (prompt + own) ** 2 / 2)


@dataclass(slots=True)
class Unit:
    """Rows that are laid as one piece of `length` places: the first is whole, the others lack `prompt` tokens."""

    rows: list[int]
    length: int
    prompt: int = 0
    begins: list[int] = field(default_factory=list)
    """Where the parts of the others begin."""


def units_of(
    rows: Sequence[Row], numbers: Sequence[int], budget: int, parts: int = 1, sharing: Sharing | None = None
) -> list[Unit]:
    """The rows of these numbers as units, the longest first; `numbers` are given so too.

    A function of the rows alone, as packing is. parts: where fewer units would be left than ranks, none is shared.
    """
    single = [Unit([number], len(rows[number].tokens)) for number in numbers]
    if sharing is None or len(single) < 2:
        return single
    most = min(budget, max(single[0].length, sum(unit.length for unit in single) // parts))
    shared = _shared(rows, single, most, sharing)
    return sorted(shared, key=lambda unit: -unit.length) if len(shared) >= parts else single


def _shared(rows: Sequence[Row], single: list[Unit], most: int, sharing: Sharing) -> list[Unit]:
    units: list[Unit] = []
    having: dict[tuple[int, ...], Unit] = {}
    for one in single:
        row = rows[one.rows[0]]
        prompt = _prompt(row)
        unit = having.get(key := tuple(row.tokens[:prompt]))
        own = one.length - prompt
        if prompt and unit and unit.length + own <= most and sharing.pays(prompt, own, unit.length):
            unit.prompt = prompt
            unit.rows += one.rows
            unit.begins.append(unit.length)
            unit.length += own
        else:
            having[key] = one
            units.append(one)
    return units


def _prompt(row: Row) -> int:
    """How many tokens stand before the first sampled one; 0 in a row without one."""
    return next(compress(count(), row.mask), 0)
