"""Servers over HTTP that die, break or come back take nothing down with them."""

import asyncio

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.fake_vllm import FakeVllm
from tests.train.engines.served import PROMPT, expected
from verifiers.errors import EndpointUnavailableError
from verifiers.train.engines.http import HttpSampler

pytestmark = pytest.mark.train


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
