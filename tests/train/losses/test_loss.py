"""The losses as they are put together: every kind against numpy, and what holds for all of them."""

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import batch_of, figures, run  # noqa: E402
from verifiers.train.config import LossConfig  # noqa: E402
from verifiers.train.losses.loss import make_loss  # noqa: E402
from verifiers.train.losses.tokens import TokenBatch  # noqa: E402

KINDS: dict[str, Any] = {
    "reinforce": oracles.reinforce,
    "icepop": lambda t: oracles.icepop(t, 0.5, 5.0),
    "dppo": lambda t: oracles.dppo(t, 0.2),
    "ppo": lambda t: oracles.ppo(t, 0.2, 0.28),
    "gspo": lambda t: oracles.gspo(t, 3e-4, 4e-4),
    "cispo": lambda t: oracles.cispo(t, 0.28),
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("seed", range(5))
def test_value_and_gradient_are_those_of_numpy(kind: str, seed: int) -> None:
    """Every kind, with its defaults, to 1e-12 in float64."""
    tokens = oracles.random_tokens(seed)
    value, gradient = KINDS[kind](tokens)
    result = run(tokens, kind=kind)
    np.testing.assert_allclose(result.value, value, atol=1e-12)
    np.testing.assert_allclose(result.gradient, gradient, atol=1e-12)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_float32_is_close(kind: str) -> None:
    """What trainers hand in is float32."""
    tokens = oracles.random_tokens(3)
    value, gradient = KINDS[kind](tokens)
    result = run(tokens, torch.float32, kind=kind)
    np.testing.assert_allclose(result.value, value, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.gradient, gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_no_tokens_give_a_zero_with_gradient(kind: str) -> None:
    """A rank without rows goes backward with the others, and its names of figures are theirs."""
    none = oracles.random_tokens(0, lengths=())
    config = LossConfig(
        kind=kind, sequence_mask="geometric", off_policy_delta=0.1, kl=0.1, entropy=0.1, normalise="sequence"
    )
    loss, batch = make_loss(config), batch_of(none)
    output = loss(batch)
    output.total.backward()
    assert output.total.item() == 0.0 and batch.logprobs.grad.shape == (0,)
    full = loss(batch_of(oracles.random_tokens(0)))
    assert (output.sums.keys(), output.counts.keys(), output.maxima.keys()) == (
        full.sums.keys(),
        full.counts.keys(),
        full.maxima.keys(),
    )
    assert figures(output) == {} and figures(output, full) == figures(full) == figures(full, output)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_extreme_ratios_stay_finite(kind: str) -> None:
    """Ratios of e^±200, masked or not: no inf, no NaN, in values and gradients."""
    batch = TokenBatch(
        logprobs=torch.tensor([-1e-3, -200.0, -1e-3, -200.0], requires_grad=True),
        sampler_logprobs=torch.tensor([-200.0, -1e-3, -200.0, -1e-3]),
        advantages=torch.tensor([1.0, 1.0, -1.0, -1.0]),
        sequence=torch.arange(4),
        weights=torch.ones(4),
    )
    output = make_loss(LossConfig(kind=kind))(batch)
    output.total.backward()
    assert torch.isfinite(output.per_token).all() and torch.isfinite(batch.logprobs.grad).all()
