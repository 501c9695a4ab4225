"""Answers as bytes: pages with their two encodings, and refusals that are always the same.

Everything that does not depend on the request is made once, so that answering from the cache is a few comparisons.
"""

from __future__ import annotations

import gzip
import hashlib
from typing import Final, Protocol

import orjson
from starlette.types import Scope, Send

from hub_server.operations.middleware import note
from hub_server.problems import NotFound, NotLoggedIn, Problem
from hub_server.simple_index.negotiation import Form, accepts_gzip

Headers = list[tuple[bytes, bytes]]

SHORT = 600
"""Bytes below which compressing a body gains nothing."""


class Asked:
    """The headers of a request that matter here."""

    __slots__ = ("_headers", "scope")

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            known = self._headers.get(name)
            self._headers[name] = value if known is None else known + b", " + value

    def header(self, name: bytes) -> str | None:
        """A header's text; several of one name are one list."""
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")


class Answer(Protocol):
    """Something that can be sent."""

    async def send(self, asked: Asked, send: Send) -> None:
        """Send it."""


def _length(body: bytes) -> tuple[bytes, bytes]:
    return b"content-length", str(len(body)).encode()


class Page:
    """A body that is revalidated on every use: with its ETag, also compressed."""

    __slots__ = ("_common", "_packed", "_packed_headers", "_packed_tag", "_plain", "_plain_headers", "_tag")

    def __init__(self, body: bytes, form: Form, *, public: bool, extra: Headers | None = None) -> None:
        digest = hashlib.sha256(form.value.encode() + b"\n" + body).hexdigest()[:32]
        self._tag = f'"{digest}"'.encode()
        self._packed_tag = f'"{digest}-gzip"'.encode()
        self._common: Headers = [
            (b"cache-control", b"max-age=0, must-revalidate" if public else b"private, max-age=0, must-revalidate"),
            (b"vary", b"Accept, Accept-Encoding" if public else b"Accept, Accept-Encoding, Authorization"),
            *(extra or []),
        ]
        content_type = form.value + ("; charset=utf-8" if form is Form.PLAIN_HTML else "")
        self._plain = body
        self._packed = gzip.compress(body, 6, mtime=0) if len(body) > SHORT else None
        of_body: Headers = [(b"content-type", content_type.encode()), (b"x-content-type-options", b"nosniff")]
        self._plain_headers = [*of_body, (b"etag", self._tag), *self._common, _length(body)]
        self._packed_headers: Headers = []
        if self._packed is not None:
            encoded = [(b"content-encoding", b"gzip"), (b"etag", self._packed_tag)]
            self._packed_headers = [*of_body, *encoded, *self._common, _length(self._packed)]

    @property
    def weight(self) -> int:
        """Bytes that it takes in memory, about."""
        return len(self._plain) + len(self._packed or b"") + 2000

    async def send(self, asked: Asked, send: Send) -> None:
        """The body, or 304 if the client has it."""
        known = asked.header(b"if-none-match")
        if known is not None and (tag := self._matching(known.encode("latin-1"))) is not None:
            await send_bytes(send, 304, [(b"etag", tag), *self._common], b"")
        elif self._packed is not None and accepts_gzip(asked.header(b"accept-encoding")):
            await send_bytes(send, 200, [*self._packed_headers], self._packed)
        else:
            await send_bytes(send, 200, [*self._plain_headers], self._plain)

    def _matching(self, known: bytes) -> bytes | None:
        """The tag that the client has. A proxy that compresses may have made it a weak one."""
        if known == self._packed_tag or known == self._tag:
            return known
        tags = [tag.strip().removeprefix(b"W/") for tag in known.split(b",")]
        if self._packed_tag in tags:
            return self._packed_tag
        return self._tag if self._tag in tags or b"*" in tags else None


class Refusal:
    """A problem whose answer never differs: nothing of the request is in it."""

    __slots__ = ("_body", "_code", "_headers", "_status")

    def __init__(self, problem: Problem) -> None:
        self._code = problem.code
        self._status = problem.status
        self._body = orjson.dumps(problem.body())
        self._headers: Headers = [
            (b"content-type", b"application/json"), (b"cache-control", b"max-age=0, must-revalidate"),
            (b"vary", b"Accept, Accept-Encoding, Authorization"), _length(self._body),
            *((name.lower().encode(), value.encode()) for name, value in problem.headers.items()),
        ]  # fmt: skip

    async def send(self, asked: Asked, send: Send) -> None:
        """The same every time."""
        note(asked.scope, code=self._code)
        await send_bytes(send, self._status, [*self._headers], self._body)


class Redirect:
    """301 to the one spelling of an address, with the query string of the request; or 302 to another index."""

    __slots__ = ("_location", "_status")

    def __init__(self, location: str, status: int = 301) -> None:
        self._location = location.encode("ascii")
        self._status = status

    async def send(self, asked: Asked, send: Send) -> None:
        """Without a body."""
        query: bytes = asked.scope["query_string"]
        location = self._location + b"?" + query if query else self._location
        await send_bytes(send, self._status, [(b"location", location), (b"content-length", b"0")], b"")


class NotAcceptable(Problem):
    """No form that the client accepts."""

    status = 406
    code = "not-acceptable"
    hint = f"Accept one of: {', '.join(form.value for form in Form)}."


class MethodNotAllowed(Problem):
    """An index is read, not written."""

    status = 405
    code = "method-not-allowed"
    hint = "Upload to /legacy/ or /OWNER/legacy/."


NOT_FOUND: Final = Refusal(NotFound("this index has no such name"))
NO_FILE: Final = Refusal(NotFound("there is no such file"))
LOG_IN: Final = Refusal(NotLoggedIn("this needs a token that may read it"))
NOT_ACCEPTABLE: Final = Refusal(NotAcceptable("this is served as JSON or HTML of the Simple API"))
NOT_ALLOWED: Final = Refusal(MethodNotAllowed("this address is for GET and HEAD", headers={"Allow": "GET, HEAD"}))


async def send_bytes(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """One whole answer."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
