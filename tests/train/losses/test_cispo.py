"""CISPO: the weight is clipped, and no token loses its gradient."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import run, tokens_of  # noqa: E402


def test_a_clipped_token_still_learns() -> None:
    """At r = 3 and A > 0 PPO has no gradient, CISPO −1.28·A; small ratios have no lower bound."""
    tokens = tokens_of(np.log([3.0, 0.1]) - 3, np.full(2, -3.0), [1.0, -2.0])
    assert run(tokens, kind="ppo").gradient[0] == 0.0
    result = run(tokens, kind="cispo")
    np.testing.assert_allclose(result.gradient, [-1.28, 0.2])
    assert result.figures["loss/clipped_high"] == 0.5


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), high=st.floats(0.01, 5))
def test_against_numpy(seed: int, high: float) -> None:
    """Values and gradients; none of these is 0."""
    tokens = oracles.random_tokens(seed, spread=2.0)
    value, gradient = oracles.cispo(tokens, high)
    result = run(tokens, kind="cispo", cispo_high=high)
    np.testing.assert_allclose([result.value, result.gradient], [value, gradient], atol=1e-12)
    assert result.gradient.all()
