"""What models the engine runs: those whose logits it gives as the model itself does, and no others."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import tiny_model  # noqa: E402
from tests.train.engines.contract import logprobs_of  # noqa: E402
from verifiers.errors import ConfigError, OverlongPromptError  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402

pytestmark = pytest.mark.train

SHAPE = {"vocab_size": 259, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 257}


def made(name: str, **changes: Any) -> Any:
    """A model of transformers' class, with random weights."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**SHAPE, **HEADS, "eos_token_id": 256, **changes})
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


WINDOW = {"sliding_window": 8}
MODELS = {
    "llama": lambda: made("Llama"),
    "mistral with a window": lambda: made("Mistral", **WINDOW),
    "gemma 3, of both kinds of layers": lambda: made("Gemma3Text", head_dim=8, sliding_window_pattern=2, **WINDOW),
    "gpt-2, which learns positions": lambda: made("GPT2", n_embd=32, n_layer=2, n_head=4, n_positions=256),
    "eager attention": lambda: tiny_model(attn_implementation="eager"),
}


@pytest.mark.parametrize("name", MODELS)
async def test_families_of_models(name: str) -> None:
    """Logprobs of prompt and reply are those of a plain forward pass, past the end of every window."""
    model = MODELS[name]()
    engine = TorchEngine(model, max_batch=2, max_context=64, threaded=False)
    prompt = list(range(30))
    completion = await engine.generate(prompt, {"max_tokens": 20, "seed": 1, "ignore_eos": True})
    expected = logprobs_of(model, prompt, completion.tokens)
    assert completion.logprobs == pytest.approx(expected, abs=1e-5)
    scores = await engine.score(prompt)
    assert scores[1:] == pytest.approx(logprobs_of(model, prompt[:1], prompt[1:]), abs=1e-5)


def test_what_it_cannot_run_is_refused() -> None:
    """Positions by distance (ALiBi) and layers that keep a state are ConfigErrors at the start, not wrong logprobs."""
    with pytest.raises(ConfigError, match="with its cache"):
        TorchEngine(made("Bloom", n_layer=2, n_head=4), max_batch=2, max_context=64)
    model = tiny_model()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ConfigError, match="linear_attention"):
        TorchEngine(model, max_batch=2, max_context=64)


def test_bits_that_depend_on_the_company_are_refused() -> None:
    """Where a row's logits depend on the number of rows, as in this model, a deterministic engine is a ConfigError."""
    model = tiny_model()
    model.lm_head.register_forward_hook(lambda _, __, logits: logits + 1e-6 * len(logits))
    with pytest.raises(ConfigError, match="decoded together"):
        TorchEngine(model, max_batch=16, max_context=64, deterministic=True)


async def test_half_precision() -> None:
    """In bfloat16 logprobs are float32 and within what that precision gives."""
    model = tiny_model().to(torch.bfloat16)
    engine = TorchEngine(model, max_batch=2, max_context=64, threaded=False)
    completion = await engine.generate([1, 2, 3], {"max_tokens": 20, "seed": 1, "ignore_eos": True})
    assert completion.logprobs == pytest.approx(logprobs_of(model, [1, 2, 3], completion.tokens), abs=0.1)


async def test_long_texts_are_scored_in_pieces() -> None:
    """A text longer than one pass holds is scored as in one."""
    model = tiny_model()
    engine = TorchEngine(model, max_batch=2, max_context=2048, threaded=False)
    ids = [token % 256 for token in range(7, 2047)] + [1] * 8
    scores = await engine.score(ids)
    assert scores[1:] == pytest.approx(logprobs_of(model, ids[:1], ids[1:]), abs=1e-4)


async def test_a_text_beyond_the_context_is_refused() -> None:
    """It can not be scored, and the engine goes on."""
    engine = TorchEngine(tiny_model(), max_batch=2, max_context=16, threaded=False)
    with pytest.raises(OverlongPromptError, match="17 tokens and the context of policy 16"):
        await engine.score([1] * 17)
    assert len(await engine.score([1] * 16)) == 16 and engine.failure is None
