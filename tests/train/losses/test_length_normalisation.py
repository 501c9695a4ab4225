"""What a step is divided by: the same gradient however rows are packed, split, or shared among ranks."""

import itertools
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.groups import row_of  # noqa: E402
from tests.train.losses.helpers import batch_of, figures  # noqa: E402
from verifiers.errors import ConfigError  # noqa: E402
from verifiers.train.config import LossConfig  # noqa: E402
from verifiers.train.losses.loss import make_loss  # noqa: E402
from verifiers.train.losses.normalise import denominator  # noqa: E402

NORMALISE: dict[str, dict[str, Any]] = {
    "token": {},
    "dr_grpo": {"normalise": "dr_grpo", "max_tokens": 16},
    "sequence": {"normalise": "sequence"},
}
LOSSES: dict[str, dict[str, Any]] = {
    "dppo": {"kl": 0.1, "entropy": 0.01},
    "gspo": {"kind": "gspo", "gspo_high": 0.3, "tis_cap": 2.0},
    "icepop": {"kind": "icepop", "sequence_mask": "geometric", "geometric_low": 0.7, "geometric_high": 1.3},
    "ppo": {"kind": "ppo", "off_policy_delta": 0.1, "dual_clip": 3.0},
}


def part_of(tokens: oracles.Tokens, rows: Iterable[int]) -> tuple[oracles.Tokens, Any]:
    """The tokens of these rows, numbered anew in this order, and where they were."""
    places = np.concatenate([np.flatnonzero(tokens.row == row) for row in rows]).astype(int)
    number = {row: index for index, row in enumerate(rows)}
    fields = {name: getattr(tokens, name)[places] for name in ("lp", "mu", "a", "w", "old", "ref", "ent")}
    return oracles.Tokens(row=np.array([number[row] for row in tokens.row[places]]), **fields), places


def rows_for(tokens: oracles.Tokens) -> list[Any]:
    """Rows with as many tokens and the same weights."""
    return [
        row_of(f"rollout-{row}", 0.0, int(length), weight=tokens.w[tokens.row == row][0])
        for row, length in enumerate(np.bincount(tokens.row))
    ]


def step(tokens: oracles.Tokens, parts: list[list[int]], config: LossConfig) -> tuple[float, Any, dict[str, float]]:
    """One update in these micro-batches: loss, gradient a token, figures."""
    below = denominator(rows_for(tokens), config)
    gradient, total, outputs = np.zeros_like(tokens.lp), 0.0, []
    for rows in parts:
        part, places = part_of(tokens, rows)
        batch = batch_of(part)
        outputs.append(output := make_loss(config)(batch))
        (output.total / below).backward()
        gradient[places] = batch.logprobs.grad.numpy()
        total += output.total.item() / below
    return total, gradient, figures(*outputs)


@pytest.mark.parametrize("normalise", sorted(NORMALISE))
@pytest.mark.parametrize("loss", sorted(LOSSES))
@settings(max_examples=6)
@given(data=st.data())
def test_micro_batches_do_not_matter(normalise: str, loss: str, data: st.DataObject) -> None:
    """One batch of 8 rows, 8 of 1, and any other partition in any order: loss, gradients, and figures to 1e-12."""
    tokens = oracles.random_tokens(data.draw(st.integers(0, 999)), lengths=(3, 1, 4, 2, 6, 1, 5, 2))
    config = LossConfig(**LOSSES[loss], **NORMALISE[normalise])
    whole = step(tokens, [list(range(8))], config)
    order = data.draw(st.permutations(range(8)))
    cuts = sorted(data.draw(st.sets(st.integers(1, 7))))
    parts = [list(order[begin:end]) for begin, end in itertools.pairwise([0, *cuts, 8])]
    for other in (step(tokens, [[row] for row in range(8)], config), step(tokens, parts, config)):
        assert other[0] == pytest.approx(whole[0], abs=1e-12)
        np.testing.assert_allclose(other[1], whole[1], atol=1e-12)
        assert other[2] == pytest.approx(whole[2], abs=1e-12)


@pytest.mark.parametrize("normalise", sorted(NORMALISE))
def test_denominators_add_up_over_ranks(normalise: str) -> None:
    """Two ranks sum theirs: that of all rows, before anybody goes backward."""
    config = LossConfig(**NORMALISE[normalise])
    rows = rows_for(oracles.random_tokens(0))
    assert denominator(rows, config) == pytest.approx(denominator(rows[:1], config) + denominator(rows[1:], config))
    assert denominator([], config) == 0.0


def test_token_is_the_mean_over_all_tokens() -> None:
    """DAPO: a long row counts as much as it is long; dropped tokens count below the line."""
    tokens = oracles.random_tokens(1, spread=2.0)
    total, _, shares = step(tokens, [[0, 1, 2, 3]], LossConfig(drift=0.0))
    assert total == pytest.approx(oracles.token_mean(tokens, oracles.dppo(tokens, 0.2)[0]))
    assert shares["loss/masked"] > 0


def test_sequence_is_the_mean_of_the_rollouts_means() -> None:
    """GRPO as published: each rollout's mean, its rows by their weights."""
    tokens = oracles.random_tokens(1)
    total, *_ = step(tokens, [[0, 1, 2, 3]], LossConfig(kind="reinforce", drift=0.0, normalise="sequence"))
    assert total == pytest.approx(oracles.rollout_mean(tokens, oracles.reinforce(tokens)[0]))


def test_dr_grpo_is_a_constant_a_rollout() -> None:
    """Σ over tokens / (N · L_max): a longer answer does not weigh its tokens less."""
    tokens = oracles.random_tokens(1)
    tokens.w = np.ones_like(tokens.lp)
    config = LossConfig(kind="reinforce", drift=0.0, normalise="dr_grpo", max_tokens=100)
    total, *_ = step(tokens, [[0, 1, 2, 3]], config)
    assert total == pytest.approx(oracles.reinforce(tokens)[0].sum() / (4 * 100))
    with pytest.raises(ConfigError, match=r"loss\.max_tokens is not set"):
        denominator(rows_for(tokens), LossConfig(normalise="dr_grpo"))


@pytest.mark.parametrize("normalise", sorted(NORMALISE))
@pytest.mark.parametrize("kind", ["reinforce", "ppo", "dppo"])
def test_a_forked_rollout_counts_once(normalise: str, kind: str) -> None:
    """The same tokens as one row of 10, or as rows of 6, 3 and 1 with weights of their shares: one gradient."""
    config = LossConfig(kind=kind, **NORMALISE[normalise])
    tokens = oracles.random_tokens(2, lengths=(10, 4))
    tokens.w = np.ones_like(tokens.lp)
    whole = step(tokens, [[0, 1]], config)
    forked = oracles.Tokens(**vars(tokens))
    forked.row = np.repeat([0, 1, 2, 3], [6, 3, 1, 4])
    forked.w = np.repeat([0.6, 0.3, 0.1, 1.0], [6, 3, 1, 4])
    other = step(forked, [[0, 3], [1], [2]], config)
    assert other[0] == pytest.approx(whole[0])
    np.testing.assert_allclose(other[1], whole[1], atol=1e-12)
