"""Prime's HTTP interface: sandboxes are made, looked at and deleted through it.

Everything that is asked here has the same outcome when it is asked twice (a creation has a key, which the service
honours), so a request is repeated when the connection broke or the service was not ready. Routes and fields are those
of `prime-sandboxes` (PrimeIntellect-ai/prime, packages/prime-sandboxes).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from verifiers.errors import SandboxBusyError, SandboxError, SandboxUnreachableError, SandboxUnsupportedError

FAILURES = (aiohttp.ClientError, OSError, TimeoutError)
NOT_READY = (409, 500, 502, 503, 504, 524)
"""Answers after which the same request is made again."""
KEY_HINT = "Set PRIME_API_KEY to a key of https://app.primeintellect.ai that may use sandboxes."
GATEWAY_MARGIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the service is waited for, in seconds.

    answer: for one answer. attempts: how often a request is made; pause: before the second, twice as long before each
    further. poll: before the second look at a new sandbox, growing up to `longest_poll`. create: for a sandbox to run,
    build: beside that for its image to be built. ping: a silent connection is tried after so long.
    """

    answer: float = 30.0
    attempts: int = 4
    pause: float = 0.25
    poll: float = 1.0
    longest_poll: float = 10.0
    create: float = 180.0
    build: float = 3000.0
    ping: float = 60.0


class Api:
    """Requests to one account. Used from one event loop."""

    def __init__(self, url: str, key: str, *, patience: Patience) -> None:
        self.url = url.rstrip("/").removesuffix("/api/v1")
        self.patience = patience
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The connections, to the gateway's as well."""
        if self._session is None:
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._session

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        also: tuple[int, ...] = (),
    ) -> tuple[int, Any]:
        """Status and answer. A status of `also` is an answer; other errors raise, most after several attempts."""
        patience = self.patience
        for attempt in range(1, patience.attempts + 1):
            try:
                status, found, told = await self._once(method, path, body, query)
            except FAILURES as error:
                if attempt == patience.attempts:
                    why = str(error) or type(error).__name__
                    raise SandboxUnreachableError(
                        f"{self.url} does not answer {method} {path}: {why}",
                        hint="Check the network, and https://status.primeintellect.ai.",
                    ) from error
            else:
                if status < 400 or status in also:
                    return status, found
                if attempt == patience.attempts or (status not in NOT_READY and status != 429):
                    raise refusal(f"{method} {path}", status, found, told)
            await asyncio.sleep(patience.pause * 2 ** (attempt - 1))
        raise AssertionError

    async def _once(self, method: str, path: str, body: Any, query: Any) -> tuple[int, Any, str | None]:
        options: Any = {"json": body, "params": query, "timeout": aiohttp.ClientTimeout(total=self.patience.answer)}
        headers = {"Authorization": f"Bearer {self._key}"}
        async with self.session.request(method, f"{self.url}/api/v1{path}", headers=headers, **options) as answer:
            text = await answer.text()
        try:
            found = json.loads(text) if text else None
        except ValueError:
            found = text
        return answer.status, found, answer.headers.get("Retry-After")

    async def close(self) -> None:
        """End the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def refusal(what: str, status: int, found: Any, retry_after: str | None) -> SandboxError:
    """The error for an answer that is one."""
    words = found.get("detail", found) if isinstance(found, dict) else found
    message = f"Prime answers {what} with {status}: {str(words)[:500]}"
    if status == 429 or status == 503:
        told = float(retry_after) if retry_after and retry_after.isdecimal() else None
        return SandboxBusyError(message, retry_after=told)
    if status in (401, 403):
        return SandboxUnsupportedError(message, hint=KEY_HINT)
    if status == 402:
        return SandboxUnsupportedError(message, hint="Add credit at https://app.primeintellect.ai.")
    if status in (400, 422):
        return SandboxUnsupportedError(message, hint="Ask for what the service gives: see its message.")
    return SandboxError(message)
