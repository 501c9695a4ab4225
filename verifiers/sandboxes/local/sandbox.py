"""One sandbox of this machine: `Life`, all that there is of it from before its start until nothing is left, and
`LocalSandbox`, what its user has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

from verifiers.errors import SandboxCreationError, SandboxDiedError, SandboxError, SandboxNotReadyError
from verifiers.loops import shielded
from verifiers.sandboxes.host.channel import Channel
from verifiers.sandboxes.host.lifetime import Lifetime
from verifiers.sandboxes.host.sandbox import GuestSandbox
from verifiers.sandboxes.local.confinement import Confinement
from verifiers.sandboxes.local.launch import Child, Spawner
from verifiers.sandboxes.results import ExecResult, FileStat, Usage
from verifiers.sandboxes.spec import SandboxSpec

READY_S = 30.0
"""How long a sandbox may take from its start to its first answer."""
END_S = 5.0
"""How long its end is waited for; what is left then is looked for again later."""


class Life:
    """What a sandbox has of the machine. `end` takes it all back, once, however often and by whomever it is asked for.

    forget: called when nothing is left.
    """

    def __init__(self, sandbox_id: str, confinement: Confinement, spawner: Spawner, forget: Callable[[], None]) -> None:
        self.id = sandbox_id
        self.confinement = confinement
        self.channel: Channel | None = None
        self.child: Child | None = None
        self.born = time.monotonic()
        self._spawner = spawner
        self._forget = forget
        self._ending: asyncio.Task[None] | None = None
        self._lifetime: Lifetime | None = None

    @property
    def ending(self) -> bool:
        """Whether its end has begun."""
        return self._ending is not None

    async def answered(self) -> None:
        """Wait for the agent's first word."""
        channel, child = self.channel, self.child
        assert channel is not None
        assert child is not None
        first: set[asyncio.Future[None] | asyncio.Future[tuple[int, str]]] = {channel.started, child.ended}
        await asyncio.wait(first, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
        if channel.started.done() and channel.started.exception() is None:
            return
        if self.ending:
            raise SandboxCreationError("the provider was closed while the sandbox started")
        if not channel.started.done() and not child.ended.done():
            raise SandboxNotReadyError(f"the sandbox did not answer within {READY_S:g} seconds")
        await asyncio.wait({child.ended}, timeout=END_S)
        status, words = child.ended.result() if child.ended.done() else (-1, "")
        raise SandboxCreationError(f"the sandbox did not start: {words or f'it ended with status {status}'}")

    def settle(self, spec: SandboxSpec) -> None:
        """From now on it ends when its first process does, and when its time is over."""
        channel = self.channel
        assert channel is not None
        channel.closed.add_done_callback(lambda _: self.end(SandboxDiedError("the sandbox's first process has ended")))
        self._lifetime = Lifetime(spec, channel, self.end)

    def end(self, error: SandboxError | None = None) -> asyncio.Task[None]:
        """Begin to end it; done when nothing is left. `error` is what its users get from now on."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end(error or SandboxDiedError("the sandbox was deleted")))
        return self._ending

    async def _end(self, error: SandboxError) -> None:
        if self._lifetime is not None:
            self._lifetime.cancel()
        if self.channel is not None:
            self.channel.fail(error)
        try:
            if self.child is not None:
                self.confinement.kill()
                with suppress(SandboxError):
                    await self._spawner.kill(self.child)
                await asyncio.wait({self.child.ended}, timeout=END_S)
        finally:
            await self._release()
            self._forget()

    async def _release(self) -> None:
        """Give back what it was confined with. The kernel may need a moment after the last process."""
        pause = 0.001
        while not self.confinement.release():
            if pause > 1:
                self.confinement.linger()
                break
            await asyncio.sleep(pause)
            pause *= 2


class LocalSandbox(GuestSandbox):
    """What its user has. places: where it has no mounts of its own, what stands for a path inside."""

    def __init__(
        self,
        life: Life,
        spec: SandboxSpec,
        environment: Mapping[str, str],
        *,
        isolation: str,
        places: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        assert life.channel is not None
        super().__init__(life.id, spec, life.channel, environment)
        self.isolation = isolation
        self.life = life
        self._places = places
        self._seen = life.confinement.evidence()

    def _absolute(self, path: str) -> str:
        full = super()._absolute(path)
        for inside, place in self._places.items():
            if full == inside or full.startswith(f"{inside}/"):
                return place + full[len(inside) :]
        return full

    async def stat(self, path: str) -> FileStat:
        return self._inside(await super().stat(path))

    async def list(self, path: str) -> list[FileStat]:
        return [self._inside(found) for found in await super().list(path)]

    def _inside(self, found: FileStat) -> FileStat:
        """The same with the path that it has for who asks."""
        for inside, place in self._places.items():
            if found.path == place or found.path.startswith(f"{place}/"):
                return replace(found, path=inside + found.path[len(place) :])
        return found

    def judge(self, result: ExecResult) -> ExecResult:
        now = self.life.confinement.evidence()
        before, self._seen = self._seen, now
        if now == before:
            return result
        oom, pids = now.oom_kills > before.oom_kills, now.pids_refused > before.pids_refused
        reason = result.reason
        if reason in ("exited", "signalled"):
            reason = "oom" if oom else "pids"
        return replace(result, oom_killed=oom, pids_limited=pids, reason=reason)

    async def usage(self) -> Usage:
        if self.channel.error is not None:
            raise self.channel.error
        return self.life.confinement.usage()

    async def delete(self) -> None:
        self.channel.check_loop()
        await shielded(self.life.end())
