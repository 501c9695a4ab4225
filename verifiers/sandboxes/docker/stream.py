"""The streams of a container, as the engine attaches them: what is sent is its input, what comes its output in pieces.

The engine answers with 101 (or 200), and from there on the connection is the container's. A piece: 1 for stdout or 2
for stderr, three zeros, its length (4 bytes, big-endian), its bytes
(https://docs.docker.com/reference/api/engine/version/v1.44/#tag/Container/operation/ContainerAttach).
"""

from __future__ import annotations

import asyncio
import struct

from verifiers.errors import SandboxCreationError, SandboxDiedError
from verifiers.sandboxes.docker.engine import message_of
from verifiers.sandboxes.host.channel import Channel

LONGEST_HEAD = 1 << 16
WORDS = 4096
"""Bytes of stderr that are kept: why an agent did not start."""
MAX_PIECE = 1 << 26
_PIECE = struct.Struct(">BxxxI")


class Attached(asyncio.Protocol):
    """Feeds a `Channel` with the container's stdout."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._buffer = bytearray()
        self._words = bytearray()
        self._transport: asyncio.BaseTransport | None = None
        self.open: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def words(self) -> str:
        """What the container said on stderr."""
        return self._words.decode(errors="replace").strip()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._channel.connection_made(transport)

    def pause_writing(self) -> None:
        self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._channel.resume_writing()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self.open.done() and not self._answered():
            return
        at, size = 0, len(self._buffer)
        while size - at >= _PIECE.size:
            stream, length = _PIECE.unpack_from(self._buffer, at)
            if stream not in (0, 1, 2) or length > MAX_PIECE:
                self._channel.fail(SandboxDiedError("the container engine sent a stream that is none"))
                return
            start = at + _PIECE.size
            if size - start < length:
                break
            piece = bytes(self._buffer[start : start + length])
            at = start + length
            if stream == 2:
                self._words += piece[: WORDS - len(self._words)]
            else:
                self._channel.data_received(piece)
        del self._buffer[:at]

    def _answered(self) -> bool:
        """Whether the engine's answer has come, and is a yes."""
        head, end, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if not end:
            if len(head) > LONGEST_HEAD:
                self._refuse("an answer without an end")
            return False
        if head.split(b" ", 2)[1:2] not in ([b"101"], [b"200"]):
            status = head.partition(b"\r\n")[0].decode(errors="replace")
            self._refuse(f"{status}: {message_of(rest.decode(errors='replace'))}")
            return False
        self._buffer[:] = rest
        self.open.set_result(None)
        return True

    def _refuse(self, what: str) -> None:
        self._close(SandboxCreationError(f"the container's streams cannot be attached: {what}"))

    def _close(self, error: SandboxCreationError) -> None:
        if not self.open.done():
            self.open.set_exception(error)
            self.open.exception()  # it may be that nobody asks
        if self._transport is not None and isinstance(self._transport, asyncio.Transport):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._close(SandboxCreationError("the container engine hung up while its streams were attached"))
        self._channel.connection_lost(exc)
