"""The interface of sandboxes for callers without an event loop: `SyncProvider` and what comes from it.

    with SyncProvider(LocalProvider()) as provider:
        with provider.create(SandboxSpec()) as sandbox:
            print(sandbox.exec("echo hi").stdout_text)

Written by scripts/sandboxes_sync.py from the asynchronous classes; change those. The work is done on an event loop in
a thread of its own, so any thread may call. `SyncProvider()` without a provider has the default one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from verifiers.loops import Background
from verifiers.sandboxes.default import default_provider
from verifiers.sandboxes.results import Capabilities, Chunk, ExecResult, FileStat, SandboxInfo, Usage
from verifiers.sandboxes.sandbox import Process, Provider, Sandbox
from verifiers.sandboxes.spec import COMMAND_SECONDS, OUTPUT_BYTES, OUTPUT_LIMIT, Command, SandboxSpec

if TYPE_CHECKING:
    from verifiers.sandboxes.sessions import CodeResult, Interpreter, Session, SessionResult


def _each(loop: Background, chunks: AsyncIterator[Chunk]) -> Iterator[Chunk]:
    """An asynchronous iterator's items."""

    async def following() -> Chunk:
        return await anext(chunks)

    with suppress(StopAsyncIteration):
        while True:
            yield loop.run(following())


class SyncProcess:
    """`Process` for callers without an event loop; `inner` is that."""

    def __init__(self, loop: Background, inner: Process) -> None:
        self._loop = loop
        self.inner = inner

    @property
    def id(self) -> str:
        """As of `Process`."""
        return self.inner.id

    def write(self, data: bytes) -> None:
        """Give it input; waits while it does not read. Input to a process that has ended is dropped."""
        self._loop.run(self.inner.write(data))

    def close_stdin(self) -> None:
        """Tell it that its input ends."""
        self._loop.run(self.inner.close_stdin())

    def signal(self, number: int) -> None:
        """Send a signal to it. To a process that has ended: nothing, that is success."""
        self._loop.run(self.inner.signal(number))

    def output(self, *, stdout_from: int = 0, stderr_from: int = 0) -> Iterator[Chunk]:
        """Its output from these offsets as it comes, until it ends; it may be read by several at once.

        What was not kept (`Command.max_output`, `Command.keep`) is a gap in the offsets.
        """
        return _each(self._loop, self.inner.output(stdout_from=stdout_from, stderr_from=stderr_from))

    def wait(self) -> ExecResult:
        """How it ended, however often asked."""
        return self._loop.run(self.inner.wait())

    def kill(self) -> None:
        """Kill it and all that it started; returns once they are gone."""
        self._loop.run(self.inner.kill())


class SyncSandbox:
    """`Sandbox` for callers without an event loop; `inner` is that."""

    def __init__(self, loop: Background, inner: Sandbox) -> None:
        self._loop = loop
        self.inner = inner

    @property
    def id(self) -> str:
        """As of `Sandbox`."""
        return self.inner.id

    @property
    def spec(self) -> SandboxSpec:
        """As of `Sandbox`."""
        return self.inner.spec

    @property
    def isolation(self) -> str:
        """As of `Sandbox`."""
        return self.inner.isolation

    def exec(self, line: str | Sequence[str], **options: Any) -> ExecResult:
        """Run a command to its end. `options` are the fields of `Command`."""
        return self._loop.run(self.inner.exec(line, **options))

    def run(self, command: Command) -> ExecResult:
        """Run `command` to its end. Cancelling the caller kills it. Launches are never repeated."""
        return self._loop.run(self.inner.run(command))

    def spawn(self, line: str | Sequence[str], *, timeout: float | None = None, **options: Any) -> SyncProcess:
        """Start a command that goes on, such as a server; it has no deadline unless `timeout` sets one.

        `options` are the other fields of `Command`.
        """
        return SyncProcess(self._loop, self._loop.run(self.inner.spawn(line, timeout=timeout, **options)))

    def start(self, command: Command) -> SyncProcess:
        """Start `command` and let it run. With `stdin=None` its input stays open for `Process.write`."""
        return SyncProcess(self._loop, self._loop.run(self.inner.start(command)))

    def attach(self, process_id: str) -> SyncProcess:
        """A process that was started earlier, also by somebody else. KeyError: there is no such one."""
        return SyncProcess(self._loop, self._loop.run(self.inner.attach(process_id)))

    def session(
        self, *, env: Mapping[str, str] | None=None, cwd: str | None = None, python: str = 'python3'
    ) -> SyncSession:
        """A shell whose directory, variables and functions stay from command to command.

        `python` is the interpreter in the sandbox that keeps it.
        """
        return SyncSession(self._loop, self._loop.run(self.inner.session(env=env, cwd=cwd, python=python)))

    def interpreter(
        self, *, env: Mapping[str, str] | None=None, cwd: str | None = None, python: str = 'python3'
    ) -> SyncInterpreter:
        """A Python whose variables stay from one piece of code to the next; `python` is that Python."""
        return SyncInterpreter(self._loop, self._loop.run(self.inner.interpreter(env=env, cwd=cwd, python=python)))

    def read(self, path: str, *, offset: int = 0, size: int | None = None) -> bytes:
        """Bytes of a regular file. Links are followed inside the sandbox, as its own user."""
        return self._loop.run(self.inner.read(path, offset=offset, size=size))

    def write(self, path: str, data: bytes, *, mode: int = 420) -> None:
        """Make or replace a file, whole or not at all; parents are made."""
        self._loop.run(self.inner.write(path, data, mode=mode))

    def stat(self, path: str) -> FileStat:
        """What is at `path`; a link itself is not followed."""
        return self._loop.run(self.inner.stat(path))

    def list(self, path: str) -> list[FileStat]:
        """What a directory holds, by name."""
        return self._loop.run(self.inner.list(path))

    def mkdir(self, path: str) -> None:
        """Make a directory and its parents; one that is there is fine."""
        self._loop.run(self.inner.mkdir(path))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or directory."""
        self._loop.run(self.inner.remove(path, recursive=recursive))

    def upload(self, source: Path | str, target: str) -> None:
        """Copy a file or a directory of the host into the sandbox."""
        self._loop.run(self.inner.upload(source, target))

    def download(self, source: str, target: Path | str) -> None:
        """Copy a file or a directory out of the sandbox into a new place; links out and special files are refused."""
        self._loop.run(self.inner.download(source, target))

    def usage(self) -> Usage:
        """What it uses now."""
        return self._loop.run(self.inner.usage())

    def alive(self) -> bool:
        """Whether it answers. False: it is gone for good. Raises when that cannot be told."""
        return self._loop.run(self.inner.alive())

    def delete(self) -> None:
        """End it and all that runs in it, leaving nothing. Again: nothing happens. Not cut short by cancellation."""
        self._loop.run(self.inner.delete())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()


class SyncProvider:
    """`Provider` for callers without an event loop; `inner` is that."""

    inner: Provider
    _loop: Background

    def __init__(self, provider: Provider | None = None) -> None:
        self._given = provider

    @property
    def name(self) -> str:
        """As of `Provider`."""
        return self.inner.name

    def capabilities(self) -> Capabilities:
        """What it can do, probed once. Raises `SandboxUnsupportedError` with the finding where it can do nothing."""
        return self._loop.run(self.inner.capabilities())

    def create(self, spec: SandboxSpec) -> SyncSandbox:
        """A sandbox that has answered. All or nothing: what failed or was cancelled leaves nothing behind."""
        return SyncSandbox(self._loop, self._loop.run(self.inner.create(spec)))

    def claim(self, sandbox: SyncSandbox, spec: SandboxSpec) -> SyncSandbox:
        """Hand an idle sandbox of a pool to a rollout: `spec`'s secrets and labels become its own.

        Here for sandboxes that look at their `spec` for each request. Others tell whoever runs them.
        """
        return SyncSandbox(self._loop, self._loop.run(self.inner.claim(sandbox.inner, spec)))

    def get(self, sandbox_id: str) -> SyncSandbox:
        """A sandbox of this provider by its id. KeyError: there is none."""
        return SyncSandbox(self._loop, self._loop.run(self.inner.get(sandbox_id)))

    def list(self, labels: Mapping[str, str] | None=None) -> list[SandboxInfo]:
        """The sandboxes that have all these labels."""
        return self._loop.run(self.inner.list(labels))

    def delete_many(self, labels: Mapping[str, str]) -> int:
        """Delete those that have all these labels, all at once; how many there were.

        Raises the first error after all were tried.
        """
        return self._loop.run(self.inner.delete_many(labels))

    def reap_orphans(self) -> int:
        """Remove what sandboxes of owners that are gone have left on this machine or account; how many there were."""
        return self._loop.run(self.inner.reap_orphans())

    def close(self) -> None:
        """Delete every sandbox and free all."""
        self._loop.run(self.inner.close())

    def __enter__(self) -> Self:
        self._loop = Background("sandboxes")
        self.inner = self._loop.run(self._opened())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        finally:
            self._loop.close()

    async def _opened(self) -> Provider:
        return await default_provider() if self._given is None else await self._given.__aenter__()


class SyncSession:
    """`Session` for callers without an event loop; `inner` is that."""

    def __init__(self, loop: Background, inner: Session) -> None:
        self._loop = loop
        self.inner = inner

    def run(
        self,
        line: str,
        *,
        timeout: float | None = COMMAND_SECONDS,
        max_output: int = OUTPUT_BYTES,
        output_limit: int | None = OUTPUT_LIMIT,
    ) -> SessionResult:
        """Evaluate a line, or several. The limits are those of `Command`; cancelling the caller stops the command."""
        return self._loop.run(self.inner.run(line, timeout=timeout, max_output=max_output, output_limit=output_limit))

    def close(self) -> None:
        """End it and all that runs in it."""
        self._loop.run(self.inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncInterpreter:
    """`Interpreter` for callers without an event loop; `inner` is that."""

    def __init__(self, loop: Background, inner: Interpreter) -> None:
        self._loop = loop
        self.inner = inner

    def run(
        self,
        code: str,
        *,
        timeout: float | None = COMMAND_SECONDS,
        max_output: int = OUTPUT_BYTES,
        output_limit: int | None = OUTPUT_LIMIT,
    ) -> CodeResult:
        """Run a piece of code. The limits are those of `Command`; cancelling the caller stops the code."""
        return self._loop.run(self.inner.run(code, timeout=timeout, max_output=max_output, output_limit=output_limit))

    def close(self) -> None:
        """End it and all that runs in it."""
        self._loop.run(self.inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
