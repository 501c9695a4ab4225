"""Micro-batches hold every row once, whole, apart from the others, and never more than the budget."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.train.trainer.rows_for_tests import as_numpy, eight_rows, make_row
from verifiers.clients.routes import pack_routes
from verifiers.errors import EvidenceError
from verifiers.train.packing import MicroBatch, nothing, pack, pad
from verifiers.train.routes import routes_of
from verifiers.train.sharing import Sharing

LENGTHS = st.lists(st.integers(2, 40), max_size=30)


@given(
    lengths=LENGTHS,
    budget=st.integers(1, 120),
    parts=st.integers(1, 3),
    way=st.sampled_from(["pad", "pack", "share"]),
)
@settings(max_examples=200, deadline=None)
def test_every_row_is_there_once_and_whole(lengths: list[int], budget: int, parts: int, way: str) -> None:
    """What fits stands in exactly one place, in its order, with positions from 0; what does not is named. Of a row
    whose prompt is another's only the rest has a place of its own."""
    rows = [make_row(length, min(length - 1, 1 + seed % 3), seed % 3) for seed, length in enumerate(lengths)]
    sharing = Sharing(1.0, 0.01) if way == "share" else None
    packed = pad(rows, budget, parts=parts) if way == "pad" else pack(rows, budget, parts=parts, sharing=sharing)
    assert packed.refused == [n for n, row in enumerate(rows) if len(row.tokens) > budget]
    seen = sorted(packed.refused + [int(n) for micro in packed.batches for n in micro.source])
    assert seen == list(range(len(rows)))
    for micro in packed.batches:
        assert micro.tokens.size <= budget
        assert way != "pad" or micro.isolated
        for segment, number in enumerate(micro.source, start=1):
            there, row = np.flatnonzero(micro.segments == segment), rows[number]
            there = np.concatenate([prompt_of(micro, there[0]), there])
            assert flat(micro.tokens)[there].tolist() == row.tokens
            assert flat(micro.positions)[there].tolist() == list(range(len(row.tokens)))
            assert flat(micro.mask)[there].tolist() == row.mask
            assert np.allclose(flat(micro.logprobs)[there], row.logprobs)
            assert np.allclose(flat(micro.advantages)[there], row.advantages or [])
        assert (micro.segments > 0).sum() + micro.shared == sum(len(rows[n].tokens) for n in micro.source)


def flat(values: Any) -> Any:
    return values.reshape(-1)


def prompt_of(micro: MicroBatch, begin: int) -> Any:
    """Places, in the same sequence, of the prompt of the row whose own part begins here."""
    for own, at, length in [] if micro.prompts is None else micro.prompts:
        if own == begin:
            assert at // micro.tokens.shape[1] == own // micro.tokens.shape[1] and length > 0
            return np.arange(at, at + length)
    return np.arange(0)


def test_prompts_are_shared_while_that_is_cheaper() -> None:
    """Under a mask a long reply behind others costs more attention than the prompt saves; row by row it never does.
    Each rank has something to do."""
    for own, behind in ((4, 8), (40, 4), (400, 1)):
        rows = [make_row(100 + own, 100, 0) for _ in range(8)]
        masked = pack(rows, 8192, sharing=Sharing(1.0, 0.01))
        assert masked.batches[0].tokens.shape[1] == 100 + behind * own
        (row_by_row,) = pack(rows, 8192, sharing=Sharing(1.0, 0.0)).batches
        assert row_by_row.tokens.shape == (1, 100 + 8 * own) and row_by_row.shared == 700
        assert len(pack(rows, 8192, sharing=Sharing(1.0, 0.0), parts=2).batches) == 2


def test_equal_rows_make_equal_batches() -> None:
    """The order depends on the rows alone, and lists or arrays make no difference."""
    first, second = pack(eight_rows(), 64), pack([as_numpy(row) for row in eight_rows()], 64)
    for one, other in zip(first.batches, second.batches, strict=True):
        for name in ("tokens", "positions", "segments", "mask", "logprobs", "advantages", "weights", "source"):
            assert np.array_equal(getattr(one, name), getattr(other, name))


def test_packing_fills_what_padding_wastes() -> None:
    """Short rows share a sequence: a long row and many short ones take a third of the places."""
    rows = [make_row(64, 8), *(make_row(8, 2, seed) for seed in range(32))]
    packed, padded = pack(rows, 1024), pad(rows, 8192)
    filled, wasted = ([(one.segments > 0).mean() for one in made.batches] for made in (packed, padded))
    assert set(filled) == {1.0} and max(wasted) < 0.2
    assert pack(rows, 1024, width=1024).batches[0].tokens.shape == (1, 64 + 32 * 8)


def test_padding_is_said_and_not_inferred() -> None:
    """A row may consist of the padding id, at its end too (huggingface/trl#4974)."""
    rows = [make_row(6, 2, tokens=[0] * 6), make_row(9, 2)]
    (micro,) = pad(rows, 64).batches
    assert (micro.segments[1] == 2).sum() == 6 and micro.mask[1].sum() == 4


def test_behind_packed_rows_the_padding_is_a_segment_of_its_own() -> None:
    """Its positions restart, which is what attention goes by; behind a row alone they go on."""
    (packed,) = pack([make_row(10, 2), make_row(4, 2), make_row(4, 2)], 20).batches
    assert packed.positions.tolist() == [list(range(10)), [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]]
    (padded,) = pad([make_row(5, 2), make_row(3, 2)], 20).batches
    assert padded.positions.tolist() == [list(range(5)), list(range(5))]


def test_the_first_token_of_a_row_has_nothing_to_predict_it() -> None:
    """Even if it was sampled, of an empty prompt; the token of the row before it must not predict it."""
    (micro,) = pack([make_row(4, 0), make_row(4, 0, 1)], 4 * 2, width=8).batches
    assert micro.mask.tolist() == [[False, True, True, True] * 2]


def test_enough_micro_batches_for_the_ranks() -> None:
    """With a budget that holds all, two ranks still get about half each."""
    sizes = [micro.tokens.size for micro in pack(eight_rows(), 8192, parts=2).batches]
    assert len(sizes) == 2 and max(sizes) < 1.5 * min(sizes)
    assert nothing().sampled == 0 and isinstance(nothing(), MicroBatch)


# --- routes of a mixture of experts --------------------------------------------------------------------------------


def test_routes_of_turns_are_laid_over_each_other() -> None:
    """Each turn reports from `start` on; the first report of a token counts, the last token has none."""
    first = np.arange(12).reshape(3, 2, 2) % 4
    second = np.full((4, 2, 2), 7)
    row = make_row(8, 2, routed_experts=[pack_routes(first), {**(pack_routes(second) or {}), "start": 2}])
    routes = routes_of(row)
    assert routes is not None and routes[:3].tolist() == first.tolist()
    assert (routes[3:6] == 7).all() and (routes[6:] == -1).all()
    (micro,) = pack([row, make_row(8, 2)], 64, width=16).batches
    assert micro.routes is not None and micro.routes.shape == (1, 16, 2, 2)
    assert micro.routes[0, :8].tolist() == routes.tolist() and (micro.routes[0, 8:] == -1).all()


def test_routes_come_as_lists_arrays_or_bytes() -> None:
    """They say the same; rows without any have none."""
    experts = np.array([[[1, 2]], [[300, 0]]])
    for report in (experts, experts.tolist(), pack_routes(experts)):
        routes = routes_of(make_row(4, 2, routed_experts=[report]))
        assert routes is not None and routes[:2].tolist() == experts.tolist()
    assert routes_of(make_row()) is None and routes_of(make_row(routed_experts=[])) is None


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"data": "%%", "dtype": "int16", "shape": [1, 1, 1]}, "no routes of experts"),
        ({"start": 0}, "no routes of experts"),
        ([[1, 2]], "not \\[tokens, layers, k\\]"),
        ([[[1]]] * 9, "from token 0 on"),
    ],
    ids=["no base64", "no data", "two axes", "too long"],
)
def test_what_is_no_report_of_routes(report: object, said: str) -> None:
    """An EvidenceError says so: wrong routes would train the wrong experts."""
    with pytest.raises(EvidenceError, match=said):
        routes_of(make_row(8, 2, routed_experts=[report]))
