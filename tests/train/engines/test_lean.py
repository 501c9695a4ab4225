"""The pass written for decoding: which models take it, that it is theirs, and that new weights reach it."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import tiny_model  # noqa: E402
from tests.train.engines.contract import logprobs_of  # noqa: E402
from tests.train.engines.test_forward import made  # noqa: E402
from verifiers.train.engines.lean import Lean, fits  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402

pytestmark = pytest.mark.train

MODELS = {
    "qwen 2, with biases and tied embeddings": tiny_model,
    "qwen 3, which normalises queries and keys": lambda: made("Qwen3", head_dim=16),
    "llama, one head of keys for each of queries": lambda: made(
        "Llama", num_key_value_heads=4, mlp_bias=True, attention_bias=True
    ),
    "mistral, without a window": lambda: made("Mistral", sliding_window=None),
}
PROMPTS = [list(range(5)), list(range(40)), [7, 7]]


async def replies(engine: TorchEngine) -> list[Any]:
    """Of prompts of several lengths, one after another."""
    params = {"max_tokens": 8, "seed": 1, "ignore_eos": True}
    return [await engine.generate(prompt, params) for prompt in PROMPTS]


@pytest.mark.parametrize("name", MODELS)
async def test_its_logprobs_are_the_models_own(name: str) -> None:
    """They are those of a plain pass, of weights that are loaded later, too."""
    model, other = MODELS[name](), MODELS[name]()
    for parameter in other.parameters():
        parameter.data = parameter.data * 1.5
    engine = TorchEngine(model, max_batch=2, max_context=64, threaded=False)
    assert engine._runner._lean is not None
    for version in (0, 1):
        for prompt, reply in zip(PROMPTS, await replies(engine), strict=True):
            expected = logprobs_of(other if version else model, prompt, reply.tokens)
            assert reply.logprobs == pytest.approx(expected, abs=1e-5)
        await engine.update_weights(other.state_dict(), 1)


def test_weights_are_in_memory_once() -> None:
    """The model's parameters are parts of the joined weights, with their names and values."""
    model, before = tiny_model(), tiny_model().state_dict()
    assert fits(model) and Lean(model)
    attention = model.model.layers[0].self_attn
    assert attention.q_proj.weight.untyped_storage().data_ptr() == attention.k_proj.weight.untyped_storage().data_ptr()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_what_is_not_known_is_left_to_the_model() -> None:
    """Other activations, hooks, wrapped layers, eager attention, angles that depend on a sequence's length and classes
    of others have no such pass."""
    hooked, wrapped = tiny_model(), tiny_model()
    hooked.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    wrapped.model.layers[0].mlp.up_proj = torch.nn.Sequential(wrapped.model.layers[0].mlp.up_proj)
    others = [tiny_model(hidden_act="gelu"), tiny_model(attn_implementation="eager"), tiny_model("qwen3_moe")]
    dynamic = tiny_model(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4})
    assert not any(fits(model) for model in [hooked, wrapped, dynamic, *others])
