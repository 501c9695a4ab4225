"""HTTP to one endpoint: a connection pool a loop, typed errors, bounded retries, one limit an account.

aiohttp (imported at the first request) and orjson with nothing around them: this runs once per model call. A transport
may be used from several event loops (a notebook's, and those of worker threads): each gets a session of its own,
opened at the first request and closed by `close`, or by the loop itself when it ends.

Which answers are tried again: connection failures, 408, 409, 429, 5xx and answers cut short. What is not: time-outs
of the whole request, since the next attempt would take as long, and everything the caller has to mend.

How many requests are in flight is `verifiers.clients.limiter`'s to say; a request that waits to be tried again gives
its place away. `retried` counts the further attempts by what went wrong, for whoever shows a run.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import orjson

from verifiers.clients.limiter import AdaptiveLimiter, limiter_of, waited
from verifiers.clients.status import Asked, retry_after_s, status_error
from verifiers.errors import (
    EndpointUnavailableError,
    Error,
    InvalidModelResponseError,
    ModelTimeoutError,
    RateLimitError,
)
from verifiers.loops import done_in

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

    from verifiers.types import ClientConfig

RETRIED_STATUSES = frozenset({408, 409, 429})
"""Besides 5xx."""

KEEPALIVE_S = 4.5
"""How long an idle connection is kept: just under the 5 s after which uvicorn, and so vLLM and SGLang, hang up."""

READ_BUFFER = 2**18
"""Bytes; long answers with logprobs arrive in fewer pieces."""


ANTHROPIC_VERSION = "2023-06-01"
"""Of the Messages protocol, as each request names it: the one that has `temperature`, which evaluations set. A header
`anthropic-version` of the configuration replaces it."""

TELL_S = 15.0
"""Seconds between two warnings that requests are tried again."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and after what waits, a request is tried again.

    Waits are drawn between 0 and `base_s` doubled at each failure, at most `cap_s` ("full jitter", AWS Architecture
    Blog, 2015). A wait that the endpoint asks for is kept, unless it is longer than `patience_s`. An endpoint that
    was never reached is tried only `first_retries` times more, so that a wrong address is told soon.
    """

    base_s: float = 0.5
    cap_s: float = 60.0
    patience_s: float = 600.0
    first_retries: int = 2
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    uniform: Callable[[float, float], float] = random.uniform

    def wait_s(self, failures: int, asked_s: float | None) -> float:
        """The wait after `failures` failures in a row; `asked_s` is what the endpoint asks for."""
        drawn = self.uniform(0.0, min(self.cap_s, self.base_s * 2.0 ** (failures - 1)))
        return drawn if asked_s is None else asked_s + min(drawn, self.base_s)


class _TransientError(Exception):
    """A failure worth another attempt, with the error to raise when there is none. `reason`: as counted."""

    def __init__(
        self, error: Error, reason: str, *, asked_s: float | None = None, unreachable: bool = False
    ) -> None:
        super().__init__(str(error))
        self.error = error
        self.reason = reason
        self.asked_s = asked_s
        self.unreachable = unreachable


@dataclass(slots=True)
class _Held:
    """One loop's session, and the generator that closes it at the loop's end."""

    session: aiohttp.ClientSession
    keeper: AsyncGenerator[aiohttp.ClientSession, None]

    async def close(self) -> None:
        """Close the session, on its own loop."""
        await self.keeper.aclose()


class Transport:
    """The way to the endpoint of one `ClientConfig` (one without replicas)."""

    def __init__(
        self,
        config: ClientConfig,
        retry: Retry | None = None,
        *,
        retried: Counter[str] | None = None,
        limiter: AdaptiveLimiter | None = None,
    ) -> None:
        self._config = config
        self._retry = retry or Retry()
        self.retried: Counter[str] = Counter() if retried is None else retried
        """Further attempts by reason: "rate limit", "server error" or "broken connection"."""
        self._limiter = limiter
        self._held: dict[asyncio.AbstractEventLoop, _Held] = {}
        self._urls: dict[str, URL] = {}
        self._reached = False
        self._told_at = -TELL_S
        self._proxy = _proxy_for(config.api_base_url)

    async def post(
        self,
        path: str,
        payload: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Post `payload` as JSON to `path` under the base URL; the answer's JSON.

        `timeout` (seconds) replaces the configuration's for this call. Raises the typed errors of the package.
        """
        asked = Asked(self._config.api_base_url, str(payload.get("model")), self._config.api_key_var)
        return await self._with_retries(
            asked, self._config.max_retries, "POST", path, orjson.dumps(payload), headers, timeout
        )

    async def get(self, path: str, *, retries: int = 0) -> Any:
        """Get `path` under the base URL; the answer's JSON."""
        asked = Asked(self._config.api_base_url, "(none)", self._config.api_key_var)
        return await self._with_retries(asked, retries, "GET", path, None, None, None)

    async def close(self) -> None:
        """Close the sessions of all loops."""
        held, self._held = self._held, {}
        here = asyncio.get_running_loop()
        for loop, entry in held.items():
            if loop is here:
                await entry.close()
            elif loop.is_running():
                await done_in(loop, entry.close())

    # --- attempts ---------------------------------------------------------------------------------------------

    async def _with_retries(self, asked: Asked, retries: int, *request: Any) -> Any:
        if self._limiter is None:
            self._limiter = limiter_of(self._config)
        failures = 0
        while True:
            try:
                return await self._limited_attempt(self._limiter, failures, asked, *request)
            except _TransientError as failure:
                failures += 1
                early = failure.unreachable and not self._reached
                allowed = min(retries, self._retry.first_retries) if early else retries
                if failures > allowed or (failure.asked_s or 0.0) > self._retry.patience_s:
                    raise failure.error from failure.__cause__
                wait = self._retry.wait_s(failures, failure.asked_s)
                self.retried[failure.reason] += 1
                self._tell(failure.error, failures, allowed, wait)
                for_rate = isinstance(failure.error, RateLimitError)
            with waited() if for_rate else nullcontext():
                await self._retry.sleep(wait)

    async def _limited_attempt(
        self, limiter: AdaptiveLimiter, failures: int, asked: Asked, *request: Any
    ) -> Any:
        """One attempt, from when the account has room for it."""
        slot = limiter.enter() or await limiter.wait()
        try:
            answer = await self._attempt(asked, *request)
            if not failures:  # a reply after a failure says nothing new of the account
                limiter.served(slot)
            return answer
        except _TransientError as failure:
            if isinstance(failure.error, RateLimitError):
                limiter.rejected(slot, failure.asked_s)
            raise
        finally:
            limiter.leave(slot)

    def _tell(self, error: Error, failures: int, allowed: int, wait: float) -> None:
        """Say that requests are tried again: now and then, since hundreds in flight fail alike."""
        now = time.monotonic()
        level = logging.DEBUG if now - self._told_at < TELL_S else logging.WARNING
        if level == logging.WARNING:
            self._told_at = now
        logger.log(level, "%s; trying again in %.1f s (retry %d of %d)", error, wait, failures, allowed)

    async def _attempt(
        self,
        asked: Asked,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        timeout: float | None,
    ) -> Any:
        import aiohttp

        held = self._held.get(asyncio.get_running_loop()) or await self._open()
        options: dict[str, Any] = {"data": body, "headers": headers, "allow_redirects": False}
        if timeout is not None:
            options["timeout"] = aiohttp.ClientTimeout(
                total=timeout, sock_connect=self._config.connect_timeout
            )
        if self._proxy is not None:
            options["proxy"] = self._proxy
        try:
            async with held.session.request(method, self._url(path), **options) as response:
                raw = await response.read()
        except (aiohttp.ClientError, OSError) as error:  # time-outs are OSErrors
            raise _connection_failure(error, asked) from error
        self._reached = True
        if response.status >= 300:
            raise _refusal(response.status, raw, asked, response.headers)
        return _decoded(raw, asked)

    def _url(self, path: str) -> URL:
        if path not in self._urls:
            from yarl import URL

            self._urls[path] = URL(self._config.api_base_url + path)
        return self._urls[path]

    # --- sessions ---------------------------------------------------------------------------------------------

    async def _open(self) -> _Held:
        # A loop calls `aclose` on its asynchronous generators when it ends (asyncio.run does, so do test runners),
        # which closes the session where nobody called `close`. Nothing here suspends, so no other task comes between.
        keeper = _keep_session(self._config)
        held = _Held(await anext(keeper), keeper)
        self._held = {loop: entry for loop, entry in self._held.items() if not loop.is_closed()}
        self._held[asyncio.get_running_loop()] = held
        return held


async def _keep_session(config: ClientConfig) -> AsyncGenerator[aiohttp.ClientSession, None]:
    session = _session(config)
    try:
        yield session
    finally:
        await session.close()


def _session(config: ClientConfig) -> aiohttp.ClientSession:
    import aiohttp

    limit = _connection_limit(config.max_connections)
    if config.max_keepalive_connections:
        connector = aiohttp.TCPConnector(limit=limit, keepalive_timeout=KEEPALIVE_S)
    else:
        connector = aiohttp.TCPConnector(limit=limit, force_close=True)
    headers = {"Content-Type": "application/json", **config.extra_headers}
    given = {name.lower() for name in headers}
    headers.update({name: value for name, value in _protocol_headers(config).items() if name.lower() not in given})
    return aiohttp.ClientSession(
        connector=connector,
        headers=headers,
        timeout=aiohttp.ClientTimeout(total=config.timeout, sock_connect=config.connect_timeout),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=READ_BUFFER,
    )


def _protocol_headers(config: ClientConfig) -> dict[str, str]:
    """The key, and what else the protocol of an endpoint wants with each request."""
    key = config.api_key()
    if config.client_type == "anthropic_messages":
        return {"anthropic-version": ANTHROPIC_VERSION, **({"x-api-key": key} if key else {})}
    return {"Authorization": f"Bearer {key}"} if key else {}


def _connection_limit(wanted: int, spare: int = 256) -> int:
    """Each connection is a file: ask the system for as many as are wanted, and stay under what it allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (soft, hard):
        return wanted
    if soft < min(hard, wanted + spare):
        soft = min(hard, wanted + spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, soft - spare))


def _proxy_for(url: str) -> str | None:
    """The proxy of the environment's variables for this URL, looked up once."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host in ("localhost", "127.0.0.1", "::1"):
        return None
    proxy = getproxies().get(parts.scheme)
    return None if proxy is None or proxy_bypass(host) else proxy


# --- outcomes -------------------------------------------------------------------------------------------------


def _connection_failure(error: Exception, asked: Asked) -> Exception:
    """The failure for an exception of aiohttp: `_TransientError` if another attempt may help."""
    import aiohttp

    reason = str(error) or type(error).__name__
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        unavailable = EndpointUnavailableError(f"{asked.url} accepted no connection in time")
        return _TransientError(unavailable, "broken connection", unreachable=True)
    if isinstance(error, TimeoutError):
        return ModelTimeoutError(f"{asked.url} did not answer in time for model {asked.model}")
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.InvalidURL):
        return EndpointUnavailableError(
            f"no connection to {asked.url}: {reason}", hint="Check the base URL (-b)."
        )
    if isinstance(error, aiohttp.ClientResponseError):
        return InvalidModelResponseError(f"{asked.url} does not speak HTTP as it should: {error.message}")
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return EndpointUnavailableError(
            f"no connection to {asked.url}: too many open files",
            hint="Lower the concurrency (-c), or raise the system's limit: ulimit -n 65536.",
        )
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        unavailable = EndpointUnavailableError(f"nothing answers at {asked.url}: the host name is not known")
        return _TransientError(unavailable, "broken connection", unreachable=True)
    if isinstance(error, aiohttp.ClientConnectorError):
        why = error.os_error.strerror or error.os_error
        unavailable = EndpointUnavailableError(f"nothing answers at {asked.url}: {why}")
        return _TransientError(unavailable, "broken connection", unreachable=True)
    broken = EndpointUnavailableError(f"{asked.url} broke the connection: {reason}")
    return _TransientError(broken, "broken connection")


def _refusal(status: int, raw: bytes, asked: Asked, headers: Mapping[str, str]) -> Exception:
    """The failure for an answer with a status of 300 or more."""
    text = raw.decode("utf-8", "replace")
    error = status_error(status, text, asked, headers)
    out_of_money = status == 429 and "insufficient_quota" in text
    if (status in RETRIED_STATUSES or status >= 500) and not out_of_money:
        reason = "rate limit" if status == 429 else "server error"
        return _TransientError(error, reason, asked_s=retry_after_s(headers))
    return error


def _decoded(raw: bytes, asked: Asked) -> Any:
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        shown = raw[:120].decode("utf-8", "replace")
        raise InvalidModelResponseError(f"{asked.url} answered no valid JSON: {shown!r}") from error
    if isinstance(data, dict) and "choices" not in data and isinstance(data.get("error"), dict):
        # Routers answer 200 and put the failure of the provider behind them into the body.
        code = data["error"].get("code")
        raise _refusal(code if isinstance(code, int) and code >= 400 else 500, raw, asked, {})
    return data
