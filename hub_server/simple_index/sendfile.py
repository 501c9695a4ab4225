"""uvicorn's HTTP protocol with ASGI's extension `http.response.zerocopysend`: the kernel copies a file to the socket.

    uvicorn.Config(app, http=ZeroCopyProtocol)

A download then costs no memory and hardly any Python. It is not offered under TLS, where bytes must be encrypted
first; the application streams there. uvicorn has no such extension of its own, and uvloop no `loop.sendfile`.
"""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from hub_server.operations.connections import BoundedProtocol

EXTENSION = "http.response.zerocopysend"
SMALL = 256 * 1024
"""Bytes that are sent from the event loop's own thread: the socket's buffer takes them at once."""

PATIENCE_MS = 50
"""How long a thread waits for a client to make room; a slower client waits in the event loop, which costs nothing."""

TURN_S = 0.25
"""Seconds after which a thread takes the next download."""

_threads = ThreadPoolExecutor(8, "sendfile")


class ZeroCopyProtocol(BoundedProtocol):
    """The protocol that `hub serve` speaks."""

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self.scheme == "http" and cycle.scope["path"].startswith("/files/"):
            cycle.scope["extensions"] = {**(cycle.scope.get("extensions") or {}), EXTENSION: {}}
            app = _with_extension(app, cycle)
        super()._start_asgi_task(cycle, app)


def _with_extension(app: Any, cycle: RequestResponseCycle) -> Callable[..., Awaitable[None]]:
    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        async def sending(message: Any) -> None:
            if message["type"] == EXTENSION:
                await _send_file(cycle, message)
            else:
                await send(message)

        await app(scope, receive, sending)

    return wrapped


async def _send_file(cycle: RequestResponseCycle, message: dict[str, Any]) -> None:
    """Send `count` bytes from `offset` of the open file, then end the body as uvicorn does."""
    if cycle.disconnected:
        return
    count: int = message["count"]
    if cycle.scope["method"] != "HEAD":
        await _written(cycle.transport)
        try:
            await _copy(cycle, message["file"], message["offset"], count)
        except OSError:  # the client is gone
            cycle.transport.abort()
            return
        cycle.expected_content_length -= count
    if not cycle.disconnected:
        await cycle.send({"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)})


async def _written(transport: asyncio.Transport) -> None:
    """Wait until what was written before, such as the headers, is with the kernel."""
    pause = 0.0
    while transport.get_write_buffer_size() and not transport.is_closing():
        await asyncio.sleep(pause)
        pause = min(pause + 0.001, 0.02)


async def _copy(cycle: RequestResponseCycle, file: int, offset: int, count: int) -> None:
    # The loop watches the transport's own descriptor; waiting for room to write needs another one of the socket.
    out = os.dup(cycle.transport.get_extra_info("socket").fileno())
    end = offset + count
    try:
        if count <= SMALL:
            offset = _burst(out, file, offset, end, patience_ms=0)
        while offset < end and not cycle.disconnected:
            await _writable(out)
            offset = await _in_thread(partial(_burst, out, file, offset, end))
    finally:
        os.close(out)


async def _in_thread(work: Callable[[], int]) -> int:
    """The work's result. It is over when this ends, also when this is cancelled: descriptors are closed then."""
    running = asyncio.get_running_loop().run_in_executor(_threads, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _burst(out: int, file: int, offset: int, end: int, patience_ms: int = PATIENCE_MS) -> int:
    """Copy until all is sent, the client makes no room, or the turn is over. Returns the offset that was reached."""
    room = select.poll()
    room.register(out, select.POLLOUT)
    until = time.monotonic() + TURN_S
    while offset < end and time.monotonic() < until:
        try:
            sent = os.sendfile(out, file, offset, end - offset)
        except BlockingIOError:
            if not room.poll(patience_ms):
                break
            continue
        if sent == 0:
            raise OSError("the file is shorter than its row says")
        offset += sent
    return offset


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)
