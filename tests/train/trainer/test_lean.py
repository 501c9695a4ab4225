"""The forward pass written for training on a CPU: its gradient is the model's, and it is left where it would not be."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import tiny_model  # noqa: E402
from tests.train.engines.test_lean import MODELS  # noqa: E402
from verifiers.train.config import LoraConfig, ModelConfig, TrainerConfig  # noqa: E402
from verifiers.train.lean import Lean, suits  # noqa: E402
from verifiers.train.models import policy_of  # noqa: E402
from verifiers.train.trainer import TorchLearner  # noqa: E402

pytestmark = pytest.mark.train


@pytest.mark.parametrize("name", MODELS)
def test_its_gradient_is_the_models_own(name: str) -> None:
    """Of every parameter, under any mask and at places that repeat; norms and biases are none of ones and zeros."""
    model = MODELS[name]().double()
    torch.manual_seed(0)
    for value in model.parameters():
        value.data += 0.1 * torch.randn_like(value)
    assert suits(model)
    tokens, places = torch.randint(0, 200, (2, 9)), torch.tensor([3, 3, 8, 12, 17])
    positions = torch.arange(9).repeat(2, 1) % 5
    mask = torch.rand(2, 1, 9, 9) < 0.5
    mask |= torch.eye(9, dtype=torch.bool)
    whole = model(input_ids=tokens, position_ids=positions, attention_mask=mask, use_cache=False).logits
    expected = whole.flatten(0, 1)[places]
    found = Lean(model)(tokens, positions, mask, places)
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)  # angles are in single precision in both
    weights, parameters = torch.randn_like(expected), list(model.parameters())
    gradients = [torch.autograd.grad((logits * weights).sum(), parameters) for logits in (expected, found)]
    for one, other in zip(*gradients, strict=True):
        assert float(one.abs().max()) > 0
        assert torch.allclose(one, other, rtol=0, atol=1e-6 * float(one.abs().max()))


LEFT: dict[str, Any] = {
    "half precision": ("bfloat16", {}, {}),
    "autocast": ("float32", {}, {"autocast": "bfloat16"}),
    "checkpointing": ("float32", {"gradient_checkpointing": True}, {}),
    "an adapter": ("float32", {"lora": LoraConfig()}, {}),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_computations_are_the_models(name: str) -> None:
    """Where layers are run again, cast or wrapped, the model runs itself; and it is not so everywhere."""
    dtype, settings, trainer = LEFT[name]
    policy = policy_of(tiny_model().to(getattr(torch, dtype)), ModelConfig(**settings))
    assert TorchLearner(policy, TrainerConfig(**trainer))._head._lean is None
    assert TorchLearner(policy_of(tiny_model(), ModelConfig()))._head._lean is not None
