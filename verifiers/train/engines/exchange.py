"""Many requests for tokens over one connection: what one turn of the event loop asks, and what one step of the engine
gives, goes over as one message each.

    exchange = Exchange(session, url, "policy")                       # the client's end
    reply = await exchange.ask(ids, {"max_tokens": 8})                # cancelling it frees the request's place
    app.router.add_get(PATH, lambda request: answer(request, reply))  # the server's end

A WebSocket carries JSON. From the client: {"model", "requests": [[number, [ids, sampling arguments]], …], "cancelled":
[number, …]}; from the server: [[number, reply], …], as the replies end. A message costs both processes about as much as
ten requests in it, so that one of a request each would take longer than sampling does with small models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from verifiers.errors import EndpointUnavailableError

if TYPE_CHECKING:
    import aiohttp
    from aiohttp import web

PATH = "/generate"

HEARTBEAT_S = 60.0
"""A server that has been silent for so long is asked for a sign of life, and given half of it: a machine that vanished
closes no connection."""


class Outbox:
    """Collects what is to be sent until whoever sends it has its turn."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._filled = asyncio.Event()

    def put(self, item: Any) -> None:
        """Add something."""
        self._items.append(item)
        self._filled.set()

    async def taken(self) -> list[Any]:
        """All that is there, once there is something."""
        await self._filled.wait()
        self._filled.clear()
        items, self._items = self._items, []
        return items


class Exchange:
    """The client's end. It connects with the first request, and again with the next one after the connection broke."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str, connect_s: float) -> None:
        self._session = session
        self._url = url
        self._model = model
        self._connect_s = connect_s
        self._last = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._outbox = Outbox()
        self._talk: asyncio.Task[None] | None = None
        self._talks: set[asyncio.Task[None]] = set()
        """That one, and those before it that have not closed their connection yet."""

    async def ask(self, ids: Sequence[int], params: Mapping[str, Any]) -> Any:
        """The server's reply. EndpointUnavailableError if the connection breaks before; TypeError for what JSON does
        not have."""
        body = orjson.dumps((ids, params))  # here: in the message it would end the requests of others, too
        if self._talk is None:
            self._outbox = Outbox()
            self._talk = asyncio.create_task(self._connected(self._outbox))
            self._talks.add(self._talk)
            self._talk.add_done_callback(self._talks.discard)
        self._last = number = self._last + 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        outbox = self._outbox
        outbox.put((number, orjson.Fragment(body)))
        try:
            return await future
        except asyncio.CancelledError:
            outbox.put(number)
            raise
        finally:
            self._waiting.pop(number, None)

    def drop(self) -> None:
        """End the connection, and with it what is waited for."""
        if self._talk is not None:
            self._talk.cancel()
            self._end(self._talk, "the connection was given up")  # what is cancelled before it begins ends nothing

    async def close(self) -> None:
        """End the connection; it has ended when this returns."""
        self.drop()
        if self._talks:
            await asyncio.wait(self._talks)

    async def _connected(self, outbox: Outbox) -> None:
        import aiohttp

        talk = asyncio.current_task()
        limit = aiohttp.ClientWSTimeout(ws_close=1.0)
        try:
            async with asyncio.timeout(self._connect_s):
                socket = await self._session.ws_connect(
                    self._url + PATH, max_msg_size=0, timeout=limit, heartbeat=HEARTBEAT_S
                )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._end(talk, str(error) or type(error).__name__)
            return
        sending = asyncio.create_task(self._send(socket, outbox))
        why = "it closed the connection"
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY:  # an error of the connection, or no server of ours
                    raise ValueError(message.data)
                self._settle(orjson.loads(message.data))
        except (TypeError, ValueError) as error:
            why = str(error)
        finally:
            self._end(talk, why)
            sending.cancel()
            await asyncio.gather(sending, socket.close(), return_exceptions=True)

    def _end(self, talk: asyncio.Task[None] | None, why: str) -> None:
        """The next request connects anew; those that are waited for fail."""
        if self._talk is talk:
            self._talk = None
            waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                if not future.done():
                    future.set_exception(EndpointUnavailableError(f"{self._url} is not reached: {why}"))

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, outbox: Outbox) -> None:
        with suppress(ConnectionError):  # whoever reads is told of it too
            while True:
                items = await outbox.taken()
                asked = [item for item in items if not isinstance(item, int)]
                cancelled = [item for item in items if isinstance(item, int)]
                body = {"model": self._model, "requests": asked, "cancelled": cancelled}
                await socket.send_bytes(orjson.dumps(body))

    def _settle(self, replies: list[Any]) -> None:
        for number, reply in replies:
            future = self._waiting.get(number)
            if future is not None and not future.done():
                future.set_result(reply)


async def answer(
    request: web.Request, reply: Callable[[str, Any, Any], Awaitable[bytes]], open_sockets: set[Any]
) -> web.WebSocketResponse:
    """The server's end, until the client hangs up: then its requests are given up.

    reply: from a model's name, ids and sampling arguments, as they come, to JSON; it raises nothing. open_sockets:
    where the connection is while it is open.
    """
    from aiohttp import web

    socket = web.WebSocketResponse(max_msg_size=0)
    await socket.prepare(request)
    outbox = Outbox()
    running: dict[int, asyncio.Task[None]] = {}

    async def one(number: int, *asked: Any) -> None:
        outbox.put((number, orjson.Fragment(await reply(*asked))))

    def ended(number: int, _: object) -> None:
        del running[number]

    async def send() -> None:
        with suppress(ConnectionError):
            while True:
                await socket.send_bytes(orjson.dumps(await outbox.taken()))

    sending = asyncio.create_task(send())
    open_sockets.add(socket)
    try:
        async for message in socket:
            body = orjson.loads(message.data)
            for number, (ids, params) in body["requests"]:
                running[number] = task = asyncio.create_task(one(number, body["model"], ids, params))
                task.add_done_callback(partial(ended, number))
            for number in body["cancelled"]:
                if number in running:
                    running[number].cancel()
    finally:
        open_sockets.discard(socket)
        tasks = [sending, *running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return socket
