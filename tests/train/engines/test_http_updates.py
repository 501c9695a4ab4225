"""Servers over HTTP get new weights as one, in the middle of replies, and stand still for nobody after it."""

import asyncio

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.fake_vllm import FakeVllm  # noqa: E402
from tests.support.tiny_model import tiny_model  # noqa: E402
from tests.train.engines.served import PROMPT, expected  # noqa: E402
from verifiers.errors import EndpointUnavailableError  # noqa: E402
from verifiers.train.engines.http import HttpSampler  # noqa: E402
from verifiers.train.engines.remote import Server, all_of  # noqa: E402
from verifiers.train.weights import WeightFolders  # noqa: E402

pytestmark = pytest.mark.train


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
