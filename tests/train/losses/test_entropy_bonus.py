"""The entropy bonus."""

import numpy as np
import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import batch_of, run  # noqa: E402
from verifiers.errors import ConfigError  # noqa: E402
from verifiers.train.config import LossConfig  # noqa: E402
from verifiers.train.losses.logprobs import token_logprobs  # noqa: E402
from verifiers.train.losses.loss import make_loss  # noqa: E402


def test_it_is_subtracted_from_the_loss() -> None:
    """−0.1·H a token, masked or not; the gradient goes to the entropy and nowhere else."""
    tokens = oracles.random_tokens(2)
    assert tokens.ent is not None
    plain, with_bonus = run(tokens, kind="dppo"), run(tokens, kind="dppo", entropy=0.1)
    np.testing.assert_allclose(with_bonus.value, plain.value - 0.1 * tokens.ent, atol=1e-12)
    np.testing.assert_allclose(with_bonus.gradient, plain.gradient)
    batch = batch_of(tokens)
    make_loss(LossConfig(entropy=0.1))(batch).total.backward()
    np.testing.assert_allclose(batch.entropy.grad.numpy(), -0.1)


def test_descent_flattens_the_distribution() -> None:
    """Through token_logprobs to the logits: gradient steps on the bonus alone end at the uniform distribution."""
    logits = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    for _ in range(300):
        _, entropy = token_logprobs(logits, torch.tensor([0]), 1.0, entropy_gradient=True)
        (gradient,) = torch.autograd.grad(-entropy.sum(), logits)
        logits.data -= gradient
    np.testing.assert_allclose(logits.detach().softmax(-1).numpy(), 1 / 3, atol=1e-3)


def test_it_needs_the_entropy() -> None:
    """A batch without it is a mistake of the caller, who is told."""
    tokens = oracles.random_tokens(2)
    tokens.ent = None
    with pytest.raises(ConfigError, match=r"loss\.entropy needs the entropy of the policy"):
        run(tokens, entropy=0.1)
