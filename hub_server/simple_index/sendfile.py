"""uvicorn's HTTP protocol with ASGI's extension `http.response.zerocopysend`: the kernel copies a file to the socket.

    uvicorn.Config(app, http=ZeroCopyProtocol)

A download then costs no memory and hardly any Python. It is not offered under TLS, where bytes must be encrypted
first; the application streams there. uvicorn has no such extension of its own, and uvloop no `loop.sendfile`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

EXTENSION = "http.response.zerocopysend"
AT_ONCE = 4 << 20
"""Bytes after which other requests get a turn."""


class ZeroCopyProtocol(HttpToolsProtocol):
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
        while offset < end and not cycle.disconnected:
            try:
                sent = os.sendfile(out, file, offset, min(end - offset, AT_ONCE))
            except BlockingIOError:
                await _writable(out)
                continue
            if sent == 0:
                raise OSError("the file is shorter than its row says")
            offset += sent
            await asyncio.sleep(0)
    finally:
        os.close(out)


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)
