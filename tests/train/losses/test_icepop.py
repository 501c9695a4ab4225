"""IcePop: tokens whose ratio leaves [0.5, 5] lose their loss; the others are importance-weighted."""

import numpy as np
import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import run, tokens_of  # noqa: E402


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_both_sides_at_their_bounds(advantage: float) -> None:
    """0.49 is dropped, 0.5 and 5 are kept, 5.01 is dropped, whatever the sign: the gradient is exactly 0 or −rA."""
    r = np.array([0.49, 0.5, 1.0, 5.0, 5.01])
    # Ratios of exact thresholds, in float64: the log of 5 has to come back as at most 5.
    mu = np.full(5, -3.0)
    lp = mu + np.log(r) + np.array([0, 1e-15, 0, -1e-15, 0])
    result = run(tokens_of(lp, mu, advantage), kind="icepop")
    expected = -advantage * np.array([0, 0.5, 1, 5, 0])
    np.testing.assert_allclose(result.value, expected, atol=1e-12)
    np.testing.assert_allclose(result.gradient, expected, atol=1e-12)
    assert result.gradient[0] == 0.0 and result.gradient[4] == 0.0
    assert result.figures["loss/masked/icepop_low"] == 0.2 and result.figures["loss/masked/icepop_high"] == 0.2
    assert result.figures["loss/masked"] == 0.4


def test_the_bounds_themselves_are_kept() -> None:
    """r = 1 exactly, at bounds of 1 and 1: the only ratio that these leave."""
    settings = {"kind": "icepop", "icepop_low": 1.0, "icepop_high": 1.0}
    assert list(run(tokens_of([-1.0, -1.0, -1.0], [-1.0, -1.001, -0.999], 1.0), **settings).gradient) == [-1, 0, 0]


@pytest.mark.parametrize("bounds", [(0.125, 8.0), (0.5, 5.0), (0.9, 1.1)])
def test_other_bounds(bounds: tuple[float, float]) -> None:
    """Against numpy, with the numbers of 2025 and of the reports."""
    tokens = oracles.random_tokens(11, lengths=(9, 7, 5), spread=1.5)
    value, gradient = oracles.icepop(tokens, *bounds)
    result = run(tokens, kind="icepop", icepop_low=bounds[0], icepop_high=bounds[1])
    np.testing.assert_allclose(result.value, value, atol=1e-12)
    np.testing.assert_allclose(result.gradient, gradient, atol=1e-12)
    assert np.count_nonzero(gradient == 0) > 0


def test_the_gradient_is_that_of_a_detached_ratio() -> None:
    """r with its gradient, and sg(r)·log π: the same at the point."""
    tokens = oracles.random_tokens(5)
    kept = np.abs(tokens.lp - tokens.mu) < np.log(2)
    r = np.exp(tokens.lp - tokens.mu)
    numeric = oracles.numeric(lambda t: np.where(kept, -r * t.a * t.lp, 0.0), tokens)
    result = run(tokens, kind="icepop", icepop_low=0.5, icepop_high=2.0)
    np.testing.assert_allclose(result.gradient, numeric, atol=1e-8)
