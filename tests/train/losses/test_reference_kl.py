"""KL to the reference model: k3, corrected by the ratio to the policy that sampled."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import run, tokens_of  # noqa: E402
from verifiers.errors import ConfigError  # noqa: E402
from verifiers.train.losses.logprobs import token_logprobs  # noqa: E402
from verifiers.train.losses.regularisers import reference_kl  # noqa: E402

LOGPROB = st.floats(-8, -1e-3)


def test_value_and_gradient_are_those_of_numpy() -> None:
    """r·k3, and its gradient −r·d, times the coefficient."""
    tokens = oracles.random_tokens(3)
    value, gradient = oracles.reference_kl(tokens)
    plain, with_kl = run(tokens, kind="reinforce"), run(tokens, kind="reinforce", kl=0.2)
    np.testing.assert_allclose(with_kl.value - plain.value, 0.2 * value, atol=1e-12)
    np.testing.assert_allclose(with_kl.gradient - plain.gradient, 0.2 * gradient, atol=1e-12)
    np.testing.assert_allclose(gradient, oracles.numeric(lambda t: oracles.reference_kl(t)[0], tokens), atol=1e-6)
    assert with_kl.figures["loss/reference_kl"] == pytest.approx(value.mean())


@settings(max_examples=40)
@given(lp=LOGPROB, mu=LOGPROB, ref=LOGPROB)
def test_it_is_never_negative_and_zero_at_equality(lp: float, mu: float, ref: float) -> None:
    """Whatever the ratio."""
    here = run(tokens_of([lp], [mu], 0.0, ref=np.array([ref])), kind="reinforce", kl=1.0)
    equal = run(tokens_of([lp], [mu], 0.0, ref=np.array([lp])), kind="reinforce", kl=1.0)
    assert here.value[0] >= -1e-12 and equal.value[0] == equal.gradient[0] == 0.0


def enumerated(detach: bool) -> tuple[float, oracles.Array, float, oracles.Array, oracles.Array]:
    """Over a vocabulary of four, tokens weighed by μ: the estimate and its gradient in the logits; KL(π‖ref), its
    gradient, and that of KL(ref‖π), by numpy."""
    draw = np.random.default_rng(0)
    z, mu_z, ref_z = draw.normal(0, 1, (3, 4))
    p, mu, ref = (np.exp(x) / np.exp(x).sum() for x in (z, mu_z, ref_z))
    logits = torch.tensor(z, requires_grad=True)
    logprobs, _ = token_logprobs(logits.expand(4, 4), torch.arange(4), 1.0)
    log_ratio = logprobs - torch.tensor(np.log(mu))
    values = reference_kl(log_ratio.detach() if detach else log_ratio, logprobs, torch.tensor(np.log(ref)))
    estimate = (torch.tensor(mu) * values).sum()
    estimate.backward()
    reverse = float((p * np.log(p / ref)).sum())
    of_reverse = p * (np.log(p / ref) - reverse)
    return estimate.item(), logits.grad.numpy(), reverse, of_reverse, p - ref


def test_it_is_unbiased_in_value_and_gradient() -> None:
    """In expectation over what the sampler draws, both are those of KL(π‖ref)."""
    estimate, gradient, reverse, of_reverse, _ = enumerated(detach=False)
    assert estimate == pytest.approx(reverse)
    np.testing.assert_allclose(gradient, of_reverse, atol=1e-12)


def test_without_the_gradient_of_the_ratio_it_would_be_another_divergence() -> None:
    """sg(r)·k3 has the right value, and the gradient of KL(ref‖π)."""
    estimate, gradient, reverse, of_reverse, of_forward = enumerated(detach=True)
    assert estimate == pytest.approx(reverse)
    np.testing.assert_allclose(gradient, of_forward, atol=1e-12)
    assert np.abs(gradient - of_reverse).max() > 0.03


def test_it_is_off_by_default_and_needs_a_reference() -> None:
    """No coefficient, no reference model; with one, a batch without its logprobs says so."""
    tokens = oracles.random_tokens(0)
    tokens.ref = None
    assert "loss/reference_kl" not in run(tokens).output.sums
    with pytest.raises(ConfigError, match=r"loss\.kl needs the logprobs of a reference model"):
        run(tokens, kl=0.1)
