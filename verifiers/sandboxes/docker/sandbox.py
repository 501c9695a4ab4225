"""A sandbox that is a container."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from verifiers.errors import SandboxDiedError, SandboxPathError
from verifiers.sandboxes.docker.engine import Engine
from verifiers.sandboxes.host.provider import Life, RemoteSandbox
from verifiers.sandboxes.results import ExecResult, Usage
from verifiers.sandboxes.spec import Command, SandboxSpec

COUNTERS = {
    "oom": (("/sys/fs/cgroup/memory.events", b"oom_kill"), ("/sys/fs/cgroup/memory/memory.oom_control", b"oom_kill")),
    "pids": (("/sys/fs/cgroup/pids.events", b"max"), ("/sys/fs/cgroup/pids/pids.events", b"max")),
}
"""Where a container sees how often a limit was met (cgroup v2, v1), and under which word."""
COUNTER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Evidence:
    """How often the container's limits were met."""

    oom: int = 0
    pids: int = 0


class DockerSandbox(RemoteSandbox):
    """A container, as its user has it."""

    def __init__(self, life: Life, engine: Engine, spec: SandboxSpec, environment: Mapping[str, str]) -> None:
        super().__init__(life, spec, environment)
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


def _count(text: bytes, word: bytes) -> int | None:
    """The number after a word, in lines of a word and a number."""
    for line in text.splitlines():
        name, _, number = line.partition(b" ")
        if name == word and number.strip().isdigit():
            return int(number)
    return None
