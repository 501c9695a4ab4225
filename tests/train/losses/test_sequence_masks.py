"""Whole rows by their ratio to the sampler: geometric mean, or product."""

import numpy as np
import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import run, tokens_of  # noqa: E402


def test_the_length_trap() -> None:
    """The same gap of 0.005 a token: the product drops the row of 1,000 tokens only, the geometric mean neither."""
    row = np.repeat([0, 1], [10, 1000])
    tokens = tokens_of(np.full(1010, -1.0), np.full(1010, -1.005), 1.0, row)
    product = run(tokens, kind="reinforce", sequence_mask="product")
    geometric = run(tokens, kind="reinforce", sequence_mask="geometric")
    assert set(product.gradient[:10]) == {-1.0} and not product.gradient[10:].any()
    assert set(geometric.gradient) == {-1.0}
    assert product.figures["loss/masked/product"] == pytest.approx(1000 / 1010)


@pytest.mark.parametrize(("gap", "kept"), [(0.0, True), (0.009, True), (-0.009, True), (0.011, False), (-0.011, False)])
def test_the_geometric_mean_has_two_sides(gap: float, kept: bool) -> None:
    """Mean ratios in [0.99, 1.01]; single tokens may be anywhere."""
    wiggle = np.array([0.5, -0.5, 0.0])
    tokens = tokens_of(-2 + wiggle + gap, np.full(3, -2.0), -1.0, [0, 0, 0])
    result = run(tokens, kind="reinforce", sequence_mask="geometric")
    assert result.gradient.all() == kept and result.gradient.any() == kept


def test_the_product_has_an_upper_side_only() -> None:
    """A row that became unlikely is not dropped: its ratios weigh it down."""
    tokens = tokens_of([-5.0, -5.0], [-1.0, -1.0], 1.0, [0, 0])
    assert run(tokens, kind="reinforce", sequence_mask="product").gradient.all()


@pytest.mark.parametrize("seed", range(4))
def test_against_numpy(seed: int) -> None:
    """With an old policy it is that which is compared; without, the present one. The masks have no gradient."""
    tokens = oracles.random_tokens(seed, lengths=(3, 1, 4, 2, 8), spread=0.3)
    for old in (tokens.old, None):
        tokens.old = old
        kept = oracles.geometric_kept(tokens, 0.9, 1.1)
        result = run(
            tokens, kind="icepop", sequence_mask="geometric", geometric_low=0.9, geometric_high=1.1, icepop_low=0.01
        )
        np.testing.assert_allclose(result.gradient, np.where(kept, oracles.importance(tokens)[1], 0), atol=1e-12)
        kept = oracles.product_kept(tokens, 1.2)
        result = run(tokens, kind="reinforce", sequence_mask="product", product_cap=1.2)
        np.testing.assert_allclose(result.gradient, np.where(kept, -tokens.a, 0), atol=1e-12)
