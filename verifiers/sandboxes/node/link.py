"""The way to one node: requests that are answered, or fail by name within a known time.

    link = Link("http://10.0.0.1:8475", token)
    answer = await link.ask(f"/sandboxes/{id}/exec", {"command": "echo hi"}, launch=True)

A request that changes something has a key, under which the node does it once: so all requests are repeated when the
connection breaks, and no launch is. The node gives signs of life while it works; without any for `Patience.silence`, or
when every attempt failed, a probe decides what is told: the node does not answer (`SandboxUnreachableError`), or it is
another one by now, whose sandboxes have died with the one before (`SandboxDiedError`). Cancelling a request with a key
cancels what it began.
"""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp

from verifiers.errors import (
    ConfigError,
    ProtocolError,
    SandboxDiedError,
    SandboxError,
    SandboxSettingsError,
    SandboxUnreachableError,
)
from verifiers.sandboxes.host.trees import PIECE
from verifiers.sandboxes.node.wire import (
    BEAT,
    BROKEN,
    DONE,
    FRAMES,
    KEY,
    OWNER,
    PROTOCOL,
    Answer,
    error_of,
    header_of,
    pack,
    receive,
)

TOKEN_VARIABLE = "VF_SANDBOXD_TOKEN"  # noqa: S105 - the name of a variable
DONE_KEYS = 20
"""Of so many launches a request tells that their answers have arrived."""
T = TypeVar("T")
FAILURES = (aiohttp.ClientError, *BROKEN)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a node is waited for, in seconds.

    connect: for the connection. beat: the node gives a sign of life so often while it works. silence: without one for
    so long the node is probed. probe: for the answer to that. attempts: how often a request is made; pause: before the
    second, twice as long before each further.
    """

    connect: float = 5.0
    beat: float = 5.0
    silence: float = 20.0
    probe: float = 5.0
    attempts: int = 4
    pause: float = 0.1


PATIENCE = Patience()


class Link:
    """Connections to one node. Used from one event loop; `close` ends them."""

    def __init__(self, url: str, token: str | None = None, *, patience: Patience = PATIENCE) -> None:
        self.node = url.rstrip("/")
        self.patience = patience
        self.owner = uuid.uuid4().hex
        self.instance: str | None = None
        self._token = os.environ.get(TOKEN_VARIABLE) if token is None else token
        parts = urlsplit(self.node)
        if parts.scheme not in ("http", "https", "unix"):
            raise SandboxSettingsError(f"{url!r} is no address of a node", hint="http://HOST:PORT or unix:/PATH.")
        self._socket = parts.path if parts.scheme == "unix" else None
        self._base = "http://node" if self._socket else self.node
        self._closed = False
        self._session: aiohttp.ClientSession | None = None
        self._done: deque[str] = deque(maxlen=1000)
        self._abandoned: deque[str] = deque(maxlen=1000)
        self._cancelling: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Close the connections, once what was cancelled has been told of. Nothing can be asked any more."""
        self._closed = True
        if self._cancelling:
            await asyncio.wait(self._cancelling, timeout=self.patience.probe)
        if self._session is not None:
            await self._session.close()
            self._session = None

    # --- asking ---------------------------------------------------------------------------------------------------

    async def ask(
        self,
        path: str,
        arguments: Mapping[str, Any] | None = None,
        blob: bytes | None = None,
        *,
        method: str = "POST",
        launch: bool = False,
        query: Mapping[str, str] | None = None,
        body: Callable[[], AsyncIterator[bytes]] | None = None,
    ) -> Answer:
        """The answer to a request. launch: it is done once, and ended when the caller is cancelled.

        body: makes what is sent instead of arguments, for each attempt anew.
        """
        headers = {KEY: uuid.uuid4().hex} if launch else {}
        data: Any = None
        if blob is not None:
            headers["Content-Type"] = FRAMES
            data = pack(Answer({**(arguments or {})})) + blob
        elif arguments is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(dict(arguments)).encode()

        async def attempt() -> Answer:
            large = data is not None and len(data) > PIECE
            pieces = body if body is not None else (lambda: _pieces(data)) if large else None
            if pieces is not None:
                return await self._send(method, path, headers, query, pieces())
            async with self._open(method, path, headers, query, data) as response:
                return await self._answer(response)

        try:
            answer = await self.attempts(attempt)
        except asyncio.CancelledError:
            if launch:
                await self._cancel(headers[KEY])
            raise
        except SandboxUnreachableError:
            if launch:
                self._abandoned.append(headers[KEY])
            raise
        if launch:
            self._done.append(headers[KEY])
        return answer

    async def _send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        query: Mapping[str, str] | None,
        pieces: AsyncIterator[bytes],
    ) -> Answer:
        """The answer to a request that is sent in pieces, each within `silence`: aiohttp's time begins after them."""
        failed: list[Exception] = []
        async with asyncio.timeout(None) as timer:
            try:
                async with self._open(method, path, headers, query, self._watched(pieces, timer, failed)) as response:
                    return await self._answer(response)
            except aiohttp.ClientError:
                if failed:  # it was not the connection
                    raise failed[0] from None
                raise

    @asynccontextmanager
    async def stream(self, path: str, query: Mapping[str, str]) -> AsyncIterator[aiohttp.StreamReader]:
        """The messages of an answer that comes piece by piece. One attempt: raises `FAILURES`, and errors answered."""
        async with self._open("GET", path, {}, query, None) as response:
            if response.content_type != FRAMES:
                await self._answer(response)
                raise ProtocolError(f"node {self.node} answered with something else")
            yield response.content

    async def _watched(
        self, pieces: AsyncIterator[bytes], timer: asyncio.Timeout, failed: list[Exception]
    ) -> AsyncIterator[bytes]:
        """The pieces; the timer runs while one is not taken. `failed`: what went wrong in making them."""
        loop = asyncio.get_running_loop()
        try:
            async for piece in pieces:
                timer.reschedule(loop.time() + self.patience.silence)
                yield piece
        except Exception as error:
            failed.append(error)
            raise
        timer.reschedule(None)

    async def attempts(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """What an attempt gives; a broken connection is no answer, and the next may be better."""
        patience = self.patience
        for number in range(patience.attempts):
            try:
                return await attempt()
            except FAILURES as error:
                failure = error
                self._connected()  # raises when all was closed meanwhile
                if isinstance(error, TimeoutError):
                    break  # it stands still: asking again would only double the wait
            if number + 1 < patience.attempts:
                await asyncio.sleep(patience.pause * 2**number)
        raise await self.named(failure) from failure

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, headers: Mapping[str, str], query: Mapping[str, str] | None, data: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        patience = self.patience
        sent = {**headers, OWNER: self.owner, BEAT: str(patience.beat)}
        if self._token:
            sent["Authorization"] = f"Bearer {self._token}"
        if self._done:
            sent[DONE] = " ".join(self._done.popleft() for _ in range(min(DONE_KEYS, len(self._done))))
        times = aiohttp.ClientTimeout(total=None, connect=patience.connect, sock_read=patience.silence)
        session = self._connected()
        async with session.request(
            method, self._base + path, headers=sent, params=query, data=data, timeout=times
        ) as response:
            yield response

    def _connected(self) -> aiohttp.ClientSession:
        if self._closed:
            raise SandboxError(f"the connection to node {self.node} was closed here", hint="Open a new provider.")
        if self._session is None:
            connector: aiohttp.BaseConnector
            if self._socket:
                connector = aiohttp.UnixConnector(self._socket, limit=0)
            else:
                connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
            self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, trust_env=False)
        return self._session

    async def _answer(self, response: aiohttp.ClientResponse) -> Answer:
        if response.content_type == FRAMES:
            return self.checked(await receive(response.content))
        body = await response.read()
        if response.content_type != "application/json":
            raise ProtocolError(
                f"{self.node} answered with status {response.status} and {response.content_type}",
                hint="Check that a sandboxd listens there, not something else.",
            )
        return self.checked(Answer(header_of(body)))

    def checked(self, answer: Answer) -> Answer:
        """The answer, unless it is an error: that is raised."""
        record = answer.header.get("error")
        if isinstance(record, dict):
            error = error_of(record, self.node)
            if isinstance(error, ConfigError) and "token" in str(error):
                hint = f"Set {TOKEN_VARIABLE} to the token that the node was started with."
                raise SandboxSettingsError(str(error), hint=hint)
            raise error
        return answer

    # --- when it fails --------------------------------------------------------------------------------------------

    async def health(self) -> dict[str, Any]:
        """What the node tells of itself.

        Raises `FAILURES` within the time of a probe; SandboxSettingsError: wrong token.
        """
        async with asyncio.timeout(self.patience.probe):
            async with self._open("GET", "/health", {}, None, None) as response:
                found = (await self._answer(response)).header
        if "instance" not in found:
            await self.ask("/capabilities", method="GET")  # raises: it does not know us
        if found.get("protocol") != PROTOCOL:
            theirs = found.get("protocol")
            raise ProtocolError(f"node {self.node} speaks version {theirs} of the protocol, not {PROTOCOL}")
        return found

    async def named(self, failure: BaseException) -> SandboxError:
        """What a broken connection means, found out by asking the node."""
        try:
            found = await self.health()
        except FAILURES:
            return self.silent(failure)
        if self.instance not in (None, found["instance"]):
            return SandboxDiedError(f"node {self.node} was started anew: its sandboxes are gone")
        return SandboxUnreachableError(f"node {self.node} answers, but requests to it break ({_text(failure)})")

    def silent(self, failure: BaseException) -> SandboxUnreachableError:
        """Nobody answers there."""
        return SandboxUnreachableError(f"node {self.node} does not answer ({_text(failure)})")

    async def beat(self) -> None:
        """Tell the node that its client lives, and end there what failed here while the node could not be reached."""
        await self.ask("/beat", {})
        while self._abandoned:
            await self._cancel(self._abandoned.popleft())

    async def _cancel(self, key: str) -> None:
        """Tell the node that nobody wants what this key began; goes on if the caller is cancelled once more."""

        async def tell() -> None:
            async def attempt() -> Answer:
                data = json.dumps({"key": key}).encode()
                headers = {"Content-Type": "application/json"}
                async with self._open("POST", "/cancel", headers, None, data) as response:
                    return await self._answer(response)

            try:
                async with asyncio.timeout(self.patience.silence):
                    await self.attempts(attempt)
            except (SandboxError, TimeoutError):
                pass  # it ends by itself when nobody asks for it, or with its owner's lease

        task = asyncio.create_task(tell())
        self._cancelling.add(task)
        task.add_done_callback(self._cancelling.discard)
        await asyncio.shield(task)


def _text(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):  # whose text has the address once more, in two forms
        return error.strerror or str(error.os_error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]
