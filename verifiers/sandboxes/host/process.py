"""A command that an agent runs in a sandbox, as the host sees it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from typing import Literal

from verifiers.errors import SandboxDiedError, SandboxError, SandboxFileNotFoundError, SandboxPathError
from verifiers.sandboxes.guest.agent import wire
from verifiers.sandboxes.host.channel import Channel, numbers
from verifiers.sandboxes.results import Chunk, ExecResult, Reason
from verifiers.sandboxes.sandbox import Process
from verifiers.sandboxes.spec import Command

WINDOW = 1 << 18
"""Bytes of input that may be on their way without the command having read them."""
PIECE = 1 << 16
EVERYTHING = 1 << 62
GRACE_S = 5.0
"""How long after a command's deadline its sandbox may take to say how it ended."""
NO_SHELL = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)
"""Errors that say that there is no shell any more."""
REASONS: tuple[Reason, ...] = ("exited", "timeout", "silence", "output_limit", "cancelled", "signalled")
"""By the numbers of `guest/agent/wire.py`."""

Judge = Callable[[ExecResult], ExecResult]
"""Adds what the limits of the sandbox say to a result."""


class GuestProcess(Process):
    """One command. Its output is kept here as it comes, at most `max_output` bytes of each stream.

    head: its directory and variables. live: it is written to and signalled while it runs. tree: it is no program, but
    an operation of the agent on a directory; what that prints goes to `sink`.
    """

    def __init__(
        self,
        channel: Channel,
        command: Command,
        head: list[bytes],
        *,
        judge: Judge,
        live: bool = False,
        tree: bool = False,
        sink: Callable[[bytes], None] | None = None,
    ) -> None:
        self._channel = channel
        self._command = command
        self._judge = judge
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._kept = (bytearray(), bytearray())
        self._dropped = [0, 0]
        """How many bytes came before those that are kept."""
        self._result: ExecResult | None = None
        self._error: SandboxError | SandboxPathError | None = None
        self._changed = asyncio.Event()
        self._credit = WINDOW
        self._gone = False
        self._timer: asyncio.TimerHandle | None = None
        piped = live or command.stdin is not None
        flags = wire.TELL_PID * live | wire.KILL_LEFTOVERS * command.kill_leftovers
        flags |= wire.PIPED * piped | wire.TREE * tree
        sent = command.max_output if command.keep == "first" else EVERYTHING
        options = (_micro(command.timeout), _micro(command.silence), sent, command.output_limit or 0)
        argv = [os.fsencode(word) for word in command.argv]
        words = b"%d %d %d %d %d %d" % (*options, flags, len(argv))
        request = wire.pack([words, head[0], *argv, *head[1:]])
        self._number = channel.open(self)  # from here on it is listed: nothing of it may fail any more
        self.id = str(self._number)
        channel.send(wire.RUN, self._number, request)
        if command.timeout is not None:
            self._timer = self._loop.call_later(command.timeout + GRACE_S, self._overdue)

    # --- what the agent says

    def frame(self, kind: int, body: bytes) -> None:
        if kind in (wire.OUT, wire.ERR):
            if self._sink is not None and kind == wire.OUT:
                self._sink(body)
                return
            self._keep(kind - wire.OUT, body)
        elif kind == wire.END:
            self._end(numbers(body, 9))
        elif kind == wire.CREDIT:
            self._credit = min(WINDOW, self._credit + numbers(body, 1)[0])
        elif kind == wire.FAIL:
            self._refused(body)
        elif kind == wire.GONE:
            self._over()
        elif kind != wire.STARTED:
            raise ValueError(f"a frame of kind {kind} for a command")
        self._wake()

    def _keep(self, index: int, body: bytes) -> None:
        kept, most = self._kept[index], self._command.max_output
        if len(kept) + len(body) > most and self._command.keep == "first":
            raise ValueError("more output than was asked for")
        kept += body
        if len(kept) > 2 * most:  # not with each frame: what is left is moved
            self._drop(index)

    def _drop(self, index: int) -> None:
        """Keep the last bytes alone."""
        kept = self._kept[index]
        extra = max(0, len(kept) - self._command.max_output)
        del kept[:extra]
        self._dropped[index] += extra

    def lost(self, error: SandboxError) -> None:
        self._error = self._error or error
        self._over()
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _end(self, values: list[int]) -> None:
        status, out, err, micros, cpu, peak, reason, left, killed = values
        if self._result is not None or reason >= len(REASONS) or status > 0xFFFF:
            raise ValueError("an end that is none")
        for index in range(2):
            self._drop(index)
        code = os.waitstatus_to_exitcode(status)
        ended = "signalled" if reason == 0 and code < 0 else REASONS[reason]
        self._result = self._judge(
            ExecResult(
                exit_code=code if code >= 0 else None,
                signal=-code if code < 0 else None,
                stdout=bytes(self._kept[0]),
                stderr=bytes(self._kept[1]),
                stdout_bytes=max(out, len(self._kept[0])),
                stderr_bytes=max(err, len(self._kept[1])),
                seconds=micros / 1e6,
                cpu_seconds=cpu / 1e6,
                peak_memory=peak << 10,
                reason=ended,
                leftovers=left + killed,
                killed_leftovers=killed,
            )
        )
        if not left:
            self._over()

    def _refused(self, body: bytes) -> None:
        """It could not be started: a wrong directory is the caller's error, a wrong program is like the shell's."""
        code, _, stage = body.partition(b" ")
        reason = os.strerror(numbers(code, 1)[0])
        if stage == b"cwd":
            kind = SandboxFileNotFoundError if int(code) == errno.ENOENT else SandboxPathError
            self._error = kind(f"cannot enter the directory {self._command.cwd!r}: {reason}")
        elif isinstance(self._command.command, str) and int(code) in NO_SHELL:
            self._channel.fail(SandboxDiedError(f"the sandbox has lost its shell: {reason}"))
        else:
            text = f"{self._command.argv[0]}: {reason}\n".encode()
            status = 127 if int(code) == errno.ENOENT else 126
            self._keep(1, text[: self._command.max_output])  # for those who read while it runs, too
            kept = bytes(self._kept[1])
            self._result = self._judge(ExecResult(exit_code=status, stderr=kept, stderr_bytes=len(text)))
        self._over()

    def _over(self) -> None:
        self._gone = True
        self._channel.forget(self._number)
        if self._timer is not None:
            self._timer.cancel()

    def _overdue(self) -> None:
        if self._result is None:
            self._channel.fail(SandboxDiedError("the sandbox did not answer in time: it is ended"))

    # --- what callers do

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self._result is None:
            if self._error is not None:
                raise self._error
            if not self._credit:
                await self._changed.wait()
                continue
            piece = view[: min(PIECE, self._credit)]
            self._credit -= len(piece)
            self._channel.send(wire.STDIN, self._number, bytes(piece))
            view = view[len(piece) :]

    async def feed(self, data: bytes | None) -> None:
        """Give it all its input; None: it has more to come, or none."""
        if data is not None:
            await self.write(data)
            await self.close_stdin()

    async def close_stdin(self) -> None:
        self._channel.send(wire.STDIN, self._number)

    async def signal(self, number: int) -> None:
        self._channel.send(wire.SIGNAL, self._number, b"%d" % number)

    async def output(self, *, stdout_from: int = 0, stderr_from: int = 0) -> AsyncIterator[Chunk]:
        at = [stdout_from, stderr_from]
        names: tuple[Literal["stdout", "stderr"], ...] = ("stdout", "stderr")
        while True:
            over, changed = self._result is not None or self._error is not None, self._changed
            for index, name in enumerate(names):
                at[index] = max(at[index], self._dropped[index])
                data = bytes(self._kept[index][at[index] - self._dropped[index] :])
                if data:
                    yield Chunk(name, at[index], data)
                    at[index] += len(data)
            if over:
                break
            await changed.wait()
        if self._result is None and self._error is not None:
            raise self._error

    async def wait(self) -> ExecResult:
        while self._result is None:
            if self._error is not None:
                raise self._error
            await self._changed.wait()
        return self._result

    def end(self) -> None:
        """Have it killed, without waiting for that."""
        self._channel.send(wire.KILL, self._number)

    async def kill(self) -> None:
        self.end()
        while not self._gone:
            await self._changed.wait()
        if self._result is None and self._error is not None:
            raise self._error


def _micro(seconds: float | None) -> int:
    return 0 if seconds is None else max(1, int(seconds * 1e6))
