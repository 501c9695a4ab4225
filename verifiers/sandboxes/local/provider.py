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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from verifiers.errors import (
    ConfigError,
    SandboxBusyError,
    SandboxCreationError,
    SandboxUnsupportedError,
)
from verifiers.loops import shielded
from verifiers.sandboxes.host.channel import Channel
from verifiers.sandboxes.host.provider import RememberingProvider
from verifiers.sandboxes.local import owners, plain, probe
from verifiers.sandboxes.local.confinement import Confinement, Confiner
from verifiers.sandboxes.local.launch import Spawner, find_bubblewrap
from verifiers.sandboxes.local.root import HOME, Builder, Root
from verifiers.sandboxes.local.sandbox import Life, LocalSandbox
from verifiers.sandboxes.local.spawner import STAGE
from verifiers.sandboxes.results import Capabilities
from verifiers.sandboxes.sandbox import Sandbox
from verifiers.sandboxes.spec import ISOLATION_LEVELS, Isolation, SandboxSpec

IMAGES = {"python:3.11-slim": "host"}
"""Names of images → what stands for them here. This one is v0's default, whose users want a Python and a shell."""
STARTS = 4 * (os.cpu_count() or 1)
"""So many start at once; more wait their turn, and their time to start has not begun."""


class LocalProvider(RememberingProvider):
    """Namespaces of this machine through bubblewrap. No daemon; root is not needed where user namespaces are allowed.

    level: what isolates; one that this machine cannot give raises, and nothing weaker is taken in its place.
    root: a directory for what sandboxes need on the host; a new one below the system's for temporary files if None.
    venv: whether they see the Python environment of this process, read-only.
    images: names of images that the system of this machine (`host`) stands for, beside `IMAGES`.
    allowed_calls: system calls that the filter lets through though it denies them otherwise, as `ptrace` for a debugger
        (`seccomp.DENIED` has the names); only at the level "namespace", and told in the capabilities.
    """

    name = "local"

    def __init__(
        self,
        *,
        level: Isolation = "namespace",
        root: Path | None = None,
        venv: bool = True,
        images: Mapping[str, str] | None = None,
        allowed_calls: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.level = level
        self._root = root
        self._venv = venv
        self._images = {**IMAGES, **(images or {})}
        self._allowed_calls = allowed_calls
        self._state: Path | None = None
        self._confiner: Confiner | None = None
        self._bubblewrap = ("", "")
        self._builder: Builder | None = None
        self._spawner: Spawner | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._preparing = asyncio.Lock()
        self._starting = asyncio.Semaphore(STARTS)
        self._lives: dict[str, Life] = {}
        self._closing: asyncio.Task[None] | None = None

    async def capabilities(self) -> Capabilities:
        _, _, confiner = await self._prepare()
        found = confiner.capabilities()
        network = {"open"} if self.level == "none" else {"none", "open"}
        own_files = self.level == "namespace"
        return replace(found, network=frozenset(network), images=own_files, mounts=own_files)

    # --- making

    async def create(self, spec: SandboxSpec) -> Sandbox:
        spec = replace(spec, image=self._images.get(spec.image, spec.image))
        key = spec.idempotency_key
        if key is None:
            return await self._create(spec)
        task = self._by_key.get(key)
        if task is None or (task.done() and self._is_over(task)):
            task = self._by_key[key] = asyncio.ensure_future(self._create(spec))
        return await asyncio.shield(task)

    async def _create(self, spec: SandboxSpec) -> LocalSandbox:
        self._check(spec)
        async with self._starting:
            _, builder, _ = await self._prepare()
            self._check(spec)  # it may have been closed meanwhile
            first, *others = builder.agents(spec)
            try:
                return await self._try(spec, first)
            except SandboxUnsupportedError:
                raise  # such as an image that is not there
            except SandboxCreationError as error:
                if spec.image == "host" or builder.knows(spec) or self._closing:
                    raise
                return await self._try_others(spec, others, error)

    async def _try_others(
        self, spec: SandboxSpec, agents: list[list[str]], error: SandboxCreationError
    ) -> LocalSandbox:
        """An image that was not seen before and does not run this machine's Python: does it run its own?"""
        for agent in agents:
            with suppress(SandboxCreationError):
                return await self._try(spec, agent)
        what = f"the image {spec.image!r} runs neither this machine's Python nor one of its own ({error})"
        raise SandboxUnsupportedError(what, hint="Install Python 3.9 or newer in it.")

    async def _try(self, spec: SandboxSpec, agent: list[str]) -> LocalSandbox:
        """Start a sandbox whose agent this command line starts. All or nothing."""
        spawner, builder, confiner = self._prepared()
        root = builder.build(_within_memory(spec, confiner))
        sandbox_id = f"{os.getpid()}-{secrets.token_hex(6)}"
        confinement = confiner.prepare(sandbox_id, spec)
        life = self._lives[sandbox_id] = Life(sandbox_id, confinement, spawner, lambda: self._forget(sandbox_id))
        try:
            sandbox = await self._start(life, spec, root, agent)
            if spec.image != "host":
                if not await sandbox.alive():  # it has all that it needs, beyond its first word
                    raise SandboxCreationError(f"no interpreter works in the image {spec.image!r}")
                builder.works(spec, agent)
            life.settle(spec)
            self._sandboxes[life.id] = sandbox
            return sandbox
        except BaseException:
            await shielded(life.end())
            raise

    async def _start(self, life: Life, spec: SandboxSpec, root: Root, agent: list[str]) -> LocalSandbox:
        spawner, builder, _ = self._prepared()
        confinement = life.confinement
        ours, theirs = _connection()
        with theirs:
            life.channel = await _channel(ours)
            request: dict[str, Any] = {
                "id": life.id,
                "program": "",
                "arguments": [],
                "uid": confinement.uid,
                "gid": confinement.uid,
                "cgroups": confinement.cgroups,
                "rlimits": confinement.rlimits,
                "seccomp": confinement.seccomp,
            }
            places: dict[str, str] = {}
            if self.level == "namespace":
                request |= self._enclosed(root, agent)
            else:
                places = plain.folders(confinement.directory, spec.workdir, confinement.uid)
                request["command"] = self._confined(spec, builder, confinement)
            life.child = await spawner.spawn(request, theirs)
        await life.answered()
        environment = {"PATH": builder.path(spec), "HOME": HOME, "USER": "sandbox", **plain.environment(places)}
        return LocalSandbox(life, spec, environment, isolation=self.level, places=places)

    def _forget(self, sandbox_id: str) -> None:
        self._lives.pop(sandbox_id, None)
        self._sandboxes.pop(sandbox_id, None)

    def _enclosed(self, root: Root, agent: list[str]) -> dict[str, Any]:
        """What the spawner is to mount, and bubblewrap to do."""
        return {
            "program": f"{STAGE}/bubblewrap/{self._bubblewrap[1]}",
            "arguments": root.arguments,
            "command": agent,
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
        if self._closing:
            raise SandboxCreationError("this provider is closed")
        if ISOLATION_LEVELS.index(spec.isolation) > ISOLATION_LEVELS.index(self.level):
            asked = f"isolation {spec.isolation!r} was asked for"
            raise SandboxUnsupportedError(f"{asked}, and this provider gives {self.level!r}")
        if self.level != "namespace" and spec.image != "host":
            raise SandboxUnsupportedError(f"there are no images at the level {self.level!r}")
        if self.level != "namespace" and spec.mounts:
            raise SandboxUnsupportedError(f"there are no mounts at the level {self.level!r}")
        if self.level == "none" and spec.network == "none":
            hint = 'Allow it by network="open" and isolation="none", or take a level that isolates.'
            raise SandboxUnsupportedError("nothing keeps a sandbox of the level 'none' from the network", hint=hint)
        if not isinstance(spec.network, str):
            raise SandboxUnsupportedError("a list of hosts that may be reached cannot be enforced on this machine")

    async def _prepare(self) -> tuple[Spawner, Builder, Confiner]:
        """What all sandboxes have in common; made once, in a thread, since it takes as long as some sandboxes do."""
        loop = asyncio.get_running_loop()
        if self._loop is not None and self._loop is not loop:
            if not self._loop.is_closed():
                hint = "Make a provider for each loop."
                raise ConfigError("a LocalProvider is used in two event loops at once", hint=hint)
            self._begin_again()
        self._loop = loop
        async with self._preparing:
            if self._closing is None and self._builder is None:
                try:
                    await shielded(asyncio.to_thread(self._make))  # cut short, it would leave what nobody knows of
                except OSError as error:
                    what = f"what all sandboxes have in common cannot be written on this machine: {error}"
                    hint = "Make room, or name another directory: LocalProvider(root=…), or TMPDIR."
                    raise SandboxCreationError(what, hint=hint, cause=error) from error
        return self._prepared()

    def _begin_again(self) -> None:
        """Forget what a loop that is over has made: nobody can speak to that any more."""
        if self._spawner is not None:
            self._spawner.close()
        for life in self._lives.values():
            life.confinement.linger()
        for known in (self._lives, self._sandboxes, self._by_key):
            known.clear()
        self._starting, self._preparing = asyncio.Semaphore(STARTS), asyncio.Lock()

    def _make(self) -> None:
        probe.require(self.level)
        owners.sweep()
        if self.level == "namespace":
            self._bubblewrap = find_bubblewrap()
        if self._root is not None:
            self._root.mkdir(parents=True, exist_ok=True)
        if self._state is None:
            self._state = Path(tempfile.mkdtemp(prefix="verifiers-sandboxes-", dir=self._root))
        self._state.chmod(0o711)  # where there are no mounts, sandboxes find their directories below it
        self._confiner = Confiner(self._state, level=self.level, allowed_calls=self._allowed_calls)
        self._builder = Builder(self._state, venv=self._venv)

    def _prepared(self) -> tuple[Spawner, Builder, Confiner]:
        if self._builder is None or self._confiner is None:
            raise SandboxCreationError("this provider is closed")
        if self._spawner is None or not self._spawner.alive:
            self._spawner = Spawner()
        return self._spawner, self._builder, self._confiner

    # --- the end

    async def reap_orphans(self) -> int:
        return owners.sweep()

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await shielded(self._closing)

    async def _close(self) -> None:
        async with self._preparing:
            # Where their loop is over, what they wait for never comes: they end with the process that started them.
            over = self._loop is not None and self._loop.is_closed()
            ends = [] if over else [life.end() for life in self._lives.values()]
            outcomes = await asyncio.gather(*ends, return_exceptions=True)
            if self._spawner is not None:
                self._spawner.close()
            if self._confiner is not None:
                self._confiner.close()
            if self._state is not None:
                shutil.rmtree(self._state, ignore_errors=True)
            self._spawner = self._confiner = self._builder = self._state = None
        if failure := next((one for one in outcomes if one is not None), None):
            raise failure


def _within_memory(spec: SandboxSpec, confiner: Confiner) -> SandboxSpec:
    """Files are memory here: no more of them than of memory, so that writing too much ends as a full disk."""
    if spec.memory is None or "memory" not in confiner.cgroups.limits:
        return spec
    return replace(spec, disk=min(spec.memory, spec.disk or spec.memory))


def _connection() -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        hint = "Raise the limit of open files (ulimit -n): each sandbox is one. Or lower the concurrency (-c)."
        raise SandboxBusyError(f"no more sandboxes can be opened: {error}", retry_after=1.0, hint=hint) from error


async def _channel(sock: socket.socket) -> Channel:
    channel = Channel()
    await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=sock)
    return channel
