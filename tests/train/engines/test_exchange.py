"""Many requests over one connection: what goes over, and what happens to them when somebody gives up or goes away."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import aiohttp  # noqa: E402
import orjson  # noqa: E402
from aiohttp import web  # noqa: E402

from tests.support.tiny_model import tiny_model, tiny_tokenizer  # noqa: E402
from verifiers.clients.local import TokenizerRenderer  # noqa: E402
from verifiers.errors import EndpointUnavailableError  # noqa: E402
from verifiers.train.engines.exchange import PATH, Exchange  # noqa: E402
from verifiers.train.engines.http import HttpSampler  # noqa: E402
from verifiers.train.engines.server import SamplerServer  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402

pytestmark = pytest.mark.train

LONG = {"max_tokens": 2000, "ignore_eos": True}


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Exchange, asyncio.Queue[Any]]]:
    """The client's end, and for each connection the server's socket and what came over it."""
    sockets: asyncio.Queue[Any] = asyncio.Queue()

    async def listen(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        messages: asyncio.Queue[Any] = asyncio.Queue()
        sockets.put_nowait((socket, messages))
        async for message in socket:
            messages.put_nowait(orjson.loads(message.data))
        return socket

    app = web.Application()
    app.router.add_get(PATH, listen)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        exchange = Exchange(session, f"http://127.0.0.1:{runner.addresses[0][1]}", "m", 5.0)
        yield exchange, sockets
        await exchange.close()
    await runner.cleanup()


async def test_what_a_turn_asks_is_one_message_and_a_broken_connection_is_made_anew() -> None:
    """Three requests come as one, one that is cancelled is told, and those that are owed when the server hangs up are
    EndpointUnavailableErrors; the next one is asked over another connection."""
    async with served() as (exchange, sockets):
        first, second, third = (asyncio.ensure_future(exchange.ask([number], {"seed": 1})) for number in range(3))
        socket, messages = await sockets.get()
        asked = [[1, [[0], {"seed": 1}]], [2, [[1], {"seed": 1}]], [3, [[2], {"seed": 1}]]]
        assert await messages.get() == {"model": "m", "requests": asked, "cancelled": []}
        await socket.send_bytes(b'[[2, "b"], [9, "of nobody"]]')
        assert await second == "b"
        first.cancel()
        assert await messages.get() == {"model": "m", "requests": [], "cancelled": [1]}
        await socket.close()
        with pytest.raises(EndpointUnavailableError, match="it closed the connection"):
            await third
        again = asyncio.ensure_future(exchange.ask([7], {}))
        socket, messages = await sockets.get()
        assert (await messages.get())["requests"] == [[4, [[7], {}]]]
        await socket.send_bytes(b"[[4, 0]]")
        assert await again == 0


async def test_what_can_not_be_sent_or_read_ends_nothing_else_for_good() -> None:
    """A seed that JSON has no room for is its asker's error alone; a connection that is given up before it was made,
    and one over which no replies come, end what is waited for and nothing that is asked later."""
    async with served() as (exchange, sockets):
        given_up = asyncio.ensure_future(exchange.ask([0], {}))
        asyncio.get_running_loop().call_soon(exchange.drop)  # behind the task that asks, before the one that connects
        with pytest.raises(EndpointUnavailableError, match="given up"):
            await given_up
        owed = asyncio.ensure_future(exchange.ask([1], {}))
        with pytest.raises(TypeError):
            await exchange.ask([1], {"seed": 2**70})
        socket, messages = await sockets.get()
        assert (await messages.get())["requests"] == [[2, [[1], {}]]]
        await socket.send_str("hello")
        with pytest.raises(EndpointUnavailableError, match="hello"):
            await owed
        again = asyncio.ensure_future(exchange.ask([2], {}))
        socket, messages = await sockets.get()
        await socket.send_bytes(b"[[3, 0]]")
        assert await again == 0


async def test_a_server_that_vanished_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that neither answers nor closes the connection gives no sign of life, and what it owes fails."""
    monkeypatch.setattr("verifiers.train.engines.exchange.HEARTBEAT_S", 0.05)
    gone = asyncio.Event()

    async def vanish(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        await gone.wait()
        return socket

    app = web.Application()
    app.router.add_get(PATH, vanish)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as session:
        exchange = Exchange(session, f"http://127.0.0.1:{runner.addresses[0][1]}", "m", 5.0)
        with pytest.raises(EndpointUnavailableError, match="PONG"):
            await exchange.ask([1], {})
        gone.set()
        await exchange.close()
    await runner.cleanup()


async def test_every_seed_goes_over() -> None:
    """Nothing that a request says is left out as if it were not said: seed 0 gives the same tokens twice."""
    tokenizer = tiny_tokenizer()
    engine = TorchEngine(tiny_model(), max_batch=4, max_context=64, decode=tokenizer.decode, threaded=False)
    server = SamplerServer(engine, TokenizerRenderer(tokenizer, 64))
    async with HttpSampler([await server.start()]) as sampler:
        asked = {"seed": 0, "max_tokens": 12, "ignore_eos": True}
        one, two = [await sampler.generate([1, 2], asked) for _ in range(2)]
        assert one.tokens == two.tokens
        assert one.tokens == (await engine.generate([1, 2], asked)).tokens
    await server.stop()
    await engine.close()


async def test_who_gives_up_frees_places_and_a_server_that_ends_says_so() -> None:
    """A request that is cancelled, then all of a client that closes, leave the engine idle; what runs when a server
    ends in order is asked of another, and there is none."""
    tokenizer = tiny_tokenizer()
    engine = TorchEngine(tiny_model(), max_batch=4, max_context=2048, decode=tokenizer.decode, threaded=False)
    server = SamplerServer(engine, TokenizerRenderer(tokenizer, 2048))
    url = await server.start()

    async def running(count: int) -> None:
        while engine.load()["running"] != count:  # noqa: ASYNC110 - it is told of nothing
            await asyncio.sleep(0)

    async with HttpSampler([url]) as sampler:
        tasks = [asyncio.ensure_future(sampler.generate([number + 1], LONG)) for number in range(3)]
        await running(3)
        tasks[0].cancel()
        await running(2)
        assert len((await sampler.generate([1], {"max_tokens": 3, "ignore_eos": True})).tokens) == 3
    assert all(isinstance(one, BaseException) for one in await asyncio.gather(*tasks, return_exceptions=True))
    await running(0)
    async with HttpSampler([url]) as sampler:
        owed = asyncio.ensure_future(sampler.generate([1], LONG))
        await running(1)
        await server.stop()
        with pytest.raises(EndpointUnavailableError):
            await owed
    await engine.close()
