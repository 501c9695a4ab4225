"""The host's side of the connection to an agent in a sandbox (`guest/agent/`), over any stream of bytes.

    channel = Channel()
    await loop.create_unix_connection(lambda: channel, sock=sock)
    await channel.ready(seconds=10)
    number = channel.open(listener)          # gets this id's frames
    channel.send(RUN, number, body)

A frame: length of the body and id (4 bytes each, little-endian), kind (1 byte), body. What comes from the agent is
untrusted, since hostile code runs beside it: a frame of a wrong length, kind or form ends the connection, and one for
an id that nobody waits for is dropped.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Protocol

from verifiers.errors import ConfigError, SandboxDiedError, SandboxError
from verifiers.sandboxes.guest.agent.wire import GONE, OUT, READY, VERSION

MAX_BODY = (1 << 20) + (1 << 16)
"""No frame of an agent is longer."""

_HEAD = struct.Struct("<IIB")


class Listener(Protocol):
    """Who waits for the frames of an id."""

    def frame(self, kind: int, body: bytes) -> None:
        """One frame. ValueError: it has not the form it should have."""

    def lost(self, error: SandboxError) -> None:
        """No more will come."""


class Channel(asyncio.Protocol):
    """Frames to and from one agent."""

    def __init__(self) -> None:
        self.error: SandboxError | None = None
        self._listeners: dict[int, Listener] = {}
        self._buffer = bytearray()
        self._number = 0
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._used = self._loop.time()
        self.started: asyncio.Future[None] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._can_write = asyncio.Event()
        self._can_write.set()

    # --- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        at, size = 0, len(buffer)
        try:
            while size - at >= 9:
                length, number, kind = _HEAD.unpack_from(buffer, at)
                if length > MAX_BODY:
                    raise ValueError(f"a frame of {length} bytes")
                if size - at < 9 + length:
                    break
                self._take(number, kind, bytes(buffer[at + 9 : at + 9 + length]))
                at += 9 + length
        except ValueError as error:
            self.fail(SandboxDiedError(f"the sandbox's agent broke the protocol: {error}"))
            return
        del buffer[:at]

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail(SandboxDiedError("the sandbox has ended"))
        if not self.closed.done():
            self.closed.set_result(None)

    def _take(self, number: int, kind: int, body: bytes) -> None:
        if number:
            listener = self._listeners.get(number)
            if listener is not None:
                listener.frame(kind, body)
            elif not OUT <= kind <= GONE:
                raise ValueError(f"a frame of kind {kind}")
        elif kind != READY:
            raise ValueError(f"a frame of kind {kind}")
        elif not self.started.done():
            if body.split()[:1] != [b"%d" % VERSION]:
                raise ValueError("another version")
            self.started.set_result(None)

    # --- for those who use it

    def check_loop(self) -> None:
        """ConfigError: this is not the event loop that hears the agent, so that an answer would never come."""
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError(
                "a sandbox is used in another event loop than it was made in",
                hint="Use one asyncio.run for all of it, or verifiers.sandboxes.sync from code without a loop.",
            )

    def open(self, listener: Listener) -> int:
        """An id whose frames `listener` gets. Raises if the connection has ended."""
        self.check_loop()
        if self.error is not None:
            raise self.error.with_traceback(None)
        self._number = self._number % 0xFFFFFFFF + 1
        self._used = self._loop.time()
        self._listeners[self._number] = listener
        return self._number

    def forget(self, number: int) -> None:
        """Nobody waits for this id any more."""
        self._listeners.pop(number, None)
        self._used = self._loop.time()

    @property
    def idle_s(self) -> float:
        """Seconds since somebody last waited for something; 0 while somebody does."""
        return 0.0 if self._listeners else self._loop.time() - self._used

    def send(self, kind: int, number: int, body: bytes = b"") -> None:
        """Send a frame; nothing is sent over a connection that has ended."""
        if self._transport is not None and self.error is None:
            self._transport.write(_HEAD.pack(len(body), number, kind) + body)

    async def drained(self) -> None:
        """Wait while much is waiting to be sent."""
        await self._can_write.wait()

    def fail(self, error: SandboxError) -> None:
        """End the connection: everybody who waits is told."""
        if self.error is None:
            self.error = error
            if self._transport is not None and not self._loop.is_closed():
                self._transport.abort()
            self._can_write.set()
            if not self.started.done():
                self.started.set_exception(error)
                self.started.exception()  # it may be that nobody asks
            listeners, self._listeners = self._listeners, {}
            for listener in listeners.values():
                listener.lost(error)


def unpack(body: bytes) -> list[bytes]:
    """What the agent's `pack` was given. ValueError: it is no such body."""
    if len(body) < 4:
        raise ValueError("a body of too few bytes")
    (count,) = struct.unpack_from("<I", body)
    at = 4 + 4 * count
    if at > len(body):
        raise ValueError("a body of too few bytes")
    parts = []
    for size in struct.unpack_from(f"<{count}I", body, 4):
        parts.append(body[at : at + size])
        at += size
    if at != len(body):
        raise ValueError("a body of another length than it says")
    return parts


def numbers(body: bytes, count: int) -> list[int]:
    """`count` non-negative decimal numbers. ValueError: it is something else."""
    words = body.split(b" ")
    if len(words) != count or not all(word.isdigit() and len(word) < 20 for word in words):
        raise ValueError("numbers that are none")
    return [int(word) for word in words]
