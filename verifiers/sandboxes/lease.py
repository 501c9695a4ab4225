"""A sandbox that is started while the model thinks: `Lease` begins with the rollout, the first tool call awaits it.

    async with Lease(pool, spec) as lease:      # at once; nothing is waited for
        reply = await model(...)
        sandbox = await lease                   # all who await it get the same sandbox

The sandbox is deleted when the lease is released, also if it appears only then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Self

from verifiers.errors import SandboxError
from verifiers.loops import shielded
from verifiers.sandboxes.pooled import PooledSandbox
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import SandboxSpec

Setup = Callable[[Sandbox], Awaitable[object]]


class Lease:
    """One sandbox of `provider` for one rollout. `setup` prepares it (files, commands) before anybody gets it.

    start_s: seconds until it was there, None before. waited_s: how long somebody waited for it. hit: whether a pool
    had an idle one, None if that is not known. A start that fails raises its SandboxError for all who await.
    """

    def __init__(self, provider: Provider, spec: SandboxSpec, *, setup: Setup | None = None) -> None:
        self.spec = spec
        self.start_s: float | None = None
        self.waited_s = 0.0
        self.hit: bool | None = None
        self._provider, self._setup = provider, setup
        self._waiting = 0
        self._waits_since = 0.0
        self._task = asyncio.create_task(self._start())
        self._task.add_done_callback(_looked_at)
        self._release: asyncio.Task[None] | None = None

    async def sandbox(self) -> Sandbox:
        """The sandbox, once it is there. Cancelling who waits leaves the start alone."""
        if self._release is not None:
            raise SandboxError("the lease of this sandbox has ended", hint="Use it before the rollout is cleaned up.")
        if self._task.done():
            return self._task.result()
        if not self._waiting:
            self._waits_since = _now()
        self._waiting += 1
        try:
            await asyncio.wait({self._task})
        finally:
            self._waiting -= 1
            if not self._waiting:
                self.waited_s += _now() - self._waits_since
        if self._task.cancelled():
            raise SandboxError("the lease of this sandbox ended while it was waited for")
        return self._task.result()

    @property
    def failure(self) -> BaseException | None:
        """Why there is no sandbox, where that is known by now."""
        return self._task.exception() if self._task.done() and not self._task.cancelled() else None

    def facts(self) -> dict[str, Any]:
        """What a record keeps of it: what was asked for and what it is, and the times in seconds."""
        sandbox = self._task.result() if self.start_s is not None else None
        return {
            "provider": self._provider.name,
            "asked_image": self.spec.image,
            "image": sandbox.spec.image if sandbox is not None else None,
            "isolation": sandbox.isolation if sandbox is not None else None,
            "start_s": self.start_s,
            "waited_s": self.waited_s,
            "hit": self.hit,
        }

    def __await__(self) -> Generator[Any, None, Sandbox]:
        return self.sandbox().__await__()

    async def release(self) -> None:
        """Delete the sandbox, or stop its start. Again: nothing happens. Not cut short by cancellation."""
        if self._release is None:
            self._release = asyncio.create_task(self._end())
        await shielded(self._release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def _start(self) -> Sandbox:
        began = _now()
        sandbox = await self._provider.create(self.spec)
        try:
            if self._setup is not None:
                await self._setup(sandbox)
        except BaseException:
            await shielded(sandbox.delete())
            raise
        if isinstance(sandbox, PooledSandbox):
            self.hit = sandbox.hit
        self.start_s = _now() - began
        return sandbox

    async def _end(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        if not self._task.cancelled() and self._task.exception() is None:
            await self._task.result().delete()


def _looked_at(task: asyncio.Task[Sandbox]) -> None:
    """A failed start that no tool call asked for is no mistake of this program."""
    if not task.cancelled():
        task.exception()


def _now() -> float:
    return asyncio.get_running_loop().time()
