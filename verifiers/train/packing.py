"""Rows into arrays: micro-batches under a token budget, packed or padded. numpy only.

    packed = pack(rows, budget=8192)          # several rows in one sequence where they fit
    for micro in packed.batches: …            # arrays of [B, T]; micro.source names the row of each segment
    packed.refused                            # rows that are longer than the budget, by their place in `rows`
    pack(rows, budget=8192, sharing=costs)    # a prompt of several rows stands once (verifiers.train.sharing)

What belongs together is said by `segments` alone, never inferred from ids: a padding id may be a token like any other
(huggingface/trl#4974). The order is a function of the rows' lengths, so equal rows give equal micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verifiers.train.routes import routes_of
from verifiers.train.rows import Row
from verifiers.train.sharing import Sharing, Unit, units_of

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
    source: Array
    """int64 [S]."""
    routes: Array | None = None
    """int16 [B, T, layers, k], experts of a mixture; -1 where unknown. None if no row knows its own."""
    prompts: Array | None = None
    """int64 [R, 3], of rows whose prompt is another's, in order: the flat place where their own part begins, that of
    the prompt, and its length. None if every row is whole."""

    @property
    def sampled(self) -> int:
        """How many tokens are trained."""
        return int(self.mask.sum())

    @property
    def shared(self) -> int:
        """How many tokens are left out, since they are another row's, too."""
        return 0 if self.prompts is None else int(self.prompts[:, 2].sum())

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


def pack(
    rows: Sequence[Row], budget: int, *, width: int | None = None, parts: int = 1, sharing: Sharing | None = None
) -> Packed:
    """Pack rows, the longest first, each into the first sequence with room (first fit decreasing).

    budget: places (B·T) of a micro-batch. width: of a sequence; None takes the longest row that is left, which keeps
    masked attention cheap, and `budget` makes one long sequence, for kernels that take segments of any length.
    parts: give at least so many micro-batches where there are as many rows, for as many ranks. sharing: rows that
    begin with the same prompt stand behind it, as one piece; None keeps every row whole.
    """
    return _batches(rows, budget, width, parts, alone=False, sharing=sharing)


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
        source=np.zeros(0, np.int64),
    )


def _batches(
    rows: Sequence[Row], budget: int, width: int | None, parts: int, *, alone: bool, sharing: Sharing | None = None
) -> Packed:
    lengths = [len(row.tokens) for row in rows]
    packed = Packed(refused=[number for number, length in enumerate(lengths) if length > budget])
    numbers = sorted((n for n, length in enumerate(lengths) if 0 < length <= budget), key=lambda n: -lengths[n])
    if not numbers:
        return packed
    units = units_of(rows, numbers, budget, parts, sharing)
    sizes = [unit.length for unit in units]
    left = list(range(len(units)))
    plan = _plan(left, sizes, budget, width, alone)
    if parts > 1:
        plan = _for_parts(plan, left, sizes, budget, width, parts, alone)
    columns = _Columns(rows, numbers)
    packed.batches = [_lay_out(rows, columns, [[units[n] for n in members] for members in bins]) for bins in plan]
    return packed


def _plan(left: list[int], lengths: list[int], budget: int, width: int | None, alone: bool) -> list[list[list[int]]]:
    """The sequences of each micro-batch, as numbers of units, which are rows or several with one prompt."""
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
    """The arrays of rows, one row behind the other, converted at once: a call of numpy for each of short rows costs
    more than what it does. begins: where each row begins, by its number."""

    __slots__ = ("advantages", "begins", "logprobs", "mask", "steps", "tokens")

    def __init__(self, rows: Sequence[Row], numbers: Sequence[int]) -> None:
        used = [rows[number] for number in numbers]
        begins = list(accumulate((len(row.tokens) for row in used), initial=0))
        self.begins = dict(zip(numbers, begins, strict=False))
        self.tokens = _joined([row.tokens for row in used], np.int64)
        self.mask = _joined([row.mask for row in used], np.bool_)
        self.mask[begins[:-1]] = False  # nothing predicts a first token
        self.logprobs = _joined([row.logprobs for row in used], np.float32)
        advantages = [[0.0] * len(row.tokens) if row.advantages is None else row.advantages for row in used]
        self.advantages = _joined(advantages, np.float32)
        self.steps = np.arange(max(len(row.tokens) for row in used))


def _joined(values: Sequence[Any], dtype: Any) -> Array:
    """Through iterators lists are three times as fast as by np.array."""
    if any(isinstance(part, np.ndarray) for part in values):
        return np.concatenate([np.asarray(part, dtype) for part in values])
    return np.fromiter(chain.from_iterable(values), dtype, sum(map(len, values)))


def _lay_out(rows: Sequence[Row], columns: _Columns, bins: list[list[Unit]]) -> MicroBatch:
    """The arrays of one micro-batch."""
    order = [number for members in bins for unit in members for number in unit.rows]
    used = [sum(unit.length for unit in members) for members in bins]
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
        source=np.array(order),
        routes=_no_routes(rows, order, shape),
        prompts=_prompts(bins, shape[1]),
    )
    flat = _flat(micro)
    segment = 0
    for sequence, members in enumerate(bins):
        end = sequence * shape[1]
        for unit in members:
            for number in unit.rows:
                row, skipped = rows[number], 0 if number == unit.rows[0] else unit.prompt
                begin, end, segment = end, end + len(row.tokens) - skipped, segment + 1
                _place(flat, slice(begin, end), columns, columns.begins[number], skipped)
                flat.segments[begin:end] = segment
                flat.weights[begin:end] = row.weight
                flat.temperatures[begin:end] = row.temperature
                if flat.routes is not None and (routes := routes_of(row)) is not None:
                    flat.routes[begin:end] = routes[skipped:]
    return micro


def _flat(micro: MicroBatch) -> MicroBatch:
    """The same arrays without the first dimension."""
    names = (one.name for one in fields(MicroBatch) if one.name not in ("source", "prompts", "routes"))
    routes = None if micro.routes is None else micro.routes.reshape(-1, *micro.routes.shape[2:])
    return replace(micro, routes=routes, **{name: getattr(micro, name).reshape(-1) for name in names})


def _place(flat: MicroBatch, where: slice, columns: _Columns, begin: int, skipped: int) -> None:
    """Lay a row, which begins there in the columns, without its first `skipped` tokens, which are another's."""
    length = skipped + where.stop - where.start
    own = slice(begin + skipped, begin + length)
    flat.tokens[where] = columns.tokens[own]
    flat.positions[where] = columns.steps[skipped:length]
    flat.mask[where] = columns.mask[own]
    flat.logprobs[where] = columns.logprobs[own]
    flat.advantages[where] = columns.advantages[own]


def _prompts(bins: list[list[Unit]], width: int) -> Array | None:
    """`MicroBatch.prompts`."""
    found = []
    for sequence, members in enumerate(bins):
        begin = sequence * width
        for unit in members:
            found += [(begin + own, begin, unit.prompt) for own in unit.begins]
            begin += unit.length
    return np.array(found, np.int64) if found else None


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
