"""The drift regulariser: τ·(log r)² over all sampled tokens."""

import numpy as np
import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import batch_of, run, tokens_of  # noqa: E402
from verifiers.train.config import LossConfig  # noqa: E402
from verifiers.train.losses.loss import make_loss  # noqa: E402


@pytest.mark.parametrize("kind", ["dppo", "gspo", "reinforce"])
def test_it_is_added_to_any_loss(kind: str) -> None:
    """Value and gradient are those of the policy loss and τ times numpy's."""
    tokens = oracles.random_tokens(1)
    value, gradient = oracles.drift(tokens)
    plain, drifting = run(tokens, kind=kind), run(tokens, kind=kind, drift=0.5)
    np.testing.assert_allclose(drifting.value - plain.value, 0.5 * value, atol=1e-12)
    np.testing.assert_allclose(drifting.gradient - plain.gradient, 0.5 * gradient, atol=1e-12)
    assert drifting.figures["loss/drift"] == pytest.approx(value.mean())
    assert drifting.figures["loss/policy"] == pytest.approx(plain.figures["loss/policy"])


def test_descent_pulls_the_ratio_to_one() -> None:
    """Gradient steps on it alone end at log π = log μ, from both sides."""
    tokens = tokens_of([-1.0, -5.0], [-3.0, -3.0], 0.0)
    for _ in range(40):
        tokens.lp = tokens.lp - 0.2 * run(tokens, kind="reinforce", drift=1.0).gradient
    np.testing.assert_allclose(tokens.lp, tokens.mu, atol=1e-6)


def test_dropped_tokens_still_feel_it() -> None:
    """A token that a mask dropped has no policy gradient, and exactly that of the regulariser."""
    tokens = tokens_of(np.log([0.9]), np.log([0.1]), 1.0)
    assert run(tokens, kind="dppo").gradient[0] == 0.0
    assert run(tokens, kind="dppo", drift=1e-3).gradient[0] == pytest.approx(2e-3 * np.log(9))


def test_it_is_on_by_default() -> None:
    """With 1e-3: the default loss is made for a sampler that lags behind."""
    output = make_loss(LossConfig())(batch_of(oracles.random_tokens(0)))
    assert "loss/drift" in output.sums and LossConfig().drift == 1e-3
