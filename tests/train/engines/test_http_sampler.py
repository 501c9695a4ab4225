"""Sampling from servers over HTTP: several act as one, and one that fails takes nothing down with it."""

import asyncio

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.fake_vllm import FakeVllm  # noqa: E402
from tests.support.tiny_model import save_tiny, tiny_model  # noqa: E402
from tests.train.engines.contract import CONTEXT, SamplerContract  # noqa: E402
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
from verifiers.train.engines.remote import Server, all_of  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402
from verifiers.train.weights import WeightFolders  # noqa: E402

pytestmark = pytest.mark.train

PROMPT = [10, 20, 30, 40]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model as files."""
    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture
def weights(tmp_path):
    """Publishes the weights of a model that is made from a seed, as that version."""
    folders = WeightFolders(tmp_path / "weights", durable=False)
    return lambda version: folders.publish(version, tiny_model(seed=version))


def expected(seed: int, tokens: list[int], count: int, temperature: float) -> list[float]:
    """The logprobs of the last `count` tokens, from a model of that seed, at a temperature."""
    with torch.no_grad():
        logits = tiny_model(seed=seed)(torch.tensor([tokens])).logits[0].double() / temperature
    return logits.log_softmax(-1)[-count - 1 : -1].gather(1, torch.tensor(tokens[-count:])[:, None])[:, 0].tolist()


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


async def test_an_update_in_mid_reply_is_seen_in_versions_and_logprobs(folder, weights) -> None:
    """The reply goes on; each token has the version, and the logprob, of the weights that sampled it."""
    async with FakeVllm(folder) as server, HttpSampler([server.url], "policy") as sampler:
        running = asyncio.create_task(sampler.generate(PROMPT, {"max_tokens": 60, "seed": 1, "ignore_eos": True}))
        await server.after(5)
        await sampler.update_weights(weights(4), 4)
        reply = await running
        assert sampler.info().version == 4
        await sampler.generate(PROMPT, {"max_tokens": 1})
    split = reply.versions.index(4)
    assert reply.versions == [0] * split + [4] * (60 - split)
    assert split >= 5
    for seed, tokens, logprobs in (
        (0, reply.tokens[:split], reply.logprobs[:split]),
        (4, reply.tokens, reply.logprobs[split:]),
    ):
        count = len(logprobs)
        assert logprobs == pytest.approx(expected(seed, PROMPT + tokens, count, 1.0), abs=1e-4)
    assert server.bodies[-1]["cache_salt"] == "policy-4"


async def test_servers_are_updated_as_one(folder, weights) -> None:
    """None loads before all stand still, none goes on before all have loaded."""
    async with FakeVllm(folder) as one, FakeVllm(folder) as two, HttpSampler([one.url, two.url]) as sampler:
        order: list[tuple[str, str]] = []
        for name, server in (("one", one), ("two", two)):
            server.paths = _Told(name, order)  # type: ignore[assignment]
        await sampler.update_weights(weights(2), 2)
        assert (one.label, two.label) == ("2", "2")
    steps = [path for _, path in order]
    assert steps == ["/pause"] * 2 + ["/collective_rpc"] * 2 + ["/update_weight_version"] * 2 + ["/resume"] * 2 or (
        steps.index("/collective_rpc") == 2 and steps[-2:] == ["/resume"] * 2 and len(steps) == 8
    )


class _Told(list):
    """A list that writes to another one too."""

    def __init__(self, name, order) -> None:
        super().__init__()
        self.name, self.order = name, order

    def append(self, path) -> None:
        super().append(path)
        self.order.append((self.name, path))


async def test_requests_are_spread_over_the_servers(folder) -> None:
    """By how much each has to do."""
    async with FakeVllm(folder) as one, FakeVllm(folder) as two, HttpSampler([one.url, two.url]) as sampler:
        for server in (one, two):
            server.paths.clear()
        await asyncio.gather(*(sampler.generate(PROMPT, {"max_tokens": 3, "seed": n}) for n in range(6)))
        assert one.paths == two.paths == ["/inference/v1/generate"] * 3


async def test_while_paused_requests_wait_and_an_update_leaves_it_paused(folder, weights) -> None:
    """Whoever paused resumes."""
    async with FakeVllm(folder) as server, HttpSampler([server.url]) as sampler:
        server.sampled = 0
        await sampler.pause()
        waiting = asyncio.create_task(sampler.generate(PROMPT, {"max_tokens": 2, "seed": 0}))
        await sampler.update_weights(weights(1), 1)
        assert (waiting.done(), server.sampled) == (False, 0)
        await sampler.resume()
        assert (await waiting).versions == [1, 1]


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/update_weight_version", "/resume"])
async def test_a_server_that_dies_in_an_update_is_left_out_and_counted(folder, weights, path) -> None:
    """Its requests are asked of the others, which have the new weights and run."""
    async with FakeVllm(folder) as one, FakeVllm(folder) as two, HttpSampler([one.url, two.url]) as sampler:
        running = [
            asyncio.create_task(sampler.generate(PROMPT, {"max_tokens": 30, "seed": n, "ignore_eos": True}))
            for n in range(4)
        ]
        await two.after(2)
        two.dies_at = path
        await sampler.update_weights(weights(3), 3)
        replies = await asyncio.gather(*running)
        assert [len(reply.tokens) for reply in replies] == [30] * 4
        assert sampler.failures == {two.url: 1}
        assert [(state.serving, bool(state.why)) for state in sampler.health()] == [(True, False), (False, True)]
        assert one.label == "3"
        assert (await sampler.generate(PROMPT, {"max_tokens": 2})).versions == [3, 3]


async def test_a_server_that_dies_in_a_reply_costs_no_reply(folder) -> None:
    """The other one gives it."""
    async with FakeVllm(folder) as one, FakeVllm(folder) as two, HttpSampler([one.url, two.url]) as sampler:
        running = [
            asyncio.create_task(sampler.generate(PROMPT, {"max_tokens": 30, "seed": n, "ignore_eos": True}))
            for n in range(2)
        ]
        await one.after(3)
        await one.die()
        assert [len(reply.tokens) for reply in await asyncio.gather(*running)] == [30, 30]
        assert sampler.failures == {one.url: 1}


async def test_a_server_that_was_started_again_gets_the_present_weights_before_it_serves(folder, weights) -> None:
    """Its own are the first ones. Their folder stays as long as they are the present ones."""
    async with FakeVllm(folder) as server, HttpSampler([server.url], "policy") as sampler:
        await sampler.update_weights(weights(5), 5)
        await server.die()
        async with FakeVllm(folder, port=int(server.url.rpartition(":")[2])) as fresh:
            for version in (6, 7, 8):
                weights(version)  # a publisher forgets its oldest ones, unless they are in use
            replies = await asyncio.gather(*(sampler.generate(PROMPT, {"max_tokens": 2, "seed": n}) for n in range(3)))
            assert [reply.versions for reply in replies] == [[5, 5]] * 3
            for reply in replies:
                given = expected(5, PROMPT + reply.tokens, 2, 1.0)
                assert reply.logprobs == pytest.approx(given, abs=1e-4)
            assert fresh.paths.count("/collective_rpc") == 1
    assert not sampler._held._exit_callbacks


async def test_a_server_without_the_present_weights_waits_for_the_next_ones(folder, weights) -> None:
    """Where they came over a group, nobody can give them to it alone; also if it is the only one."""
    async with FakeVllm(folder) as server, HttpSampler([server.url], "policy") as sampler:
        await server.die()
        async with FakeVllm(folder, port=int(server.url.rpartition(":")[2])) as fresh:
            for _ in range(2):
                with pytest.raises(EndpointUnavailableError, match=r"no inference server is left: .* started again"):
                    await sampler.generate(PROMPT, {"max_tokens": 2})
            await sampler.update_weights(weights(6), 6)
            assert (await sampler.generate(PROMPT, {"max_tokens": 2})).versions == [6, 6]
            assert fresh.label == "6"


async def test_a_server_that_breaks_and_recovers_is_asked_again(folder) -> None:
    """If it has the weights that it should have."""
    async with FakeVllm(folder) as server, HttpSampler([server.url]) as sampler:
        server.refuses["/inference/v1/generate"] = 503
        with pytest.raises(EndpointUnavailableError, match="refused by the test"):
            await sampler.generate(PROMPT, {"max_tokens": 2})
        server.refuses.clear()
        assert len((await sampler.generate(PROMPT, {"max_tokens": 2, "ignore_eos": True})).tokens) == 2
        assert sampler.failures[server.url] == 2


async def test_a_server_that_missed_a_pause_stands_still_once_it_is_back(folder) -> None:
    """As the fleet does; and it goes on with it."""
    async with FakeVllm(folder) as server, HttpSampler([server.url]) as sampler:
        server.refuses["/inference/v1/generate"] = 503
        with pytest.raises(EndpointUnavailableError):
            await sampler.generate(PROMPT, {"max_tokens": 2})
        server.refuses.clear()
        await sampler.pause()
        server.sampled, server.paths[:] = 0, []
        waiting = asyncio.create_task(sampler.generate(PROMPT, {"max_tokens": 2, "ignore_eos": True}))
        while "/inference/v1/generate" not in server.paths:
            await sampler._servers[0].version()
        await asyncio.gather(*(sampler._servers[0].ask("GET", "/is_paused") for _ in range(3)))
        assert (waiting.done(), server.sampled) == (False, 0)
        await sampler.resume()
        assert len((await waiting).tokens) == 2


async def test_a_server_that_missed_the_end_of_a_pause_goes_on_once_it_is_back(folder) -> None:
    """It would stand still for ever, and all that it is asked."""
    async with FakeVllm(folder) as server, HttpSampler([server.url]) as sampler:
        await sampler.pause()
        server.refuses["/resume"] = 503
        await sampler.resume()
        assert not sampler.health()[0].serving
        server.refuses.clear()
        assert len((await sampler.generate(PROMPT, {"max_tokens": 2, "ignore_eos": True})).tokens) == 2


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


async def test_of_several_calls_none_goes_on_when_one_has_failed() -> None:
    """Whoever hears of the failure may ask the servers again at once."""
    ended = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise EndpointUnavailableError("gone")

    with pytest.raises(EndpointUnavailableError, match="gone"):
        await all_of([waits(), fails(), waits()])
    assert ended == ["waits"] * 2


async def test_when_all_servers_are_gone_an_update_and_a_reply_say_so(folder, weights) -> None:
    """With the typed error, and no wait without end."""
    async with FakeVllm(folder) as server, HttpSampler([server.url]) as sampler:
        running = asyncio.create_task(sampler.generate(PROMPT, {"max_tokens": 200, "ignore_eos": True}))
        await server.after(1)
        server.dies_at = "/collective_rpc"
        with pytest.raises(EndpointUnavailableError, match="no inference server is left"):
            await sampler.update_weights(weights(1), 1)
        with pytest.raises(EndpointUnavailableError):
            await running


async def test_a_lora_adapter_is_loaded_in_place_of_the_last_one(folder, tmp_path) -> None:
    """And asked by its name; the base model stays."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", init_lora_weights=False)
    folders = WeightFolders(tmp_path, durable=False)
    async with FakeVllm(folder) as server, HttpSampler([server.url], "policy") as sampler:
        for version in (1, 2):
            torch.manual_seed(version)
            model = peft.get_peft_model(tiny_model(seed=0), config)
            await sampler.update_weights(folders.publish(version, model), version)
            reply = await sampler.generate(PROMPT, {"max_tokens": 4, "seed": 0, "ignore_eos": True})
            with torch.no_grad():
                logits = model.eval()(torch.tensor([PROMPT + reply.tokens])).logits[0]
            own = logits.log_softmax(-1)[3:-1].gather(1, torch.tensor(reply.tokens)[:, None])[:, 0].tolist()
            assert reply.logprobs == pytest.approx(own, abs=1e-4)
            assert reply.versions == [version] * 4
        loads = [body for path, body in zip(server.paths, server.bodies, strict=True) if "lora" in path]
        assert [(body["lora_name"], body["load_inplace"]) for body in loads] == [("policy-adapter", True)] * 2
        assert server.bodies[-1]["model"] == "policy-adapter"


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


async def test_servers_that_a_killed_trainer_left_standing_still_go_on(folder) -> None:
    """Whoever connects takes over."""
    async with FakeVllm(folder) as server:
        async with HttpSampler([server.url]) as sampler:
            await sampler.pause()
        async with HttpSampler([server.url]) as sampler:
            assert (await sampler.generate(PROMPT, {"max_tokens": 2, "ignore_eos": True})).versions == [-1, -1]


async def test_weights_that_another_run_left_are_older_than_any_of_this_one(folder, weights) -> None:
    """Also if their version is one that this run has as well; its own take their place."""
    async with FakeVllm(folder) as one, FakeVllm(folder) as two:
        async with HttpSampler([one.url]) as sampler:
            await sampler.update_weights(weights(3), 3)
        async with HttpSampler([one.url, two.url], version=3) as sampler:
            assert sampler.info().version == -1
            await sampler.update_weights(weights(4), 3)
            replies = await asyncio.gather(*(sampler.generate(PROMPT, {"max_tokens": 3, "seed": 1}) for _ in range(2)))
    assert replies[0] == replies[1]
    assert set(replies[0].versions) == {3}


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


async def test_an_update_that_is_given_up_leaves_no_server_standing_still(folder, weights, monkeypatch) -> None:
    """Also while servers are only being stopped: one has stopped, the other has not answered yet."""
    async with FakeVllm(folder) as one, FakeVllm(folder) as two, HttpSampler([one.url, two.url]) as sampler:
        stopped, pause = asyncio.Event(), Server.pause

        async def paused(server: Server) -> None:
            await pause(server)
            if server.url == two.url:
                stopped.set()
                await asyncio.Event().wait()

        monkeypatch.setattr(Server, "pause", paused)
        update = asyncio.create_task(sampler.update_weights(weights(1), 1))
        await stopped.wait()
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        for _ in range(2):
            assert len((await sampler.generate(PROMPT, {"max_tokens": 3, "ignore_eos": True})).tokens) == 3
        assert [server._gate.is_set() for server in (one, two)] == [True, True]


class TestOverVllm(SamplerContract):
    """What every sampler must do, over vLLM's wire."""

    @pytest.fixture
    async def sampler(self, folder):
        async with (
            FakeVllm(folder, context=CONTEXT) as server,
            HttpSampler([server.url], vocabulary=259) as sampler,
        ):
            yield sampler
