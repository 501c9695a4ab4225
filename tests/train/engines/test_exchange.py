"""Many requests over one connection: what goes over, and what happens to them when somebody gives up or goes away."""

import asyncio
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


async def test_what_a_turn_asks_is_one_message_and_a_broken_connection_is_made_anew() -> None:
    """Three requests come as one, one that is cancelled is told, and those that are owed when the server hangs up are
    EndpointUnavailableErrors; the next one is asked over another connection."""
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
        first, second, third = (asyncio.ensure_future(exchange.ask([number], {"seed": 1})) for number in range(3))
        socket, messages = await sockets.get()
        asked = [[1, [0], {"seed": 1}], [2, [1], {"seed": 1}], [3, [2], {"seed": 1}]]
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
        assert (await messages.get())["requests"] == [[4, [7], {}]]
        await socket.send_bytes(b"[[4, 0]]")
        assert await again == 0
        await exchange.close()
    await runner.cleanup()


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
