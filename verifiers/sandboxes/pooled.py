"""A sandbox that came from a pool: the provider's own, except that deleting it tells the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from verifiers.errors import SandboxError
from verifiers.loops import shielded
from verifiers.sandboxes.results import ExecResult, FileStat, Usage
from verifiers.sandboxes.sandbox import Process, Sandbox
from verifiers.sandboxes.spec import Command


class PooledSandbox(Sandbox):
    """`inner` as its user sees it.

    hit: it was idle when it was asked for. start_s: seconds from the asking to it. key: of the request that made it.
    """

    def __init__(
        self, inner: Sandbox, end: Callable[[], asyncio.Task[SandboxError | None]], *, hit: bool, start_s: float
    ) -> None:
        self.wrap(inner)
        self.key: str | None = None
        self.hit, self.start_s = hit, start_s
        self._end = end
        self._deleted = False

    def wrap(self, inner: Sandbox) -> None:
        """Be this one."""
        self.inner = inner
        self.id, self.spec, self.isolation = inner.id, inner.spec, inner.isolation

    async def delete(self) -> None:
        """Delete it; the pool has room for another then."""
        if not self._deleted and (failure := await shielded(self._end())) is not None:
            raise failure
        self._deleted = True

    # --- the rest is the inner one's --------------------------------------------------------------------------

    async def run(self, command: Command) -> ExecResult:
        return await self.inner.run(command)

    async def start(self, command: Command) -> Process:
        return await self.inner.start(command)

    async def attach(self, process_id: str) -> Process:
        return await self.inner.attach(process_id)

    async def read(self, path: str, *, offset: int = 0, size: int | None = None) -> bytes:
        return await self.inner.read(path, offset=offset, size=size)

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await self.inner.write(path, data, mode=mode)

    async def stat(self, path: str) -> FileStat:
        return await self.inner.stat(path)

    async def list(self, path: str) -> list[FileStat]:
        return await self.inner.list(path)

    async def mkdir(self, path: str) -> None:
        await self.inner.mkdir(path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self.inner.remove(path, recursive=recursive)

    async def upload(self, source: Path | str, target: str) -> None:
        await self.inner.upload(source, target)

    async def download(self, source: str, target: Path | str) -> None:
        await self.inner.download(source, target)

    async def usage(self) -> Usage:
        return await self.inner.usage()

    async def alive(self) -> bool:
        return await self.inner.alive()
