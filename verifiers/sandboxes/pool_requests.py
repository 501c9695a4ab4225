"""Sandboxes that are asked for with an idempotency key: whoever asks with the same one gets the same sandbox."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from verifiers.errors import SandboxError
from verifiers.loops import shielded
from verifiers.sandboxes.pooled import PooledSandbox


@dataclass(eq=False, slots=True)
class _Request:
    """A creation, maybe asked for by several; `told`: somebody has got its sandbox."""

    task: asyncio.Task[PooledSandbox]
    callers: int = 0
    told: bool = False

    def failed(self) -> bool:
        """Whether asking again is a new request."""
        return self.task.done() and (self.task.cancelled() or self.task.exception() is not None)


class Requests:
    """The requests of a pool by their keys, until what they made is deleted."""

    def __init__(self) -> None:
        self._requests: dict[str, _Request] = {}

    async def made(self, key: str, make: Callable[[], Coroutine[Any, Any, PooledSandbox]]) -> PooledSandbox:
        """What `make` made for this key, at most once. Given up by all who asked before they got it, it is deleted."""
        request = self._requests.get(key)
        if request is None or request.failed():
            request = self._requests[key] = _Request(asyncio.create_task(make()))
        request.callers += 1
        try:
            used = await asyncio.shield(request.task)
        except BaseException as error:  # cancellation too
            if request.callers == 1 and not request.told:
                if self._requests.get(key) is request:  # else one who asked beside has begun the next
                    self.forget(key)
                if isinstance(error, asyncio.CancelledError):
                    await _undone(request.task)
            raise
        finally:
            request.callers -= 1
        request.told = True
        return used

    def forget(self, key: str) -> None:
        """Asking with this key again is a new request."""
        self._requests.pop(key, None)

    def tasks(self) -> list[asyncio.Task[PooledSandbox]]:
        """What is being made, or was."""
        return [request.task for request in self._requests.values()]


async def _undone(task: asyncio.Task[PooledSandbox]) -> None:
    """Cancel a creation; what it has made after all is deleted."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError, SandboxError):
        await (await shielded(task)).delete()
