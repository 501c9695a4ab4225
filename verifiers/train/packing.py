"""Rows into arrays: micro-batches under a token budget, packed or padded. numpy only.

    packed = pack(rows, budget=8192)          # several rows in one sequence where they fit
    for micro in packed.batches: …            # arrays of [B, T]; micro.source names the row of each segment
    packed.refused                            # rows that are longer than the budget, by their place in `rows`

What belongs together is said by `segments` alone, never inferred from ids: a padding id may be a token like any other
(huggingface/trl#4974). The order is a function of the rows' lengths, so equal rows give equal micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verifiers.train.routes import routes_of
from verifiers.train.rows import Row

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass: B sequences of T tokens, each of one or more segments (rows) and then padding.

    mask: true on sampled tokens that have a token before them, which is what predicts them. segments: 0 is padding,
    1..S count the rows over the whole micro-batch. source: [S], where each row stood in what was packed.
    """

    tokens: Array
    """int64 [B, T]; padding is 0."""
    positions: Array
    """int64 [B, T]; 0 at the first token of each row, and of the padding behind packed rows."""
    segments: Array
    """int64 [B, T]."""
    mask: Array
    """bool [B, T]."""
    logprobs: Array
    """float32 [B, T], of the sampler."""
    advantages: Array
    """float32 [B, T]."""
    weights: Array
    """float32 [B, T], `Row.weight`."""
    temperatures: Array
    """float32 [B, T], at which the row was sampled."""
    versions: Array
    """int64 [B, T], of the policy that sampled."""
    source: Array
    """int64 [S]."""
    routes: Array | None = None
    """int16 [B, T, layers, k], experts of a mixture; -1 where unknown. None if no row knows its own."""

    @property
    def sampled(self) -> int:
        """How many tokens are trained."""
        return int(self.mask.sum())

    @property
    def isolated(self) -> bool:
        """Whether each sequence holds one row alone, so that plain causal attention is right."""
        return len(self.source) == len(self.tokens)


@dataclass(slots=True)
class Packed:
    """What `pack` made of the rows; the longest micro-batches come first."""

    batches: list[MicroBatch] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    """Rows longer than the budget."""

    @property
    def efficiency(self) -> float:
        """Share of the places that hold a token; 1 for no batches."""
        places = sum(micro.tokens.size for micro in self.batches)
        return sum(int((micro.segments > 0).sum()) for micro in self.batches) / places if places else 1.0


def pack(rows: Sequence[Row], budget: int, *, width: int | None = None, parts: int = 1) -> Packed:
    """Pack rows, the longest first, each into the first sequence with room (first fit decreasing).

    budget: places (B·T) of a micro-batch. width: of a sequence; None takes the longest row that is left, which keeps
    masked attention cheap, and `budget` makes one long sequence, for kernels that take segments of any length.
    parts: give at least so many micro-batches where there are as many rows, for as many ranks.
    """
    return _batches(rows, budget, width, parts, alone=False)


def pad(rows: Sequence[Row], budget: int, *, parts: int = 1) -> Packed:
    """The same, with each row in a sequence of its own."""
    return _batches(rows, budget, None, parts, alone=True)


def nothing() -> MicroBatch:
    """A micro-batch of one place of padding, for a rank that has no rows while others do."""
    integers = np.zeros((1, 1), np.int64)
    reals = np.zeros((1, 1), np.float32)
    return MicroBatch(
        tokens=integers,
        positions=integers,
        segments=integers,
        mask=np.zeros((1, 1), np.bool_),
        logprobs=reals,
        advantages=reals,
        weights=reals,
        temperatures=reals + 1,
        versions=integers,
        source=np.zeros(0, np.int64),
    )


def _batches(rows: Sequence[Row], budget: int, width: int | None, parts: int, *, alone: bool) -> Packed:
    lengths = [len(row.tokens) for row in rows]
    packed = Packed(refused=[number for number, length in enumerate(lengths) if length > budget])
    left = sorted((n for n, length in enumerate(lengths) if 0 < length <= budget), key=lambda n: -lengths[n])
    if not left:
        return packed
    plan = _plan(left, lengths, budget, width, alone)
    if parts > 1:
        plan = _for_parts(plan, left, lengths, budget, width, parts, alone)
    columns = {number: _Columns(rows[number]) for number in left}
    packed.batches = [_lay_out(rows, columns, bins) for bins in plan]
    return packed


def _plan(left: list[int], lengths: list[int], budget: int, width: int | None, alone: bool) -> list[list[list[int]]]:
    """The sequences of each micro-batch, as numbers of rows."""
    plan = []
    while left:
        bins, left = _fill(left, lengths, budget, min(width or lengths[left[0]], budget), alone)
        plan.append(bins)
    return plan


def _for_parts(
    plan: list[list[list[int]]],
    left: list[int],
    lengths: list[int],
    budget: int,
    width: int | None,
    parts: int,
    alone: bool,
) -> list[list[list[int]]]:
    """A plan with at least `parts` micro-batches, and a multiple of them if a somewhat smaller budget gives one."""
    rounds = -(-len(plan) // parts)
    share = sum(lengths[number] for number in left) / (parts * rounds)
    for room in (1.0, 1.1, 1.25, 1.5):
        smaller = min(budget, max(int(share * room), lengths[left[0]]))
        found = _plan(left, lengths, smaller, min(width, smaller) if width else None, alone)
        if len(found) % parts == 0:
            return found
    return plan if len(plan) >= parts else found


def _fill(
    left: list[int], lengths: list[int], budget: int, width: int, alone: bool
) -> tuple[list[list[int]], list[int]]:
    """The sequences of one micro-batch, and the rows that found no room in it."""
    bins: list[list[int]] = []
    room: list[int] = []
    open_from = 0  # sequences before it are full: too little room for the shortest row
    most, shortest = budget // width, lengths[left[-1]]
    for place, number in enumerate(left):
        length = lengths[number]
        found = next((b for b in range(open_from, len(bins)) if room[b] >= length), None)
        if found is None and len(bins) < most:
            found = len(bins)
            bins.append([])
            room.append(width)
        if found is not None:
            bins[found].append(number)
            room[found] = 0 if alone else room[found] - length
            while open_from < len(bins) and room[open_from] < shortest:
                open_from += 1
            if open_from == most:
                return bins, _without(left[: place + 1], bins) + left[place + 1 :]
    return bins, _without(left, bins)


def _without(numbers: list[int], bins: list[list[int]]) -> list[int]:
    placed = {number for members in bins for number in members}
    return [number for number in numbers if number not in placed]


class _Columns:
    """The arrays of one row, converted once. Lists go through iterators: three times as fast as np.array."""

    __slots__ = ("advantages", "logprobs", "mask", "temperature", "tokens", "versions", "weight")

    def __init__(self, row: Row) -> None:
        self.tokens = _column(row.tokens, np.int64)
        self.mask = _column(row.mask, np.bool_)
        self.logprobs = _column(row.logprobs, np.float32)
        self.versions = _column(row.versions, np.int64)
        self.advantages = (
            np.zeros(len(self.tokens), np.float32)
            if row.advantages is None
            else _column(row.advantages, np.float32)
        )
        self.weight = row.weight
        self.temperature = row.temperature


def _column(values: Any, dtype: Any) -> Array:
    if isinstance(values, np.ndarray):
        return values.astype(dtype, copy=False)
    if dtype is np.bool_:
        return np.frombuffer(bytes(values), np.bool_)
    return np.fromiter(values, dtype, len(values))


def _lay_out(rows: Sequence[Row], columns: dict[int, _Columns], bins: list[list[int]]) -> MicroBatch:
    """The arrays of one micro-batch."""
    order = [number for members in bins for number in members]
    used = [sum(len(columns[number].tokens) for number in members) for members in bins]
    shape = (len(bins), max(used))
    micro = MicroBatch(
        tokens=np.zeros(shape, np.int64),
        positions=_resting(shape, used, alone=len(order) == len(bins)),
        segments=np.zeros(shape, np.int64),
        mask=np.zeros(shape, np.bool_),
        logprobs=np.zeros(shape, np.float32),
        advantages=np.zeros(shape, np.float32),
        weights=np.zeros(shape, np.float32),
        temperatures=np.ones(shape, np.float32),
        versions=np.zeros(shape, np.int64),
        source=np.array(order),
        routes=_no_routes(rows, order, shape),
    )
    segment = 0
    for sequence, members in enumerate(bins):
        end = 0
        for number in members:
            begin, end, segment = end, end + len(columns[number].tokens), segment + 1
            _place(micro, (sequence, slice(begin, end)), columns[number], segment)
            if micro.routes is not None and (routes := routes_of(rows[number])) is not None:
                micro.routes[sequence, begin:end] = routes
    return micro


def _place(micro: MicroBatch, where: tuple[int, slice], column: _Columns, segment: int) -> None:
    micro.tokens[where] = column.tokens
    micro.positions[where] = np.arange(len(column.tokens))
    micro.segments[where] = segment
    micro.mask[where] = column.mask
    micro.mask[where[0], where[1].start] = False
    micro.logprobs[where] = column.logprobs
    micro.advantages[where] = column.advantages
    micro.weights[where] = column.weight
    micro.temperatures[where] = column.temperature
    micro.versions[where] = column.versions


def _resting(shape: tuple[int, int], used: list[int], *, alone: bool) -> Array:
    """Positions of the padding. Behind a row alone they go on, so that the whole is seen as one causal sequence;
    behind packed rows they restart, which makes the padding a segment that nobody looks at."""
    steps = np.tile(np.arange(shape[1], dtype=np.int64), (shape[0], 1))
    return steps if alone else np.maximum(steps - np.array(used)[:, None], 0)


def _no_routes(rows: Sequence[Row], order: list[int], shape: tuple[int, int]) -> Array | None:
    """Room for the experts of these rows; None if no row knows its own."""
    for number in order:
        if rows[number].routed_experts and (routes := routes_of(rows[number])) is not None:
            return np.full((*shape, *routes.shape[1:]), -1, np.int16)
    return None
