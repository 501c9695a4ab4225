"""One container: `Life`, from its connection to its removal, and `DockerSandbox`, what its user has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from verifiers.errors import SandboxDiedError, SandboxError, SandboxPathError
from verifiers.sandboxes.channel import Channel
from verifiers.sandboxes.docker.engine import Engine
from verifiers.sandboxes.guest_sandbox import GuestSandbox
from verifiers.sandboxes.lifetime import Lifetime
from verifiers.sandboxes.pooled import outlast
from verifiers.sandboxes.results import ExecResult, Usage
from verifiers.sandboxes.spec import Command, SandboxSpec

COUNTERS = {
    "oom": (("/sys/fs/cgroup/memory.events", b"oom_kill"), ("/sys/fs/cgroup/memory/memory.oom_control", b"oom_kill")),
    "pids": (("/sys/fs/cgroup/pids.events", b"max"), ("/sys/fs/cgroup/pids/pids.events", b"max")),
}
"""Where a container sees how often a limit was met (cgroup v2, v1), and under which word."""
COUNTER_BYTES = 4096


class Life:
    """A container that has answered. `end` removes it, once, however often it is asked for."""

    def __init__(self, name: str, channel: Channel, remove: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self.name = name
        self.channel = channel
        self.born = time.monotonic()
        self._remove = remove
        self._ending: asyncio.Task[None] | None = None
        self._lifetime: Lifetime | None = None

    def settle(self, spec: SandboxSpec) -> None:
        """From now on it ends when its first process does, and when its time is over."""
        died = SandboxDiedError("the container's first process has ended")
        self.channel.closed.add_done_callback(lambda _: self.end(died))
        self._lifetime = Lifetime(spec, self.channel, self.end)

    def end(self, error: SandboxError | None = None) -> asyncio.Task[None]:
        """Begin to end it; done when the engine has removed it. `error` is what its users get from now on.

        Its streams end here, and its agent with them, whether or not the engine answers; a removal that failed is tried
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


@dataclass(frozen=True, slots=True)
class Evidence:
    """How often the container's limits were met."""

    oom: int = 0
    pids: int = 0


class DockerSandbox(GuestSandbox):
    """What its user has."""

    isolation = "namespace"

    def __init__(self, life: Life, engine: Engine, spec: SandboxSpec, environment: Mapping[str, str]) -> None:
        super().__init__(life.name, spec, life.channel, environment)
        self.life = life
        self._engine = engine
        self._counters: dict[str, tuple[str, bytes]] = {}
        self._seen = Evidence()

    async def prepare(self) -> None:
        """Find where limits tell of themselves, and make the directory where commands start."""
        for name, places in COUNTERS.items():
            for path, word in places:
                with suppress(SandboxPathError):
                    if _count(await self.read(path, size=COUNTER_BYTES), word) is not None:
                        self._counters[name] = (path, word)
                        break
        self._seen = await self._evidence()
        await self.mkdir(self.spec.workdir)

    async def _evidence(self) -> Evidence:
        found = {}
        for name, (path, word) in self._counters.items():
            with suppress(SandboxPathError):
                found[name] = _count(await self.read(path, size=COUNTER_BYTES), word) or 0
        return Evidence(**found)

    def judge(self, result: ExecResult) -> ExecResult:
        return result

    async def run(self, command: Command) -> ExecResult:
        result = await super().run(command)
        if not self._counters:
            return result
        before, self._seen = self._seen, await self._evidence()
        oom, pids = self._seen.oom > before.oom, self._seen.pids > before.pids
        reason = result.reason
        if reason in ("exited", "signalled") and (oom or pids):
            reason = "oom" if oom else "pids"
        return replace(result, oom_killed=oom, pids_limited=pids, reason=reason)

    async def usage(self) -> Usage:
        if self.channel.error is not None:
            raise self.channel.error.with_traceback(None)
        query = {"stream": "false", "one-shot": "true"}
        status, found = await self._engine.ask("GET", f"/containers/{self.id}/stats", query=query, also=(404, 409))
        if status >= 400:
            raise SandboxDiedError("the sandbox has ended")
        memory, pids = found.get("memory_stats") or {}, found.get("pids_stats") or {}
        cpu = (found.get("cpu_stats") or {}).get("cpu_usage") or {}
        return Usage(
            memory=memory.get("usage"),
            peak_memory=memory.get("max_usage"),
            pids=pids.get("current"),
            cpu_seconds=cpu["total_usage"] / 1e9 if "total_usage" in cpu else None,
        )

    async def delete(self) -> None:
        await outlast(self.life.end())


def _count(text: bytes, word: bytes) -> int | None:
    """The number after a word, in lines of a word and a number."""
    for line in text.splitlines():
        name, _, number = line.partition(b" ")
        if name == word and number.strip().isdigit():
            return int(number)
    return None
