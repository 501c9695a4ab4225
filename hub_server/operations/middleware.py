"""What happens around every request: its id, its line in the log, its numbers, and the last word on failures.

Plain ASGI, outermost, and cheap: a project page takes a few hundred microseconds, this must stay below 30. Handlers
leave facts in the scope for it: `note(request.scope, …)`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import MutableMapping
from time import perf_counter
from typing import Any

import orjson
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hub_server.operations import metrics
from hub_server.problems import DOCS
from hub_server.settings import Settings

READING = frozenset(("GET", "HEAD", "OPTIONS"))
METHODS = READING | {"POST", "PUT", "PATCH", "DELETE"}
READS_BY_POST = frozenset(("/api/v1/resolve",))
MAX_BODY = 4 << 20
"""Bytes of a request that is read into memory."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}\Z")
_NOTES = "hub.notes"

REFUSALS = {
    "read-only": (503, "the hub is read-only at the moment", "Try again later; reading works."),
    "shutting-down": (503, "the hub is being restarted", "Send it again in a few seconds: nothing was stored."),
    "internal": (500, "the hub failed, and its log says why", "Tell the hub's operator the request id."),
}
"""What the middleware itself answers: code → status, message, hint."""


def note(scope: MutableMapping[str, Any], **facts: Any) -> None:
    """Leave facts for the request's line in the log: `principal`, `token`, `code` of a refusal."""
    scope.setdefault(_NOTES, {}).update(facts)


class Watch:
    """The middleware."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.read_only = settings.read_only
        self.log = structlog.get_logger()
        self.routes: dict[tuple[str, str, int], Any] = {}
        self.seconds: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        await _Request(self, scope, receive, send).run()

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Add a request to the numbers. Label lookups are kept: they cost more than counting."""
        key = (method, route, status)
        counter = self.routes.get(key)
        if counter is None:
            counter = self.routes[key] = metrics.REQUESTS.labels(method, route, str(status))
        histogram = self.seconds.get(route)
        if histogram is None:
            histogram = self.seconds[route] = metrics.SECONDS.labels(route)
        counter.inc()
        histogram.observe(seconds)


class _Request:
    """One request on its way through."""

    __slots__ = ("id", "owner", "receive", "received", "scope", "send", "sent", "status")

    def __init__(self, owner: Watch, scope: Scope, receive: Receive, send: Send) -> None:
        self.owner, self.scope, self.receive, self.send = owner, scope, receive, send
        self.status = self.received = self.sent = 0
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
        self.id = given if given and _REQUEST_ID.match(given) else secrets.token_hex(8).encode()

    async def run(self) -> None:
        """Answer, whatever happens, and write it down."""
        began = perf_counter()
        metrics.IN_FLIGHT.inc()
        scope, failure = self.scope, None
        try:
            if self.owner.read_only and scope["method"] not in READING and scope["path"] not in READS_BY_POST:
                await self.refuse("read-only")
            else:
                await self.owner.app(scope, self.hear, self.say)
        except ClientDisconnect:
            self.status = self.status or 499  # nginx's number for a client that has left
        except asyncio.CancelledError:
            await self.refuse("shutting-down")
        except Exception as error:  # the last boundary: the client gets the one shape, the log the traceback
            failure = error
            await self.refuse("internal")
        finally:
            metrics.IN_FLIGHT.dec()
            self.write_down(perf_counter() - began, failure)

    async def hear(self) -> Message:
        """Count what comes in. What a handler reads into memory has a limit; files have their own."""
        message = await self.receive()
        if body := message.get("body"):
            self.received += len(body)
            if self.received > MAX_BODY and not self.is_file():
                raise HTTPException(413, f"the body of this request has more than {MAX_BODY:,} bytes")
        return message

    def is_file(self) -> bool:
        """Whether the body is an upload."""
        path = self.scope["path"].rstrip("/")
        return path.endswith("/legacy") or (self.scope["method"] == "PUT" and "/releases/" in path)

    async def say(self, message: Message) -> None:
        """Put the request's id on the answer, and count what goes out."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self.id)]
        elif body := message.get("body"):
            self.sent += len(body)
        else:
            self.sent += message.get("count", 0)  # a file that the kernel sends (hub_server.simple_index.sendfile)
        await self.send(message)

    async def refuse(self, code: str) -> None:
        """Answer in the one shape; uploads by twine and uv get the sentence alone."""
        if self.status:
            return  # the answer has begun: the broken connection tells the client
        status, message, hint = REFUSALS[code]
        note(self.scope, code=code)
        if self.scope["path"].rstrip("/").endswith("/legacy"):
            kind, body = b"text/plain; charset=utf-8", f"{message}. {hint}\n".encode()
        else:
            kind = b"application/json"
            body = orjson.dumps({"code": code, "message": message, "hint": hint, "docs": DOCS})
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), (b"connection", b"close")]
        if status == 503:
            headers.append((b"retry-after", b"10"))
        await self.say({"type": "http.response.start", "status": status, "headers": headers})
        await self.say({"type": "http.response.body", "body": body if self.scope["method"] != "HEAD" else b""})

    def write_down(self, seconds: float, failure: Exception | None) -> None:
        """One line of the log, and the numbers."""
        scope = self.scope
        method = scope["method"] if scope["method"] in METHODS else "OTHER"  # labels are for ever: none by a stranger
        route = getattr(scope.get("route"), "path", "other")
        self.owner.count(method, route, self.status, seconds)
        if self.received:
            metrics.RECEIVED.inc(self.received)
        metrics.SENT.inc(self.sent)
        notes = scope.get(_NOTES, {})
        if (principal := scope.get("state", {}).get("principal")) is not None:  # hub_server.accounts.auth
            notes = {"principal": principal.slug, "token": principal.token_id, **notes}
        if code := notes.get("code"):
            metrics.REFUSALS.labels(code).inc()
        client = scope.get("client")
        log = self.owner.log
        write = log.error if failure is not None else log.info
        write(
            "request", method=method, route=route, path=scope["path"][:300], status=self.status,
            ms=round(seconds * 1000, 2), received=self.received, sent=self.sent,
            client=client[0] if client else None, request_id=self.id.decode(), **notes,
            **({"exc_info": failure} if failure is not None else {}),
        )  # fmt: skip
