"""A sandbox that our agent runs in: commands and files over a `Channel`, wherever the other end of that is."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import secrets
import stat as modes
from abc import abstractmethod
from collections.abc import Mapping, Sequence

from verifiers.errors import SandboxDiedError, SandboxError, SandboxFileNotFoundError, SandboxPathError
from verifiers.sandboxes import channel as wire
from verifiers.sandboxes.channel import Channel, numbers, pack, unpack
from verifiers.sandboxes.guest_process import GuestProcess
from verifiers.sandboxes.results import ExecResult, FileStat
from verifiers.sandboxes.sandbox import Process, Sandbox
from verifiers.sandboxes.spec import Command, SandboxSpec

PIECE = 1 << 20
"""Bytes of a file in one frame."""
ANSWER_S = 60.0
"""How long an agent may take for a file or a sign of life: it answers in between commands' output, at once."""
CANCEL_S = 1.0
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
        return GuestProcess(self.channel, command, head, live=live, judge=self.judge)

    async def run(self, command: Command) -> ExecResult:
        process = self._launch(command, live=False)
        try:
            if command.stdin is not None:
                await process.write(command.stdin)
                await process.close_stdin()
            return await process.wait()
        except asyncio.CancelledError:
            await _shielded(process.kill(), CANCEL_S)
            raise

    async def start(self, command: Command) -> Process:
        process = self._launch(command, live=True)
        self._processes[process.id] = process
        if command.stdin is not None:
            await process.write(command.stdin)
            await process.close_stdin()
        return process

    async def attach(self, process_id: str) -> Process:
        return self._processes[process_id]

    # --- files

    def _absolute(self, path: str) -> str:
        return posixpath.join(self.spec.workdir, path)

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
        name = os.fsencode(self._absolute(path))
        if b"\0" in name:
            raise SandboxPathError(f"{path!r} holds a NUL character")
        kind, body = await self._ask(wire.FILE, pack([operation, name, *arguments]))
        try:
            if kind == wire.REPLY:
                return unpack(body)
            code = numbers(body.split(b" ")[0], 1)[0]
        except ValueError as error:
            died = SandboxDiedError(f"the sandbox's agent broke the protocol: {error}")
            self.channel.fail(died)
            raise died from None
        raise path_error(path, code)

    async def read(self, path: str, *, offset: int = 0, size: int | None = None) -> bytes:
        parts: list[bytes] = []
        left = size
        while left is None or left > 0:
            wanted = PIECE if left is None else min(PIECE, left)
            _, _, data = await self._fields(3, b"read", path, b"%d" % offset, b"%d" % wanted)
            parts.append(data)
            offset += len(data)
            left = None if left is None else left - len(data)
            if len(data) < wanted:
                break
        return b"".join(parts)

    async def _fields(self, count: int, operation: bytes, path: str, *arguments: bytes) -> list[bytes]:
        fields = await self._file(operation, path, *arguments)
        if len(fields) != count:
            raise SandboxDiedError("the sandbox's agent broke the protocol: another number of fields")
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
        return _stats(await self._fields(2, b"stat", path))[0]

    async def list(self, path: str) -> list[FileStat]:
        return _stats(await self._file(b"list", path))

    async def mkdir(self, path: str) -> None:
        await self._file(b"mkdir", path)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self._file(b"remove", path, b"%d" % recursive)

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


def _stats(fields: Sequence[bytes]) -> list[FileStat]:
    found = []
    for name, text in zip(fields[::2], fields[1::2], strict=True):
        mode, size, micros = numbers(text, 3)
        kinds = ((modes.S_ISREG, "file"), (modes.S_ISDIR, "directory"), (modes.S_ISLNK, "link"))
        kind = next((kind for test, kind in kinds if test(mode)), "other")
        path = os.fsdecode(name)
        found.append(FileStat(path, kind, size, modes.S_IMODE(mode), micros / 1e6))  # type: ignore[arg-type]
    return found


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
