"""The ratio against the sampler: fp32, the sampling temperature, in chunks, with entropy."""

import math
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from verifiers.train.losses.logprobs import token_logprobs  # noqa: E402
from verifiers.train.losses.ratios import ratio  # noqa: E402


def drawn(n: int = 7, vocabulary: int = 11, seed: int = 0, scale: float = 3.0) -> tuple[Any, Any]:
    """Logits in float64, and targets."""
    draw = np.random.default_rng(seed)
    return draw.normal(0, scale, (n, vocabulary)), draw.integers(0, vocabulary, n)


def oracle(logits: Any, targets: Any, temperatures: Any) -> tuple[Any, Any]:
    """Logprobs and entropies a token at a time, through probabilities."""
    logprobs, entropies = [], []
    for z, target, temperature in zip(logits, targets, np.broadcast_to(temperatures, len(logits)), strict=True):
        p = np.exp((z - z.max()) / temperature)
        p /= p.sum()
        logprobs.append(math.log(p[target]))
        entropies.append(-sum(x * math.log(x) for x in p if x > 0))
    return np.array(logprobs), np.array(entropies)


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_on_policy_the_ratio_is_one(temperature: float) -> None:
    """The sampler's logprobs and the trainer's, at one temperature, from logits in bfloat16: r = 1 to 1e-5."""
    logits, targets = drawn(64, 259)
    half = torch.tensor(logits).bfloat16()
    sampler, _ = oracle(half.double().numpy(), targets, temperature)
    policy, _ = token_logprobs(half, torch.tensor(targets), temperature)
    assert policy.dtype == torch.float32
    r = ratio(policy - torch.tensor(sampler, dtype=torch.float32))
    np.testing.assert_allclose(r.numpy(), 1, atol=1e-5)


@pytest.mark.parametrize("temperature", [0.6, 1.3])
def test_another_temperature_is_seen(temperature: float) -> None:
    """Logits that nobody divided give ratios far from 1 (huggingface/trl#4159): the test above can fail."""
    logits, targets = drawn(64, 259)
    sampler, _ = oracle(logits, targets, temperature)
    policy, _ = token_logprobs(torch.tensor(logits), torch.tensor(targets), 1.0)
    assert np.abs(np.exp(policy.numpy() - sampler) - 1).max() > 0.1


def test_half_precision_is_not_computed_in() -> None:
    """log_softmax in bfloat16 is off by per cents; ours is that of the same logits in float64."""
    logits, targets = drawn(64, 259)
    half = torch.tensor(logits).bfloat16()
    exact, _ = oracle(half.double().numpy(), targets, 1.0)
    naive = half.log_softmax(-1).gather(-1, torch.tensor(targets)[:, None]).squeeze(-1)
    assert np.abs(naive.double().numpy() - exact).max() > 1e-3
    np.testing.assert_allclose(token_logprobs(half, torch.tensor(targets), 1.0)[0].numpy(), exact, atol=1e-5)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_values_do_not_depend_on_chunks(chunk: int) -> None:
    """Logprobs and entropies are numpy's, each token at its own temperature, whatever is worked on at once."""
    logits, targets = drawn()
    temperatures = np.linspace(0.5, 2, 7)
    got = token_logprobs(torch.tensor(logits), torch.tensor(targets), torch.tensor(temperatures), chunk=chunk)
    for ours, theirs in zip(got, oracle(logits, targets, temperatures), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-12)


@pytest.mark.parametrize("chunk", [2, 100])
def test_gradients_are_those_of_finite_differences(chunk: int) -> None:
    """Of a weighted sum of the logprobs and of the entropies, both at once."""
    logits, targets = drawn(4, 5)
    temperatures, weights = np.array([0.5, 1.0, 1.5, 2.0]), np.random.default_rng(1).normal(0, 1, (2, 4))

    def value(z: Any) -> float:
        logprobs, entropies = oracle(z, targets, temperatures)
        return float(weights[0] @ logprobs + weights[1] @ entropies)

    z = torch.tensor(logits, requires_grad=True)
    got = token_logprobs(
        z, torch.tensor(targets), torch.tensor(temperatures), entropy_gradient=True, chunk=chunk
    )
    sum((torch.tensor(weight) * part).sum() for weight, part in zip(weights, got, strict=True)).backward()
    numeric, step = np.zeros_like(logits), 1e-6
    for place in np.ndindex(logits.shape):
        change = np.zeros_like(logits)
        change[place] = step
        numeric[place] = (value(logits + change) - value(logits - change)) / (2 * step)
    np.testing.assert_allclose(z.grad.numpy(), numeric, atol=1e-8)


def test_the_entropy_has_no_gradient_unless_it_is_asked_for() -> None:
    """It is a figure; the logprobs alone go backward."""
    logits, targets = drawn()
    z = torch.tensor(logits, requires_grad=True)
    logprobs, entropy = token_logprobs(z, torch.tensor(targets), 1.0)
    assert logprobs.requires_grad and not entropy.requires_grad


def test_the_gradient_has_the_logits_own_type() -> None:
    """No fp32 copy of all logits, neither forward nor backward."""
    logits, targets = drawn()
    z = torch.tensor(logits).bfloat16().requires_grad_()
    logprobs, entropy = token_logprobs(z, torch.tensor(targets), 0.7, entropy_gradient=True)
    kept = logprobs.grad_fn.saved_tensors
    assert [tensor.dtype for tensor in kept if tensor.dim() == 2] == [torch.bfloat16]
    (logprobs.sum() + entropy.sum()).backward()
    assert z.grad.dtype == torch.bfloat16
    wide = z.detach().double().requires_grad_()
    sum(part.sum() for part in token_logprobs(wide, torch.tensor(targets), 0.7, entropy_gradient=True)).backward()
    np.testing.assert_allclose(z.grad.double().numpy(), wide.grad.numpy(), atol=2e-2)


def test_the_largest_block_is_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 64 tokens a chunk, no more than 64 rows of logits at once are taken to fp32, forward or backward."""
    blocks, to = [], torch.Tensor.to

    def watched(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        blocks.append(tuple(tensor.shape))
        return to(tensor, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", watched)
    z = torch.zeros(150, 100, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(150, dtype=torch.int64)
    logprobs, entropy = token_logprobs(z, targets, 1.0, entropy_gradient=True, chunk=64)
    (logprobs.sum() + entropy.sum()).backward()
    assert [shape for shape in blocks if len(shape) == 2] == 2 * [(64, 100), (64, 100), (22, 100)]


def test_a_forbidden_token_is_no_trouble() -> None:
    """A logit of −inf has probability 0: no NaN in entropy or gradients."""
    z = torch.tensor([[0.0, 1.0, -math.inf]], dtype=torch.float64, requires_grad=True)
    logprobs, entropy = token_logprobs(z, torch.tensor([1]), 1.0, entropy_gradient=True)
    (logprobs.sum() + entropy.sum()).backward()
    two, grad = oracle(np.array([[0.0, 1.0]]), [1], 1.0), z.grad.numpy()
    assert logprobs.item() == pytest.approx(two[0][0]) and entropy.item() == pytest.approx(two[1][0])
    assert np.isfinite(grad).all() and grad[0, 2] == 0.0


def test_no_tokens_are_no_trouble() -> None:
    """A rank without sampled tokens goes backward with the others."""
    z = torch.zeros(0, 5, requires_grad=True)
    logprobs, entropy = token_logprobs(z, torch.zeros(0, dtype=torch.int64), 1.0)
    logprobs.sum().backward()
    assert logprobs.shape == entropy.shape == (0,) and z.grad.shape == (0, 5)
