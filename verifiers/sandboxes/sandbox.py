"""The interface of every provider: `Provider` makes a `Sandbox`, which runs `Process`es and has files.

    async with LocalProvider() as provider:
        sandbox = await provider.create(SandboxSpec())
        result = await sandbox.exec("echo hi")

A sandbox serves one rollout: there is no reset and no snapshot. Two families of outcome: what a command did is an
`ExecResult`, data for the model; what the platform did is a `SandboxError`, never a reward. A path that is not there is
`SandboxFileNotFoundError` for every way to read.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from verifiers.errors import SandboxUnsupportedError
from verifiers.sandboxes.results import Capabilities, Chunk, ExecResult, FileStat, SandboxInfo, Usage
from verifiers.sandboxes.sessions import Interpreter, Session
from verifiers.sandboxes.spec import Command, SandboxSpec, command


class Process(ABC):
    """A running command. It lives on when nobody looks: `Sandbox.attach` finds it by its id."""

    id: str

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Give it input; waits while it does not read. Input to a process that has ended is dropped."""

    @abstractmethod
    async def close_stdin(self) -> None:
        """Tell it that its input ends."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to it. To a process that has ended: nothing, that is success."""

    @abstractmethod
    def output(self, *, stdout_from: int = 0, stderr_from: int = 0) -> AsyncIterator[Chunk]:
        """Its output from these offsets as it comes, until it ends; it may be read by several at once.

        What was not kept (`Command.max_output`, `Command.keep`) is a gap in the offsets.
        """

    @abstractmethod
    async def wait(self) -> ExecResult:
        """How it ended, however often asked."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill it and all that it started; returns once they are gone."""


class Sandbox(ABC):
    """One sandbox. Methods raise `SandboxError` when the sandbox or the way to it fails."""

    id: str
    spec: SandboxSpec
    isolation: str

    async def exec(self, line: str | Sequence[str], **options: Any) -> ExecResult:
        """Run a command to its end. `options` are the fields of `Command`."""
        return await self.run(command(line, **options))

    @abstractmethod
    async def run(self, command: Command) -> ExecResult:
        """Run `command` to its end. Cancelling the caller kills it. Launches are never repeated."""

    async def spawn(self, line: str | Sequence[str], *, timeout: float | None = None, **options: Any) -> Process:
        """Start a command that goes on, such as a server; it has no deadline unless `timeout` sets one.

        `options` are the other fields of `Command`.
        """
        return await self.start(command(line, timeout=timeout, **options))

    @abstractmethod
    async def start(self, command: Command) -> Process:
        """Start `command` and let it run. With `stdin=None` its input stays open for `Process.write`."""

    @abstractmethod
    async def attach(self, process_id: str) -> Process:
        """A process that was started earlier, also by somebody else. KeyError: there is no such one."""

    async def session(
        self, *, env: Mapping[str, str] | None = None, cwd: str | None = None, python: str = "python3"
    ) -> Session:
        """A shell whose directory, variables and functions stay from command to command.

        `python` is the interpreter in the sandbox that keeps it.
        """
        return await Session.open(self, env=env, cwd=cwd, python=python)

    async def interpreter(
        self, *, env: Mapping[str, str] | None = None, cwd: str | None = None, python: str = "python3"
    ) -> Interpreter:
        """A Python whose variables stay from one piece of code to the next; `python` is that Python."""
        return await Interpreter.open(self, env=env, cwd=cwd, python=python)

    @abstractmethod
    async def read(self, path: str, *, offset: int = 0, size: int | None = None) -> bytes:
        """Bytes of a regular file. Links are followed inside the sandbox, as its own user."""

    @abstractmethod
    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Make or replace a file, whole or not at all; parents are made."""

    @abstractmethod
    async def stat(self, path: str) -> FileStat:
        """What is at `path`; a link itself is not followed."""

    @abstractmethod
    async def list(self, path: str) -> list[FileStat]:
        """What a directory holds, by name."""

    @abstractmethod
    async def mkdir(self, path: str) -> None:
        """Make a directory and its parents; one that is there is fine."""

    @abstractmethod
    async def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or directory."""

    @abstractmethod
    async def upload(self, source: Path | str, target: str) -> None:
        """Copy a file or a directory of the host into the sandbox."""

    @abstractmethod
    async def download(self, source: str, target: Path | str) -> None:
        """Copy a file or a directory out of the sandbox into a new place; links out and special files are refused."""

    @abstractmethod
    async def usage(self) -> Usage:
        """What it uses now."""

    @abstractmethod
    async def alive(self) -> bool:
        """Whether it answers. False: it is gone for good. Raises when that cannot be told."""

    @abstractmethod
    async def delete(self) -> None:
        """End it and all that runs in it, leaving nothing. Again: nothing happens. Not cut short by cancellation."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.delete()


class Provider(ABC):
    """Where sandboxes come from. Entered once, and left when no sandbox of it is used any more: it deletes them all."""

    name: str

    @abstractmethod
    async def capabilities(self) -> Capabilities:
        """What it can do, probed once. Raises `SandboxUnsupportedError` with the finding where it can do nothing."""

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A sandbox that has answered. All or nothing: what failed or was cancelled leaves nothing behind."""

    async def claim(self, sandbox: Sandbox, spec: SandboxSpec) -> Sandbox:
        """Hand an idle sandbox of a pool to a rollout: `spec`'s secrets and labels become its own.

        Here for sandboxes that look at their `spec` for each request. Others tell whoever runs them.
        """
        if sandbox.spec.pool_key != spec.pool_key:
            raise SandboxUnsupportedError("an idle sandbox cannot become one with other contents or limits")
        sandbox.spec = spec
        return sandbox

    @abstractmethod
    async def get(self, sandbox_id: str) -> Sandbox:
        """A sandbox of this provider by its id. KeyError: there is none."""

    @abstractmethod
    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """The sandboxes that have all these labels."""

    async def delete_many(self, labels: Mapping[str, str]) -> int:
        """Delete those that have all these labels, all at once; how many there were.

        Raises the first error after all were tried.
        """
        found = await self.list(labels)
        outcomes = await asyncio.gather(*(self._delete_by_id(info.id) for info in found), return_exceptions=True)
        if failure := next((outcome for outcome in outcomes if outcome is not None), None):
            raise failure
        return len(found)

    async def _delete_by_id(self, sandbox_id: str) -> None:
        with contextlib.suppress(KeyError):  # it has gone meanwhile
            await (await self.get(sandbox_id)).delete()

    @abstractmethod
    async def reap_orphans(self) -> int:
        """Remove what sandboxes of owners that are gone have left on this machine or account; how many there were."""

    @abstractmethod
    async def close(self) -> None:
        """Delete every sandbox and free all."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
