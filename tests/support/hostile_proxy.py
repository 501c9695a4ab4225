"""A proxy that drops connections at the worst moments: before a request is sent on, after it was, within the answer."""

import asyncio
from collections import deque
from contextlib import suppress
from urllib.parse import urlsplit

MODES = ("before", "within the request", "after", "within the answer")


class HostileProxy:
    """Stands before the server at `url`. Each request takes the next of `plan`, a mode of `MODES`; none: it is passed.

    A request is what comes from the client after a byte of the last answer; `dropped` counts.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname, parts.port)
        self.plan: deque[str] = deque()
        self.dropped = 0
        self.url = ""

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._open = {}
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for writer in self._open.values():
            writer.transport.abort()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader, writer):
        self._open[asyncio.current_task()] = writer
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        mode = {"now": None}
        try:
            ways = [
                asyncio.ensure_future(self._there(reader, far_writer, mode)),
                asyncio.ensure_future(self._back(far_reader, writer, mode)),
            ]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            for one in (writer, far_writer):
                one.transport.abort()
            for one in (writer, far_writer):
                with suppress(OSError):
                    await one.wait_closed()
            del self._open[asyncio.current_task()]

    async def _there(self, reader, writer, mode):
        fresh = True
        while data := await reader.read(1 << 16):
            if fresh or mode["now"] == "answered":
                mode["now"], fresh = (self.plan.popleft() if self.plan else None), False
            if mode["now"] in ("before", "within the request"):
                self.dropped += 1
                if mode["now"] == "within the request":
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                return
            writer.write(data)
            await writer.drain()

    async def _back(self, reader, writer, mode):
        while data := await reader.read(1 << 16):
            if mode["now"] in ("after", "within the answer"):
                self.dropped += 1
                if mode["now"] == "within the answer":
                    writer.write(data[: len(data) * 2 // 3])
                    await writer.drain()
                return
            mode["now"] = "answered"
            writer.write(data)
            await writer.drain()
