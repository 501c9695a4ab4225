"""A sandbox that our agent runs in: commands and files over a `Channel`, wherever the other end of that is."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import secrets
import stat as modes
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from verifiers.errors import (
    ConfigError,
    SandboxDiedError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxPathError,
)
from verifiers.sandboxes.guest.agent import wire
from verifiers.sandboxes.guest.agent.wire import ENTRIES, pack
from verifiers.sandboxes.host.channel import Channel, numbers, unpack
from verifiers.sandboxes.host.process import GuestProcess
from verifiers.sandboxes.host.trees import TreeError, TreeWriter, pieces_of
from verifiers.sandboxes.results import ExecResult, FileStat
from verifiers.sandboxes.sandbox import Process, Sandbox
from verifiers.sandboxes.spec import MIB, READ_BYTES, Command, SandboxSpec, check_words

PIECE = 1 << 20
"""Bytes of a file in one frame."""
ANSWER_S = 60.0
"""How long an agent may take for a file or a sign of life: it answers in between commands' output, at once."""
TREE_S = 300.0
"""How long removing or copying a directory may take."""
CANCEL_S = 1.0
T = TypeVar("T")
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class _Question:
    """Waits for one answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[tuple[int, bytes]] = asyncio.get_running_loop().create_future()

    def frame(self, kind: int, body: bytes) -> None:
        if kind not in (wire.REPLY, wire.FAIL, wire.PONG):
            raise ValueError(f"a frame of kind {kind} for a question")
        if not self.answer.done():
            self.answer.set_result((kind, body))

    def lost(self, error: SandboxError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class GuestSandbox(Sandbox):
    """All but its beginning and its end."""

    def __init__(self, sandbox_id: str, spec: SandboxSpec, channel: Channel, environment: Mapping[str, str]) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.channel = channel
        self._environment = {**ENVIRONMENT, **environment}
        self._processes: dict[str, Process] = {}

    @abstractmethod
    def judge(self, result: ExecResult) -> ExecResult:
        """A command's result with what the limits of the sandbox say about it."""

    # --- commands

    def _launch(self, command: Command, *, live: bool) -> GuestProcess:
        variables = {**self._environment, **self.spec.env, **command.env}
        for name, secret in self.spec.secrets.items():
            variables.setdefault(name, secret.reveal())
        head = [os.fsencode(self._absolute(command.cwd or "."))]
        head += [os.fsencode(f"{name}={value}") for name, value in variables.items()]
        return GuestProcess(self.channel, command, head, judge=self.judge, live=live)

    async def run(self, command: Command) -> ExecResult:
        process = self._launch(command, live=False)
        try:
            await process.feed(command.stdin)
            return await process.wait()
        except asyncio.CancelledError:
            await _shielded(process.kill(), CANCEL_S)
            raise

    async def start(self, command: Command) -> Process:
        process = self._launch(command, live=True)
        self._processes[process.id] = process
        try:
            await process.feed(command.stdin)
        except asyncio.CancelledError:
            await _shielded(process.kill(), CANCEL_S)  # nobody knows of it
            raise
        return process

    async def attach(self, process_id: str) -> Process:
        return self._processes[process_id]

    # --- files

    def _absolute(self, path: str) -> str:
        full = posixpath.join(self.spec.workdir, path)
        return full[:-2] or "/" if full.endswith("/.") else full

    def _named(self, path: str) -> str:
        """The whole path. SandboxPathError: no file can have it as its name."""
        try:
            check_words("its name", (path,))
        except ConfigError as error:
            raise SandboxPathError(f"{path!r} is no path: {error}") from None
        return self._absolute(path)

    async def _ask(self, kind: int, body: bytes = b"") -> tuple[int, bytes]:
        question = _Question()
        number = self.channel.open(question)
        try:
            self.channel.send(kind, number, body)
            async with asyncio.timeout(ANSWER_S):
                return await question.answer
        except TimeoutError:
            error = SandboxDiedError("the sandbox's agent does not answer")
            self.channel.fail(error)
            raise error from None
        finally:
            self.channel.forget(number)

    async def _file(self, operation: bytes, path: str, *arguments: bytes) -> list[bytes]:
        name = os.fsencode(self._named(path))
        kind, body = await self._ask(wire.FILE, pack([operation, name, *arguments]))
        if kind == wire.REPLY:
            return self._honest(lambda: unpack(body))
        raise path_error(path, self._honest(lambda: numbers(body.split(b" ")[0], 1)[0]))

    def _honest(self, read: Callable[[], T]) -> T:
        """What `read` makes of an agent's words; the end of the sandbox if that raises ValueError."""
        try:
            return read()
        except ValueError as error:
            died = SandboxDiedError(f"the sandbox's agent broke the protocol: {error}")
            self.channel.fail(died)
            raise died from None

    async def read(self, path: str, *, offset: int = 0, size: int | None = None) -> bytes:
        parts: list[bytes] = []
        start, left, first = offset, size, None
        while left is None or left > 0:
            wanted = PIECE if left is None else min(PIECE, left)
            which, data = await self._fields(2, b"read", path, b"%d" % offset, b"%d" % wanted)
            first = first or which
            if which != first:
                raise SandboxPathError(f"{path!r} in the sandbox was replaced while it was read")
            parts.append(data)
            offset += len(data)
            left = None if left is None else left - len(data)
            if len(data) < wanted:
                break
            if left is None and offset - start > READ_BYTES:
                what = f"{path!r} in the sandbox has more than {READ_BYTES // MIB} MiB"
                raise SandboxPathError(what, hint="Say how much of it to read (size), or download it.")
        return b"".join(parts)

    async def _fields(self, count: int, operation: bytes, path: str, *arguments: bytes) -> list[bytes]:
        fields = await self._file(operation, path, *arguments)
        if len(fields) != count:
            self._honest(lambda: _refuse("another number of fields"))
        return fields

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        token = b"%s.part" % secrets.token_hex(6).encode()
        if len(data) <= PIECE:
            await self._file(b"write", path, token, b"%d" % mode, data)
            return
        try:
            for at in range(0, len(data), PIECE):
                await self._file(b"part", path, token, b"%d" % at, data[at : at + PIECE])
            await self._file(b"finish", path, token, b"%d" % mode)
        except BaseException:
            self.channel.send(wire.FILE, 0, pack([b"abandon", os.fsencode(self._absolute(path)), token]))
            raise

    async def stat(self, path: str) -> FileStat:
        fields = await self._fields(2, b"stat", path)
        return self._honest(lambda: _stats(fields))[0]

    async def list(self, path: str) -> list[FileStat]:
        found: list[FileStat] = []
        first, total = 0, 1
        while first < total:
            fields = await self._file(b"list", path, b"%d" % first)
            total, entries = self._honest(partial(_listing, fields))
            found += entries
            first += ENTRIES
        return found

    async def mkdir(self, path: str) -> None:
        await self._file(b"mkdir", path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        if recursive:
            await self._tree_done(path, self._tree("remove", path))
        else:
            await self._file(b"remove", path)

    async def upload(self, source: Path | str, target: str) -> None:
        process = self._tree("receive", target, live=True)
        try:
            async for piece in pieces_of(Path(source)):
                await process.write(piece)
                await self.channel.drained()
            await process.close_stdin()
            await self._tree_done(target, process)
        except BaseException:
            await _shielded(process.kill(), CANCEL_S)
            raise

    async def download(self, source: str, target: Path | str) -> None:
        writer = TreeWriter(Path(target))

        def take(data: bytes) -> None:
            writer.feed(data)
            if writer.failed:  # what else it has, terabytes perhaps, is not waited for
                process.end()

        try:
            process = self._tree("send", source, sink=take)
            try:
                await self._tree_done(source, process)
            finally:
                if writer.failed:
                    writer.finish()
            writer.finish()
        except TreeError as error:
            raise SandboxPathError(f"{source!r} in the sandbox: {error}") from None
        finally:
            writer.close()

    def _tree(
        self, operation: str, path: str, *, live: bool = False, sink: Callable[[bytes], None] | None = None
    ) -> GuestProcess:
        """Start an operation of the agent on a whole tree: a process of its own, since it may take long."""
        absolute = self._named(path)
        command = Command(command=(operation, absolute), timeout=TREE_S, max_output=1 << 60, output_limit=None)
        return GuestProcess(self.channel, command, [b"/"], judge=self.judge, live=live, tree=True, sink=sink)

    async def _tree_done(self, path: str, process: GuestProcess) -> None:
        try:
            result = await process.wait()
        except asyncio.CancelledError:
            await _shielded(process.kill(), CANCEL_S)
            raise
        if result.timed_out:
            raise SandboxPathError(f"{path!r} in the sandbox: not done within {TREE_S:g} seconds")
        if result.exit_code != 0:
            raise path_error(path, result.exit_code or errno.EIO)

    # --- life

    async def alive(self) -> bool:
        if self.channel.error is not None:
            return False
        try:
            await self._ask(wire.PING)
        except SandboxDiedError:
            return False
        return True


def path_error(path: str, code: int) -> SandboxPathError:
    """The error for a file operation that failed with `code` of errno."""
    if code == errno.ENOENT:
        return SandboxFileNotFoundError(f"there is no {path!r} in the sandbox")
    reason = "it is no regular file" if code == errno.EINVAL else os.strerror(code)
    return SandboxPathError(f"{path!r} in the sandbox: {reason}")


def _listing(fields: Sequence[bytes]) -> tuple[int, list[FileStat]]:
    return numbers(fields[0] if fields else b"", 1)[0], _stats(fields[1:])


def _stats(fields: Sequence[bytes]) -> list[FileStat]:
    found = []
    for name, text in zip(fields[::2], fields[1::2], strict=True):
        mode, size, micros = numbers(text, 3)
        kinds = ((modes.S_ISREG, "file"), (modes.S_ISDIR, "directory"), (modes.S_ISLNK, "link"))
        kind = next((kind for test, kind in kinds if test(mode)), "other")
        path = os.fsdecode(name)
        found.append(FileStat(path, kind, size, modes.S_IMODE(mode), micros / 1e6))  # type: ignore[arg-type]
    return found


def _refuse(what: str) -> None:
    raise ValueError(what)


async def _shielded(work: object, seconds: float) -> None:
    """Wait for it, though not for ever, even if this task is cancelled again."""
    task = asyncio.ensure_future(work)  # type: ignore[call-overload]
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if task.done() and not task.cancelled():
            task.exception()
        else:
            task.cancel()
