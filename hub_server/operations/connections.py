"""uvicorn's HTTP protocol with bounds on what a connection may cost before a request is there, or while it stalls.

Neither uvicorn nor httptools bounds the head of a request, or the time that it may take: a client that sends a header
without end fills the memory, and clients that send nothing at all use up the descriptors.
"""

from __future__ import annotations

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES = 1 << 20
"""Of a request line and headers together, and a piece as the kernel hands it over: far above what any client sends."""

HEAD_SECONDS = 60.0
"""For the head of a request, from the connection or its first byte on."""

BODY_SECONDS = 300.0
"""Without a byte of a body that the hub waits for."""

CHECK_SECONDS = 15.0


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections that are beyond these bounds. An idle one between two requests is uvicorn's to close."""

    _head_since: float | None = None
    _head_bytes = 0
    _in_body = False
    _heard = 0.0
    _check: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Wait for a request."""
        super().connection_made(transport)
        self._head_since = self.loop.time()
        self._check = self.loop.call_later(CHECK_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Count what is of a head. The piece that ends it may hold some of the body, too."""
        self._heard = self.loop.time()
        if self._head_since is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.send_400_response("The head of the request is too large.")
                return
        super().data_received(data)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        if self._head_since is None:
            self._head_since, self._head_bytes = self._heard, 0

    def on_headers_complete(self) -> None:
        """The head is there."""
        self._head_since, self._head_bytes, self._in_body = None, 0, True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is, too."""
        self._in_body = False
        super().on_message_complete()

    def _look(self) -> None:
        at = self.loop.time()
        late = self._head_since is not None and at - self._head_since > HEAD_SECONDS
        stalls = self._in_body and not self.flow.read_paused and at - self._heard > BODY_SECONDS
        if (late or stalls) and not self.transport.is_closing():
            self.transport.abort()
            return
        self._check = self.loop.call_later(CHECK_SECONDS, self._look)
