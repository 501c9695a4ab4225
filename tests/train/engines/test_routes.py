"""Routes of experts: which experts each token went to, as the model chose them."""

import asyncio
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import tiny_model, tiny_tokenizer  # noqa: E402
from verifiers.clients.client import as_client  # noqa: E402
from verifiers.clients.local import SamplerClient, TokenizerRenderer  # noqa: E402
from verifiers.clients.routes import pack_routes, read_routes  # noqa: E402
from verifiers.errors import ConfigError, EvidenceError  # noqa: E402
from verifiers.train.engines.server import SamplerServer  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402
from verifiers.types import ClientConfig, UserMessage  # noqa: E402

pytestmark = pytest.mark.train


def chosen(model: Any, ids: list[int]) -> np.ndarray:
    """The experts of each token in one plain forward pass: [T, layers, k]."""
    seen: list[Any] = []
    gates = [module for name, module in model.named_modules() if name.endswith("mlp.gate")]
    handles = [gate.register_forward_hook(lambda _, __, output: seen.append(output[2])) for gate in gates]
    with torch.inference_mode():
        model(input_ids=torch.tensor([ids]))
    for handle in handles:
        handle.remove()
    return torch.stack(seen, dim=1).numpy()


async def test_every_token_that_was_fed_has_its_experts() -> None:
    """For prompts that are fed alone, in groups, and taken over from earlier turns."""
    engine = TorchEngine(
        tiny_model("qwen3_moe"), max_batch=4, max_context=128, threaded=False, stop_token_ids=[], record_routes=True
    )
    model = tiny_model("qwen3_moe").eval()
    prompts = [list(range(30)), list(range(30)), [5], list(range(30, 50))]
    replies = await asyncio.gather(
        *(engine.generate(prompt, {"max_tokens": 9, "seed": seed}) for seed, prompt in enumerate(prompts))
    )
    longer = [*prompts[3], *replies[3].tokens, 1, 2]
    prompts.append(longer)
    replies.append(await engine.generate(longer, {"max_tokens": 4, "seed": 1}))
    for prompt, reply in zip(prompts, replies, strict=True):
        ids = [*prompt, *reply.tokens[:-1]]
        assert reply.routed_experts.shape == (len(ids), 2, 2)
        assert reply.routed_experts.dtype == np.int16
        assert np.array_equal(np.sort(reply.routed_experts), np.sort(chosen(model, ids)))


async def test_a_cache_made_again_keeps_the_routes_of_the_sampling() -> None:
    """After an update that recomputes the cache, tokens before it still have the old model's experts."""
    engine = TorchEngine(
        tiny_model("qwen3_moe"),
        max_batch=2,
        max_context=64,
        threaded=False,
        stop_token_ids=[],
        record_routes=True,
        recompute_cache=True,
    )
    task = asyncio.ensure_future(engine.generate([1, 2, 3], {"max_tokens": 12, "seed": 1}))
    while engine.load()["sampled"] < 6:  # noqa: ASYNC110 - the engine steps on this loop
        await asyncio.sleep(0)
    await engine.update_weights(tiny_model("qwen3_moe", seed=1).state_dict(), 1)
    reply = await task
    fed = [1, 2, 3, *reply.tokens[:-1]]
    for seed, part in ((0, slice(8)), (1, slice(8, None))):
        expected = chosen(tiny_model("qwen3_moe", seed=seed).eval(), fed)
        assert np.array_equal(np.sort(reply.routed_experts[part]), np.sort(expected[part]))


async def test_they_reach_the_turns_tokens_by_every_way() -> None:
    """In this process and through the server the evidence of a turn holds them, as JSON."""
    tokenizer = tiny_tokenizer()
    engine = TorchEngine(tiny_model("qwen3_moe"), max_batch=4, max_context=128, record_routes=True)
    renderer = TokenizerRenderer(tokenizer, 128)
    server = SamplerServer(engine, renderer)
    base = await server.start() + "/v1"
    ways = ("openai_chat_completions", "openai_chat_completions_token")
    configs = [ClientConfig(client_type=way, api_base_url=base, api_key_var="NONE") for way in ways]
    clients: list[Any] = [SamplerClient(engine, renderer), *map(as_client, configs)]
    routes = []
    for client in clients:
        reply = await client.get_response([UserMessage("hi")], "policy", {"max_tokens": 5, "seed": 1})
        tokens = reply["message"]["tokens"]
        routes.append(read_routes(tokens["routed_experts"]))
        assert len(routes[-1]) == len(tokens["prompt_ids"]) + len(tokens["completion_ids"]) - 1
        await client.close()
    assert np.array_equal(routes[0], routes[1])
    assert np.array_equal(routes[0], routes[2])
    await server.stop()
    await engine.close()


def test_a_dense_model_has_none() -> None:
    """To record the routes of a model without experts is a ConfigError."""
    with pytest.raises(ConfigError, match="no experts"):
        TorchEngine(tiny_model(), record_routes=True)


def test_packed_routes_read_back() -> None:
    """Arrays come back from JSON data and lists; what is neither is an EvidenceError."""
    routes = np.arange(24, dtype=np.int16).reshape(4, 3, 2)
    assert np.array_equal(read_routes(pack_routes(routes)), routes)
    assert np.array_equal(read_routes(routes.tolist()), routes)
    assert pack_routes(None) is None
    for wrong in ({"shape": [2], "data": "AAAA"}, {"data": "?"}, "text", {}):
        with pytest.raises(EvidenceError):
            read_routes(wrong)
