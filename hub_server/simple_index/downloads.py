"""Files and their METADATA sidecars: whole, in part, or only their headers.

A blob that is a file of this machine goes out without passing through Python where the server offers that (ASGI's
extension `http.response.zerocopysend`, see `sendfile.py`); everything else is streamed in chunks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from hub_server.problems import Unavailable
from hub_server.simple_index.ranges import Span, UnsatisfiableError, parse_range
from hub_server.simple_index.responses import Asked, Headers, send_bytes
from hub_server.simple_index.service import FileRef
from hub_server.storage import Storage

ZERO_COPY = "http.response.zerocopysend"
FOR_EVER = b"max-age=365000000, immutable"


class BlobMissing(Unavailable):
    """The database names bytes that the storage has not."""

    code = "blob-missing"
    hint = "Tell the operator of the hub: hub fsck lists what is missing."

    def __init__(self, digest: str) -> None:
        super().__init__(f"the bytes of {digest} are missing")


class Download:
    """Sends one blob of known size."""

    def __init__(self, storage: Storage, file: FileRef, digest: str, size: int) -> None:
        self._storage = storage
        self._digest = digest
        self._size = size
        self._etag = f'"{digest}"'
        kind = b"public" if file.project.public else b"private"
        self._headers: Headers = [
            (b"content-type", b"application/octet-stream"), (b"etag", self._etag.encode()),
            (b"cache-control", kind + b", " + FOR_EVER), (b"accept-ranges", b"bytes"),
            (b"x-content-type-options", b"nosniff"),
        ]  # fmt: skip

    async def answer(self, asked: Asked, receive: Receive, send: Send) -> None:
        """The status, the headers and what of the bytes is asked for."""
        if self._is_known(asked.header(b"if-none-match")):
            await send_bytes(send, 304, self._headers, b"")
            return
        try:
            span = self._span(asked)
        except UnsatisfiableError:
            range_ = (b"content-range", f"bytes */{self._size}".encode())
            await send_bytes(send, 416, [*self._headers, range_, (b"content-length", b"0")], b"")
            return
        status = 200 if span is None else 206
        headers = list(self._headers)
        if span is not None:
            headers.append((b"content-range", f"bytes {span.start}-{span.end - 1}/{self._size}".encode()))
        span = span or Span(0, self._size)
        headers.append((b"content-length", str(span.end - span.start).encode()))
        if asked.scope["method"] == "HEAD":
            await send_bytes(send, status, headers, b"")
        else:
            await self._send(asked.scope, receive, send, status, headers, span)

    def _is_known(self, known: str | None) -> bool:
        if known is None:
            return False
        tags = [tag.strip().removeprefix("W/") for tag in known.split(",")]
        return self._etag in tags or "*" in tags

    def _span(self, asked: Asked) -> Span | None:
        """The part that is asked for; a condition on another version of the file asks for the whole."""
        condition = asked.header(b"if-range")
        if condition is not None and condition.strip() != self._etag:
            return None
        return parse_range(asked.header(b"range"), self._size)

    async def _send(
        self, scope: Scope, receive: Receive, send: Send, status: int, headers: Headers, span: Span
    ) -> None:
        # Opening a local file takes microseconds; a thread for it would take more.
        path = self._storage.local_path(self._digest)
        if path is not None and ZERO_COPY in (scope.get("extensions") or {}):
            await _send_from_disk(path, send, status, headers, span)
            return
        chunks = self._storage.read(self._digest, span.start, span.end)
        try:
            first = await anyio.to_thread.run_sync(next, chunks, b"")
        except KeyError:
            raise BlobMissing(self._digest) from None
        response = StreamingResponse(_joined(first, chunks), status)
        response.raw_headers = headers
        await response(scope, receive, send)


async def _send_from_disk(path: Path, send: Send, status: int, headers: Headers, span: Span) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": ZERO_COPY, "file": descriptor, "offset": span.start, "count": span.end - span.start})
    finally:
        os.close(descriptor)


def _joined(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from rest
