"""Truncated importance sampling: a weight of min(old policy / sampler, cap), without gradient."""

import numpy as np
import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import run, tokens_of  # noqa: E402


def test_a_weight_of_ten_is_capped_at_two() -> None:
    """ρ = 10 weighs 2, ρ = 0.1 weighs 0.1; both are told."""
    lp = np.log([0.5, 0.5])
    tokens = tokens_of(lp, lp - np.log([10, 0.1]), 1.0)
    result = run(tokens, kind="reinforce", tis_cap=2.0)
    np.testing.assert_allclose(result.gradient, [-2, -0.1])
    np.testing.assert_allclose(result.value, [-2 * lp[0], -0.1 * lp[1]])
    assert result.figures["loss/tis_weight"] == pytest.approx(1.05) and result.figures["loss/tis_capped"] == 0.5


def test_no_gradient_flows_through_the_weight() -> None:
    """On the first update ρ = π/μ, and still it is a constant: the gradient is −ρA, not −ρA(1 + log π)."""
    tokens = oracles.random_tokens(8)
    tokens.old = None
    result = run(tokens, kind="reinforce", tis_cap=100.0)
    np.testing.assert_allclose(result.gradient, -np.exp(tokens.lp - tokens.mu) * tokens.a, atol=1e-12)


@pytest.mark.parametrize("kind", ["reinforce", "ppo", "gspo", "cispo"])
def test_every_kind_that_takes_it_is_weighted(kind: str) -> None:
    """The rest of the loss is then against the old policy: against the sampler it would be corrected twice."""
    tokens = oracles.random_tokens(9)
    assert tokens.old is not None
    weight = oracles.tis(tokens, 1.5)
    against_old = oracles.Tokens(tokens.lp, tokens.old, tokens.a, tokens.row, tokens.w)
    plain, weighted = run(against_old, kind=kind), run(tokens, kind=kind, tis_cap=1.5)
    np.testing.assert_allclose(weighted.value, weight * plain.value, atol=1e-12)
    np.testing.assert_allclose(weighted.gradient, weight * plain.gradient, atol=1e-12)
