"""Sandboxes of this machine: `LocalProvider`.

    async with LocalProvider() as provider:
        sandbox = await provider.create(SandboxSpec())
        result = await sandbox.exec("echo hi")
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from verifiers.errors import (
    MissingExtraError,
    SandboxBusyError,
    SandboxCreationError,
    SandboxDiedError,
    SandboxError,
    SandboxNotReadyError,
    SandboxUnsupportedError,
)
from verifiers.sandboxes.channel import Channel
from verifiers.sandboxes.guest_sandbox import GuestSandbox
from verifiers.sandboxes.local import owners, plain, probe
from verifiers.sandboxes.local.confinement import Confinement, Confiner
from verifiers.sandboxes.local.launch import Child, Spawner, find_bubblewrap
from verifiers.sandboxes.local.root import AGENT, HOME, Builder, Root
from verifiers.sandboxes.local.spawner import STAGE
from verifiers.sandboxes.results import Capabilities, ExecResult, SandboxInfo, Usage
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import ISOLATION_LEVELS, Isolation, SandboxSpec

READY_S = 30.0
"""How long a sandbox may take from its start to its first answer."""
END_S = 2.0
"""How long its end may take before its processes are looked for one by one."""
IMAGES = {"python:3.11-slim": "host"}
"""Names of images → what stands for them here. This one is v0's default, whose users want a Python and a shell."""
STARTS = 4 * (os.cpu_count() or 1)
"""So many start at once; more wait their turn, and their time to start has not begun."""


class LocalSandbox(GuestSandbox):
    """One of them. places: where it has no mounts of its own, what stands for a path inside."""

    places: Mapping[str, str] = MappingProxyType({})

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        channel: Channel,
        environment: Mapping[str, str],
        confinement: Confinement,
        end: Callable[[], asyncio.Task[None]],
    ) -> None:
        super().__init__(sandbox_id, spec, channel, environment)
        self.born = time.monotonic()
        self.confinement = confinement
        self.child: Child | None = None
        self._end = end
        self._seen = confinement.evidence()

    def _absolute(self, path: str) -> str:
        full = super()._absolute(path)
        for inside, place in self.places.items():
            if full == inside or full.startswith(f"{inside}/"):
                return place + full[len(inside) :]
        return full

    def judge(self, result: ExecResult) -> ExecResult:
        now = self.confinement.evidence()
        before, self._seen = self._seen, now
        if now == before:
            return result
        oom, pids = now.oom_kills > before.oom_kills, now.pids_refused > before.pids_refused
        reason = result.reason
        if reason in ("exited", "signalled"):
            reason = "oom" if oom else "pids"
        return replace(result, oom_killed=oom, pids_limited=pids, reason=reason)

    async def usage(self) -> Usage:
        return self.confinement.usage()

    async def delete(self) -> None:
        await asyncio.shield(self._end())


class LocalProvider(Provider):
    """Namespaces of this machine through bubblewrap. No daemon; root is not needed where user namespaces are allowed.

    level: what isolates; one that this machine cannot give raises, and nothing weaker is taken in its place.
    root: a directory for what sandboxes need on the host; a new one below the system's for temporary files if None.
    venv: whether they see the Python environment of this process, read-only.
    images: names of images that the system of this machine (`host`) stands for, beside `IMAGES`.
    """

    name = "local"

    def __init__(
        self,
        *,
        level: Isolation = "namespace",
        root: Path | None = None,
        venv: bool = True,
        images: Mapping[str, str] | None = None,
    ) -> None:
        self.level = level
        self._root = root
        self._venv = venv
        self._images = {**IMAGES, **(images or {})}
        self._state: Path | None = None
        self._confiner: Confiner | None = None
        self._bubblewrap = ("", "")
        self._builder: Builder | None = None
        self._spawner: Spawner | None = None
        self._starting = asyncio.Semaphore(STARTS)
        self._sandboxes: dict[str, LocalSandbox] = {}
        self._by_key: dict[str, asyncio.Task[LocalSandbox]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    async def capabilities(self) -> Capabilities:
        _, _, confiner = self._prepared()
        found = confiner.capabilities()
        network = {"open"} if self.level == "none" else {"none", "open"}
        return replace(found, network=frozenset(network), mounts=self.level == "namespace")

    # --- making

    async def create(self, spec: SandboxSpec) -> Sandbox:
        spec = replace(spec, image=self._images.get(spec.image, spec.image))
        key = spec.idempotency_key
        if key is None:
            return await self._create(spec)
        task = self._by_key.get(key)
        if task is None:
            task = self._by_key[key] = asyncio.create_task(self._create(spec))
            task.add_done_callback(lambda done: self._forget_failed(key, done))
        return await asyncio.shield(task)

    def _forget_failed(self, key: str, task: asyncio.Task[LocalSandbox]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._by_key.pop(key, None)

    async def _create(self, spec: SandboxSpec) -> LocalSandbox:
        self._check(spec)
        async with self._starting:
            spawner, builder, confiner = self._prepared()
            root = builder.build(_within_memory(spec, confiner))
            sandbox_id = f"{os.getpid()}-{secrets.token_hex(6)}"
            confinement = confiner.prepare(sandbox_id, spec)
            child: Child | None = None
            channel: Channel | None = None
            places: dict[str, str] = {}
            try:
                ours, theirs = _connection()
                with theirs:
                    channel = await _channel(ours)
                    request: dict[str, Any] = {
                        "id": sandbox_id,
                        "program": "",
                        "arguments": [],
                        "uid": confinement.uid,
                        "gid": confinement.uid,
                        "cgroups": confinement.cgroups,
                        "rlimits": confinement.rlimits,
                        "seccomp": confinement.seccomp,
                    }
                    if self.level == "namespace":
                        request |= self._enclosed(spec, builder, root)
                    else:
                        places = plain.folders(confinement.directory, spec.workdir, confinement.uid)
                        request["command"] = self._confined(spec, builder, confinement)
                    child = await spawner.spawn(request, theirs)
                await _answered(channel, child)
                environment = {"PATH": builder.path, "HOME": HOME, "USER": "sandbox", **plain.environment(places)}

                def end() -> asyncio.Task[None]:
                    return self._end(sandbox)

                sandbox = LocalSandbox(sandbox_id, spec, channel, environment, confinement, end)
                sandbox.isolation = self.level
                sandbox.places = places
                sandbox.child = child
                self._sandboxes[sandbox_id] = sandbox
                return sandbox
            except BaseException:
                await asyncio.shield(asyncio.ensure_future(self._finish(channel, child, confinement)))
                raise

    def _enclosed(self, spec: SandboxSpec, builder: Builder, root: Root) -> dict[str, Any]:
        """What the spawner is to mount, and bubblewrap to do."""
        return {
            "program": f"{STAGE}/bubblewrap/{self._bubblewrap[1]}",
            "arguments": [*_namespaces(spec), *root.arguments],
            "command": [builder.python, "-I", "-S", "-B", AGENT, "3"],
            "binds": [*root.binds, (self._bubblewrap[0], "bubblewrap")],
            "folders": root.folders,
            "tmpfs": root.tmpfs,
        }

    def _confined(self, spec: SandboxSpec, builder: Builder, confinement: Confinement) -> list[str]:
        """The command line of an agent that has no namespaces."""
        directory, uid = confinement.directory, confinement.uid
        limits = plain.Confined(directory=str(directory), uid=uid)
        if self.level == "landlock":
            version, _ = plain.abi()
            limits = plain.confined(directory, uid=uid, network=spec.network == "open", version=version)
        return plain.launcher(builder.python, builder.agent, limits, "3")

    def _check(self, spec: SandboxSpec) -> None:
        if self._closed:
            raise SandboxCreationError("this provider is closed")
        if ISOLATION_LEVELS.index(spec.isolation) > ISOLATION_LEVELS.index(self.level):
            asked = f"isolation {spec.isolation!r} was asked for"
            raise SandboxUnsupportedError(f"{asked}, and this provider gives {self.level!r}")
        if self.level != "namespace" and spec.mounts:
            raise SandboxUnsupportedError(f"there are no mounts at the level {self.level!r}")
        if self.level == "none" and spec.network == "none":
            hint = 'Allow it: SandboxSpec(network="open"), or take a level that isolates.'
            raise SandboxUnsupportedError("nothing keeps a sandbox of the level 'none' from the network", hint=hint)
        if not isinstance(spec.network, str):
            raise SandboxUnsupportedError("a list of hosts that may be reached cannot be enforced on this machine")

    def _prepared(self) -> tuple[Spawner, Builder, Confiner]:
        if self._builder is None or self._confiner is None:
            probe.require(self.level)
            owners.sweep()
            if self.level == "namespace":
                found = find_bubblewrap()
                if found is None:
                    raise MissingExtraError("sandbox", "a sandbox on this machine (bubblewrap 0.11 or newer)")
                self._bubblewrap = found
            if self._root is not None:
                self._root.mkdir(parents=True, exist_ok=True)
            self._state = Path(tempfile.mkdtemp(prefix="verifiers-sandboxes-", dir=self._root))
            self._state.chmod(0o711)  # where there are no mounts, sandboxes find their directories below it
            self._confiner = Confiner(self._state, level=self.level)
            self._builder = Builder(self._state, venv=self._venv)
        if self._spawner is None or not self._spawner.alive:
            self._spawner = Spawner()
        return self._spawner, self._builder, self._confiner

    # --- ending

    def _end(self, sandbox: LocalSandbox) -> asyncio.Task[None]:
        task = self._ending.get(sandbox.id)
        if task is None:
            work = self._finish(sandbox.channel, sandbox.child, sandbox.confinement)
            task = self._ending[sandbox.id] = asyncio.create_task(work)
            task.add_done_callback(lambda _: self._sandboxes.pop(sandbox.id, None))
        return task

    async def _finish(self, channel: Channel | None, child: Child | None, confinement: Confinement) -> None:
        """End what there is of a sandbox, leaving nothing."""
        if channel is not None:
            channel.fail(SandboxDiedError("the sandbox was deleted"))
        if child is not None and self._spawner is not None:
            confinement.kill()
            with suppress(SandboxError):
                await self._spawner.kill(child)
            await asyncio.wait({child.ended}, timeout=END_S)
        confinement.release()

    # --- finding

    async def get(self, sandbox_id: str) -> Sandbox:
        return self._sandboxes[sandbox_id]

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        now = time.monotonic()
        return [
            SandboxInfo(
                id=one.id,
                labels=dict(one.spec.labels),
                image=one.spec.image,
                isolation=one.isolation,
                age=now - one.born,
            )
            for one in self._sandboxes.values()
            if (labels or {}).items() <= one.spec.labels.items()
        ]

    async def claim(self, sandbox: Sandbox, spec: SandboxSpec) -> Sandbox:
        sandbox.spec = replace(sandbox.spec, secrets=spec.secrets, labels=spec.labels)
        return sandbox

    async def delete_many(self, labels: Mapping[str, str]) -> int:
        found = [one for one in self._sandboxes.values() if labels.items() <= one.spec.labels.items()]
        await asyncio.gather(*(one.delete() for one in found))
        return len(found)

    async def reap_orphans(self) -> int:
        return owners.sweep()

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(one.delete() for one in list(self._sandboxes.values())))
        if self._spawner is not None:
            self._spawner.close()
        if self._confiner is not None:
            self._confiner.close()
        if self._state is not None:
            shutil.rmtree(self._state, ignore_errors=True)


def _within_memory(spec: SandboxSpec, confiner: Confiner) -> SandboxSpec:
    """Files are memory here: no more of them than of memory, so that writing too much ends as a full disk."""
    if spec.memory is None or "memory" not in confiner.cgroups.limits:
        return spec
    return replace(spec, disk=min(spec.memory, spec.disk or spec.memory))


def _namespaces(spec: SandboxSpec) -> list[str]:
    shared = ["--share-net"] if spec.network == "open" else []
    own = ["--unshare-all", "--unshare-user", *shared]  # alone, the first would do without a user namespace
    return [*own, "--die-with-parent", "--as-pid-1", "--new-session", "--hostname", "sandbox", "--chdir", "/"]


def _connection() -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise SandboxBusyError(f"no more sandboxes can be opened: {error}", retry_after=1.0) from error


async def _channel(sock: socket.socket) -> Channel:
    channel = Channel()
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=sock)
    return channel


async def _answered(channel: Channel, child: Child) -> None:
    """Wait for the agent's first word."""
    first: set[asyncio.Future[Any]] = {channel.started, child.ended}
    await asyncio.wait(first, timeout=READY_S, return_when=asyncio.FIRST_COMPLETED)
    if channel.started.done() and channel.started.exception() is None:
        return
    if child.ended.done() or channel.started.done():
        await asyncio.wait({child.ended}, timeout=END_S)
        status, words = child.ended.result() if child.ended.done() else (-1, "")
        raise SandboxCreationError(f"the sandbox did not start: {words or f'it ended with status {status}'}")
    raise SandboxNotReadyError(f"the sandbox did not answer within {READY_S:g} seconds")
