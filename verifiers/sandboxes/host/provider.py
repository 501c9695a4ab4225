"""What providers share whose sandboxes run our agent elsewhere: they are made all or nothing, and remembered.

A subclass says how one is made (`make`) and removed (`remove`), by a name that exists before the sandbox does: so what
failed, was cancelled or could not be removed at once is still known when the provider is closed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from verifiers.errors import SandboxCreationError, SandboxDiedError, SandboxError
from verifiers.loops import shielded
from verifiers.sandboxes.host.channel import Channel
from verifiers.sandboxes.host.lifetime import Lifetime
from verifiers.sandboxes.host.sandbox import GuestSandbox
from verifiers.sandboxes.results import SandboxInfo
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import SandboxSpec


class Life:
    """A sandbox that has answered. `end` removes it, once, however often it is asked for."""

    def __init__(self, name: str, channel: Channel, remove: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self.channel = channel
        self.born = time.monotonic()
        self._remove = remove
        self._ending: asyncio.Task[None] | None = None
        self._lifetime: Lifetime | None = None

    def settle(self, spec: SandboxSpec) -> None:
        """From now on it ends when its agent does, and when its time is over."""
        self.channel.closed.add_done_callback(lambda _: self.end(SandboxDiedError("the sandbox's agent has ended")))
        self._lifetime = Lifetime(spec, self.channel, self.end)

    def end(self, error: SandboxError | None = None) -> asyncio.Task[None]:
        """Begin to end it; done when it is removed. `error` is what its users get from now on.

        Its connection ends here, and its agent with it, whether or not the rest works; a removal that failed is tried
        again when it is asked for again.
        """
        if self._ending is None or (self._ending.done() and self._ending.exception() is not None):
            if self._lifetime is not None:
                self._lifetime.cancel()
            self.channel.fail(error or SandboxDiedError("the sandbox was deleted"))
            self._ending = asyncio.ensure_future(self._remove(self.name))
            self._ending.add_done_callback(_noticed)
        return self._ending


def _noticed(task: asyncio.Task[None]) -> None:
    """Who deletes it is told of a failure; when its time was over nobody is there to be told."""
    if not task.cancelled():
        task.exception()


class RemoteSandbox(GuestSandbox):
    """A `GuestSandbox` with a `Life`."""

    isolation = "namespace"

    def __init__(self, life: Life, spec: SandboxSpec, environment: Mapping[str, str]) -> None:
        super().__init__(life.name, spec, life.channel, environment)
        self.life = life

    async def watch(self, seconds: float) -> None:
        """Try the connection while somebody waits for it: one that is dead may look like a command that is silent."""
        while self.channel.error is None:
            await asyncio.sleep(seconds)
            if not self.channel.idle_s:
                await self.alive()

    async def delete(self) -> None:
        await shielded(self.life.end())


class RememberingProvider(Provider):
    """One whose sandboxes are all of this process: they are found in a table, and by the keys that asked for them."""

    def __init__(self) -> None:
        self._sandboxes: dict[str, Any] = {}
        """By id: `GuestSandbox`es that have a `life`, from their first answer until they end."""
        self._by_key: dict[str, asyncio.Task[Any]] = {}

    def _is_over(self, task: asyncio.Task[Any]) -> bool:
        """Whether what a key once gave is no sandbox any more."""
        return task.cancelled() or task.exception() is not None or task.result().id not in self._sandboxes

    async def get(self, sandbox_id: str) -> Sandbox:
        sandbox: Sandbox = self._sandboxes[sandbox_id]
        return sandbox

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        now = time.monotonic()
        return [
            SandboxInfo(
                id=one.id,
                labels=dict(one.spec.labels),
                image=one.spec.image,
                isolation=one.isolation,
                age=now - one.life.born,
            )
            for one in self._sandboxes.values()
            if (labels or {}).items() <= one.spec.labels.items()
        ]

    async def claim(self, sandbox: Sandbox, spec: SandboxSpec) -> Sandbox:
        sandbox.spec = replace(sandbox.spec, secrets=spec.secrets, labels=spec.labels)
        return sandbox


class GuestProvider(RememberingProvider):
    """All but the making and the removing."""

    starts = 4 * (os.cpu_count() or 1)
    """So many are made at once."""
    ping_s = 60.0
    """After so long a connection that somebody waits for is tried."""

    def __init__(self) -> None:
        super().__init__()
        self._starting = asyncio.Semaphore(self.starts)
        self._lives: dict[str, Life | None] = {}
        """By name, from before a sandbox is asked for until it is removed."""
        self._making: set[asyncio.Task[RemoteSandbox]] = set()
        self._closed = False

    @abstractmethod
    async def check(self, spec: SandboxSpec) -> SandboxSpec:
        """`spec` as it can be given, or an error that says what cannot."""

    @abstractmethod
    async def make(self, name: str, channel: Channel, spec: SandboxSpec) -> RemoteSandbox:
        """Make it, and wait for its first answer. What it leaves when it raises is `remove`d."""

    @abstractmethod
    async def remove(self, name: str) -> None:
        """Remove it, however far it came. Raises if that fails: it is tried again when the provider is closed."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Free the connections; nothing is asked any more."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        key = spec.idempotency_key
        task = self._by_key.get(key) if key is not None else None
        if task is None or (task.done() and self._is_over(task)):
            task = asyncio.ensure_future(self._create(spec))
            self._making.add(task)
            task.add_done_callback(self._making.discard)
            if key is not None:
                self._by_key[key] = task
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if key is None:  # with one, others may be waiting for it
                task.cancel()
                await asyncio.wait({task})
                if not task.cancelled() and task.exception() is None:
                    await shielded(task.result().life.end())
            if self._closed and not _is_cancelled():
                raise SandboxCreationError("the provider was closed while the sandbox started") from None
            raise

    async def _create(self, spec: SandboxSpec) -> RemoteSandbox:
        self._refuse_closed()
        spec = await self.check(spec)
        async with self._starting:
            self._refuse_closed()
            name = f"vf-{os.getpid()}-{secrets.token_hex(6)}"
            self._lives[name] = None
            channel = Channel()
            try:
                sandbox = await self.make(name, channel, spec)
                self._lives[name] = sandbox.life
                self._refuse_closed()
            except BaseException as error:
                channel.fail(SandboxDiedError("the sandbox did not start"))
                await shielded(self._undo(name))
                if type(error) is SandboxError:
                    raise SandboxCreationError(*error.args) from error
                raise
            self._sandboxes[name] = sandbox
            sandbox.life.settle(spec)
            watching = asyncio.ensure_future(sandbox.watch(self.ping_s))
            channel.closed.add_done_callback(lambda _: watching.cancel())
            return sandbox

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SandboxCreationError("this provider is closed")

    async def discard(self, name: str) -> None:
        """Remove a sandbox and forget it."""
        self._sandboxes.pop(name, None)
        await self.remove(name)
        self._lives.pop(name, None)

    async def _undo(self, name: str) -> None:
        """The same of one that failed: why it failed is what is told, and `close` removes what is left."""
        await asyncio.gather(self.discard(name), return_exceptions=True)

    async def close(self) -> None:
        self._closed = True
        for task in list(self._making):
            task.cancel()
        if self._making:
            await asyncio.wait(set(self._making))
        ends: list[Any] = [life.end() if life else self.discard(name) for name, life in list(self._lives.items())]
        outcomes = await shielded(_all(ends))
        await self.disconnect()
        if failure := next((one for one in outcomes if isinstance(one, BaseException)), None):
            raise failure


def _is_cancelled() -> bool:
    """Whether somebody has cancelled the task that asks, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _all(work: list[Any]) -> list[Any]:
    return await asyncio.gather(*work, return_exceptions=True)
