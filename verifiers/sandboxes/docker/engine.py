"""The way to a container engine: its HTTP interface, as Docker defines it and Podman speaks it too.

    engine = Engine(find("docker"))
    status, made = await engine.ask("POST", "/containers/create", query={"name": name}, body={…}, also=(404,))

Everything that is asked here has the same outcome when it is asked twice (containers have names that we give), so that
a request is repeated when the connection broke, and no container is made or started twice.
See https://docs.docker.com/reference/api/engine/ and podman-system-service(1).
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import aiohttp

from verifiers.errors import (
    ConfigError,
    SandboxBusyError,
    SandboxError,
    SandboxUnreachableError,
    SandboxUnsupportedError,
)

API = (1, 44)
"""The version of the interface that is spoken, if the engine knows it; else its own nearest."""
ANSWER_S = 60.0
ATTEMPTS = 3
PAUSE_S = 0.2
BUSY = (429, 503)
FAILURES = (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError)
DOCKER_SOCKET = "/var/run/docker.sock"
START = {
    "docker": "Start Docker (systemctl start docker), or say where it answers: DOCKER_HOST=unix:///PATH.",
    "podman": "Start it (systemctl --user start podman.socket), or say where it answers: CONTAINER_HOST=unix:///PATH.",
}


def find(kind: str, environ: Mapping[str, str] | None = None) -> str:
    """Where the engine answers: what its variable says, or the socket that it has by default."""
    variables = os.environ if environ is None else environ
    if told := variables.get("CONTAINER_HOST" if kind == "podman" else "DOCKER_HOST"):
        return told
    if kind == "docker":
        desktop = Path.home() / ".docker" / "run" / "docker.sock"
        return f"unix://{desktop if desktop.exists() and not Path(DOCKER_SOCKET).exists() else DOCKER_SOCKET}"
    own = Path(variables.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}") / "podman" / "podman.sock"
    return f"unix://{own}" if own.exists() else "unix:///run/podman/podman.sock"


class Engine:
    """Connections to one engine. address: unix:///PATH or tcp://HOST:PORT. Used from one event loop."""

    def __init__(self, address: str, *, kind: str = "docker") -> None:
        parts = urlsplit(address)
        self.address, self.kind = address, kind
        self.path = parts.path if parts.scheme == "unix" else ""
        if not self.path and not (parts.scheme in ("tcp", "http") and parts.hostname and parts.port):
            raise ConfigError(f"{address!r} is no address of a container engine", hint=START[kind])
        self.host, self.port = parts.hostname or "localhost", parts.port or 0
        self.tls = None if self.path else _tls()
        self._session: aiohttp.ClientSession | None = None
        self._prefix = ""

    @property
    def local(self) -> bool:
        """Whether it sees the files of this machine."""
        return bool(self.path)

    async def begin(self) -> dict[str, Any]:
        """What the engine says of itself (`/version`); agrees on the version to speak. Again: nothing new."""
        _, found = await self.ask("GET", "/version")
        newest, oldest = _version(found.get("ApiVersion")), _version(found.get("MinAPIVersion") or "1.24")
        spoken = max(oldest, min(API, newest))
        self._prefix = f"/v{spoken[0]}.{spoken[1]}"
        return dict(found)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        also: tuple[int, ...] = (),
        seconds: float = ANSWER_S,
    ) -> tuple[int, Any]:
        """Status and answer: JSON, or lines of it as a list. A status of `also` is an answer; other errors raise."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._once(method, path, query, body, also, seconds)
            except SandboxBusyError:
                if attempt == ATTEMPTS:
                    raise
            except FAILURES as error:
                if attempt == ATTEMPTS or isinstance(error, FileNotFoundError | PermissionError):
                    raise self.unreachable(error) from error
            await asyncio.sleep(PAUSE_S * attempt)
        raise AssertionError

    async def _once(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, also: tuple[int, ...], seconds: float
    ) -> tuple[int, Any]:
        if self._session is None:
            connector = aiohttp.UnixConnector(self.path) if self.path else aiohttp.TCPConnector(ssl=self.tls or False)
            self._session = aiohttp.ClientSession(connector=connector)
        options: Any = {"params": query, "json": body, "timeout": aiohttp.ClientTimeout(total=seconds)}
        try:
            async with self._session.request(method, self.url(path), **options) as answer:
                text = await answer.text()
        except aiohttp.ClientConnectorError as error:
            raise error.os_error from error
        if answer.status < 400 or answer.status in also:
            return answer.status, _parsed(text)
        raise refusal(f"{method} {path}", answer.status, text, answer.headers.get("Retry-After"))

    def url(self, path: str) -> str:
        """Of a request."""
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port or 80}{self._prefix}{path}"

    def unreachable(self, error: BaseException) -> SandboxError:
        """What is told when no request gets there."""
        what = f"no container engine answers at {self.address}: {str(error) or type(error).__name__}"
        if isinstance(error, PermissionError):
            let = "Let this user open it (for Docker: be in the group docker)."
            return SandboxUnsupportedError(what, hint=f"{let} {START[self.kind]}")
        if isinstance(error, FileNotFoundError | ConnectionRefusedError) and not self._prefix:
            return SandboxUnsupportedError(what, hint=START[self.kind])  # it was never there
        return SandboxUnreachableError(what, hint="Check that the engine runs; its own log tells what ended it.")

    async def attach(self, container: str, protocol: asyncio.Protocol) -> asyncio.Transport:
        """A connection of its own whose first words ask for the container's streams; the rest is `protocol`'s."""
        query = urlencode({"stream": 1, "stdin": 1, "stdout": 1, "stderr": 1})
        head = (
            f"POST {self._prefix}/containers/{container}/attach?{query} HTTP/1.1\r\nHost: {self.host}\r\n"
            "Content-Length: 0\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_S):
                if self.path:
                    made: Any = await loop.create_unix_connection(lambda: protocol, self.path)
                else:
                    made = await loop.create_connection(lambda: protocol, self.host, self.port, ssl=self.tls)
        except FAILURES as error:
            raise self.unreachable(error) from error
        transport: asyncio.Transport = made[0]
        transport.write(head.encode())
        return transport

    async def close(self) -> None:
        """End the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def refusal(what: str, status: int, text: str, retry_after: str | None = None) -> SandboxError:
    """The error for an answer of the engine that is one."""
    message = f"the container engine answers {what} with {status}: {message_of(text)}"
    if status in BUSY:
        told = float(retry_after) if retry_after and retry_after.isdecimal() else None
        return SandboxBusyError(message, retry_after=told)
    return SandboxError(message)


def message_of(answer: Any) -> str:
    """What an engine's answer says, cut to what a person reads."""
    found = _parsed(answer) if isinstance(answer, str) else answer
    if isinstance(found, dict):
        found = found.get("message") or found.get("cause") or found
    return str(found).strip()[:500]


def _parsed(text: str) -> Any:
    """JSON; several values, one a line, as a list; other text as it is."""
    try:
        return json.loads(text) if text.strip() else None
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError:
        return text


def _version(text: str | None) -> tuple[int, int]:
    major, _, minor = (text or "1.41").partition(".")
    return int(major), int(minor or 0)


def _tls() -> ssl.SSLContext | None:
    """Docker's variables for an engine over TCP: DOCKER_TLS_VERIFY, and DOCKER_CERT_PATH with {ca,cert,key}.pem."""
    if not os.environ.get("DOCKER_TLS_VERIFY"):
        return None
    folder = Path(os.environ.get("DOCKER_CERT_PATH") or Path.home() / ".docker")
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context
