"""Sampling from servers over HTTP: what is asked and answered, by whom, and what is refused."""

import asyncio

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.fake_vllm import FakeVllm  # noqa: E402
from tests.support.tiny_model import save_tiny, tiny_model  # noqa: E402
from tests.train.engines.contract import CONTEXT, SamplerContract  # noqa: E402
from tests.train.engines.served import PROMPT, expected  # noqa: E402
from verifiers.errors import (  # noqa: E402
    AuthenticationError,
    ConfigError,
    EndpointUnavailableError,
    InvalidModelResponseError,
    MissingKeyError,
    ModelNotFoundError,
    OverlongPromptError,
)
from verifiers.train.engines.http import HttpSampler  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402

pytestmark = pytest.mark.train


async def test_a_reply_is_ids_with_logprobs_at_the_temperature_and_versions(folder) -> None:
    """And the request names everything that the server would else take from the model's own settings."""
    async with FakeVllm(folder) as server, HttpSampler([server.url], "policy") as sampler:
        reply = await sampler.generate(PROMPT, {"temperature": 0.7, "max_tokens": 6, "seed": 3})
        again = await sampler.generate(PROMPT, {"temperature": 0.7, "max_tokens": 6, "seed": 3})
        info = sampler.info()
    assert len(reply.tokens) == 6
    assert reply.logprobs == pytest.approx(expected(0, PROMPT + reply.tokens, 6, 0.7), abs=1e-5)
    assert (reply.versions, reply.finish_reason) == ([0] * 6, "length")
    assert again == reply
    assert (info.model, info.context, info.version) == ("policy", 256, 0)
    asked = server.bodies[-1]
    assert asked["cache_salt"] == "policy-0"
    assert (asked["sampling_params"]["top_p"], asked["sampling_params"]["repetition_penalty"]) == (1.0, 1.0)


@pytest.mark.parametrize(("limit", "context"), [(10, 10), (1000, 20)])
async def test_a_sequence_is_no_longer_than_the_lesser_context(folder, limit, context) -> None:
    """The caller's or the server's: what is longer would be sampled to be thrown away."""
    async with (
        FakeVllm(folder, context=20) as server,
        HttpSampler([server.url], "policy", max_context=limit) as sampler,
    ):
        assert sampler.info().context == context
        if limit < 20:
            for asked in ({"max_tokens": 500}, {}):
                reply = await sampler.generate(PROMPT, {"seed": 3, "ignore_eos": True, **asked})
                assert (len(reply.tokens), reply.finish_reason) == (limit - len(PROMPT), "length")
            with pytest.raises(OverlongPromptError, match="10 tokens and the context 10") as raised:
                await sampler.generate([10] * limit, {})
            assert "sampler.max_context" in raised.value.hint
        reply = await sampler.generate(PROMPT, {"max_tokens": 3, "ignore_eos": True})
        assert len(reply.tokens) == 3


async def test_the_turns_of_a_rollout_have_other_random_numbers_under_one_seed(folder) -> None:
    """vLLM would draw the same ones for each; ours differ by the length of the prompt, and are the same every time."""
    async with FakeVllm(folder) as server, HttpSampler([server.url]) as sampler:
        for ids in ([1, 2], [1, 2, 3], [4, 5]):
            await sampler.generate(ids, {"max_tokens": 1, "seed": 3})
        seeds = [body["sampling_params"]["seed"] for body in server.bodies[-3:]]
    assert seeds[0] == seeds[2] != seeds[1]


async def test_a_mixture_of_experts_tells_its_routes(tmp_path) -> None:
    """Of each token that was fed, in each layer, as our own engine has them."""
    model = tiny_model("qwen3_moe", seed=3)
    async with FakeVllm(save_tiny(tmp_path, "qwen3_moe", seed=3)) as server, HttpSampler([server.url]) as sampler:
        reply = await sampler.generate(PROMPT, {"max_tokens": 5, "seed": 0, "ignore_eos": True})
    engine = TorchEngine(model, record_routes=True, max_context=64, stop_token_ids=[])
    again = await engine.generate([*PROMPT, *reply.tokens[:-1]], {"max_tokens": 1})
    await engine.close()
    assert reply.routed_experts.shape == (len(PROMPT) + 4, 2, 2)
    assert (np.sort(reply.routed_experts) == np.sort(again.routed_experts)).all()
    assert reply.routed_experts.dtype == again.routed_experts.dtype


async def test_a_text_is_scored_token_by_token(folder) -> None:
    """At temperature 1, beginning with 0."""
    async with FakeVllm(folder) as server, HttpSampler([server.url]) as sampler:
        scores = await sampler.score(PROMPT)
    assert scores == pytest.approx([0.0, *expected(0, PROMPT, 3, 1.0)], abs=1e-5)


async def test_requests_are_spread_over_the_servers(folder) -> None:
    """By how much each has to do."""
    async with FakeVllm(folder) as one, FakeVllm(folder) as two, HttpSampler([one.url, two.url]) as sampler:
        for server in (one, two):
            server.paths.clear()
        await asyncio.gather(*(sampler.generate(PROMPT, {"max_tokens": 3, "seed": n}) for n in range(6)))
        assert one.paths == two.paths == ["/inference/v1/generate"] * 3


async def test_a_key_is_read_from_its_variable_and_sent(folder, monkeypatch) -> None:
    """A variable without one, and a key that is refused, are told by the variable's name; the key is told nowhere."""
    async with FakeVllm(folder, key="of-the-fleet") as server:
        with pytest.raises(MissingKeyError, match="FLEET_KEY"):
            await HttpSampler([server.url], api_key_var="FLEET_KEY").connect()
        with pytest.raises(AuthenticationError):
            await HttpSampler([server.url]).connect()
        monkeypatch.setenv("FLEET_KEY", "another")
        with pytest.raises(AuthenticationError, match="the key in FLEET_KEY") as refused:
            await HttpSampler([server.url], api_key_var="FLEET_KEY").connect()
        assert "another" not in str(refused.value)
        monkeypatch.setenv("FLEET_KEY", "of-the-fleet")
        async with HttpSampler([server.url], api_key_var="FLEET_KEY") as sampler:
            assert len((await sampler.generate(PROMPT, {"max_tokens": 2, "ignore_eos": True})).tokens) == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dev_mode": False}, "no routes to change its weights"),
        ({"logprobs_mode": "raw_logprobs"}, "leave the temperature out"),
    ],
    ids=["dev-mode", "logprobs-mode"],
)
async def test_a_server_that_is_not_fit_is_refused_with_the_way_to_start_it(folder, options, said) -> None:
    """Before the first token is sampled."""
    async with FakeVllm(folder, **options) as server:
        with pytest.raises(ConfigError, match=said) as raised:
            await HttpSampler([server.url]).connect()
    assert "--logprobs-mode processed_logprobs" in raised.value.hint


async def test_without_the_token_route_the_first_request_says_what_to_start(folder) -> None:
    """It is off unless asked for."""
    async with FakeVllm(folder, scale_out=False) as server:
        with pytest.raises(ConfigError, match="token route"):
            await HttpSampler([server.url]).connect()


async def test_addresses_that_are_none_are_refused(folder) -> None:
    """Another model, the same address twice, nobody there."""
    async with FakeVllm(folder) as one, FakeVllm(folder) as two:
        with pytest.raises(ModelNotFoundError, match="'other' but policy"):
            await HttpSampler([one.url], "other").connect()
        with pytest.raises(ConfigError, match="each once"):
            HttpSampler([one.url, one.url])
        gone = two.url
    with pytest.raises(EndpointUnavailableError, match=gone):
        await HttpSampler([gone]).connect()


async def test_what_a_request_asks_wrongly_is_the_callers_error_and_loses_no_server(folder) -> None:
    """A prompt too long, sampling that would make other logprobs, tensors that no transfer takes."""
    async with FakeVllm(folder) as server, HttpSampler([server.url]) as sampler:
        with pytest.raises(OverlongPromptError):
            await sampler.generate([1] * 300, {"max_tokens": 2})
        with pytest.raises(ConfigError, match="top_p"):
            await sampler.generate(PROMPT, {"top_p": 0.9})
        with pytest.raises(ConfigError, match="load weights from folders"):
            await sampler.update_weights({"a": torch.zeros(1)}, 1)
        assert not sampler.failures
    with pytest.raises(EndpointUnavailableError, match="closed"):
        await sampler.generate(PROMPT, {})


async def test_closing_ends_what_is_waited_for(folder) -> None:
    """With an error, not never."""
    async with FakeVllm(folder) as server:
        async with HttpSampler([server.url]) as sampler:
            running = asyncio.create_task(sampler.generate(PROMPT, {"max_tokens": 200, "ignore_eos": True}))
            await server.after(2)
        with pytest.raises(EndpointUnavailableError, match="closed"):
            await running


async def test_a_reply_that_was_aborted_is_no_reply(folder) -> None:
    """Somebody else paused the server in its mode "abort": nothing half is handed on."""
    async with FakeVllm(folder) as server, HttpSampler([server.url]) as sampler:
        running = asyncio.create_task(sampler.generate(PROMPT, {"max_tokens": 40, "ignore_eos": True}))
        await server.after(2)
        await sampler._servers[0].post("/pause?mode=abort")
        await sampler.resume()
        reply = await running
        assert len(reply.tokens) == 40
        assert sampler.failures == {server.url: 1}


async def test_cancelling_a_request_frees_its_place_at_the_server(folder) -> None:
    """The server stops sampling for it, and goes on serving others."""
    async with FakeVllm(folder) as server, HttpSampler([server.url]) as sampler:
        running = asyncio.create_task(sampler.generate(PROMPT, {"max_tokens": 250, "ignore_eos": True}))
        await server.after(2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.wait(server._running)
        assert server.sampled < 250
        assert len((await sampler.generate(PROMPT, {"max_tokens": 3, "ignore_eos": True})).tokens) == 3
        assert not sampler.failures


async def test_an_answer_whose_parts_do_not_belong_together_is_refused(folder, monkeypatch) -> None:
    """No token without its logprob and version."""
    async with FakeVllm(folder) as server, HttpSampler([server.url]) as sampler:
        monkeypatch.setattr("tests.support.fake_vllm._spans", lambda labels: [{"version": "0", "start": 0, "end": 1}])
        with pytest.raises(InvalidModelResponseError, match="the version of 1 of 2 tokens"):
            await sampler.generate(PROMPT, {"max_tokens": 2, "ignore_eos": True})
        monkeypatch.setattr("tests.support.fake_vllm._spans", lambda labels: [{"version": "0", "from": 0}])
        with pytest.raises(InvalidModelResponseError, match="in another form: KeyError"):
            await sampler.generate(PROMPT, {"max_tokens": 2, "ignore_eos": True})
        assert not sampler.failures


class TestOverVllm(SamplerContract):
    """What every sampler must do, over vLLM's wire."""

    @pytest.fixture
    async def sampler(self, folder):
        async with (
            FakeVllm(folder, context=CONTEXT) as server,
            HttpSampler([server.url], vocabulary=259) as sampler,
        ):
            yield sampler
