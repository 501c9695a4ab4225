"""Trying again what a platform did not do: with v0's settings, and only where trying again can help.

    again = Retrying(max_retries=5)
    sandbox = await again.wraps(provider.create)(spec)
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

from verifiers.errors import Error, SandboxBusyError

P = ParamSpec("P")
R = TypeVar("R")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Retrying:
    """At most `max_retries` attempts; between them `base_delay` seconds, each time `backoff_factor` as long, at most
    `max_backoff_seconds`, and up to `jitter` seconds more. Who is told when to come back waits as long as that."""

    max_retries: int = 5
    base_delay: float = 0.5
    backoff_factor: float = 2.0
    max_backoff_seconds: float = 30.0
    jitter: float = 1e-3

    def wraps(self, func: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        """`func`, tried again when it raises what another attempt may mend. The last error is raised."""

        @wraps(func)
        async def again(*args: P.args, **kwargs: P.kwargs) -> R:
            attempt = 1
            while True:
                try:
                    return await func(*args, **kwargs)
                except Exception as error:  # boundary: anything a platform may raise
                    if attempt >= self.max_retries or not _may_help(error):
                        raise
                    delay = self._delay(error, attempt)
                    logger.warning("attempt %d failed, another in %.1f s: %s", attempt, delay, error)
                await asyncio.sleep(delay)
                attempt += 1

        return again

    def _delay(self, error: Exception, attempt: int) -> float:
        told = error.retry_after if isinstance(error, SandboxBusyError) else None
        grown = min(self.max_backoff_seconds, self.base_delay * self.backoff_factor ** (attempt - 1))
        return max(grown, told or 0.0) + random.uniform(0, self.jitter)


def _may_help(error: Exception) -> bool:
    return error.retryable and not error.fatal if isinstance(error, Error) else True
