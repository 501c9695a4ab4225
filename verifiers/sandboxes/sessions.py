r"""A shell and a Python interpreter that stay, in any sandbox: `Session` and `Interpreter`.

    session = await sandbox.session()
    await session.run("cd /tmp && export A=1")
    result = await session.run("echo $A in $PWD", timeout=5)

    python = await sandbox.interpreter()
    result = await python.run("x = 6\nx * 7")        # result.value == "42"

Both are a program in the sandbox (`guest/keeper.py`) that holds the shell or the interpreter as its child and speaks
through its own stdin and stdout, which the child never has. One request at a time; a stuck one is killed at its
deadline, and the result says what that cost: `state` is "kept", "restored" (shells: as before the request) or "lost".
Whatever the code does, dying included, is a result. That the sandbox is gone is a `SandboxError`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from verifiers.errors import (
    ConfigError,
    SandboxDiedError,
    SandboxError,
    SandboxNotReadyError,
    SandboxUnsupportedError,
)
from verifiers.sandboxes.results import ExecResult
from verifiers.sandboxes.spec import COMMAND_SECONDS, MIB, OUTPUT_BYTES, OUTPUT_LIMIT, Command, check_limit

if TYPE_CHECKING:
    from verifiers.sandboxes.sandbox import Process, Sandbox

logger = logging.getLogger(__name__)

State = Literal["kept", "restored", "lost"]
REASONS = ("exited", "timeout", "output_limit", "cancelled", "died")

GUEST = Path(__file__).parent / "guest"
READY_S = 15.0
GRACE_S = 5.0
"""What answers so much later than its deadline is stuck as a whole, and killed."""
MAX_COMMAND = 1 << 17
"""Bytes of one command line of a session."""
MAX_CODE = 8 * MIB
MOST_OUTPUT = 2 * MIB
"""Bytes of each stream, of a value and of a traceback that a session or interpreter may keep of one command."""
BEHIND = 4 * MOST_OUTPUT
"""An answer that is on its way is kept as a whole; all answers of a long session together have no bound."""
MAX_ANSWER = BEHIND + MIB
BOOT = """import os
def get(n,s=b''):
    while len(s)<n:s+=os.read(0,n-len(s))or os._exit(1)
    return s
exec(compile(get(int(get(8))),'<keeper>','exec'))"""
"""Reads the program from stdin: as an argument it would be all that `ps` shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionResult(ExecResult):
    """How a command of a session ended. exit_code: what the shell's `$?` was, or the exit code of the shell itself.

    state: what the session still has; "restored": what the shell had before this command, but for its list of jobs.
    """

    state: State = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeResult:
    """How a piece of code ended in an interpreter.

    outcome: "ok"; "error": it raised; "timeout", "output_limit", "cancelled": it was stopped; "died": it ended the
        process, by `exit_code` or `signal`.
    value: `repr` of the value of its last expression, None if there is none. traceback: from the code's first frame on.
    stdout, stderr, value, traceback: at most `max_output` bytes; *_bytes: of how many.
    number: how many pieces of code this interpreter has begun, after a loss of its state from 1 again.
    state: "lost" if its variables are gone.
    """

    outcome: Literal["ok", "error", "timeout", "output_limit", "cancelled", "died"]
    stdout: bytes = b""
    stderr: bytes = b""
    value: str | None = None
    traceback: str | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    value_bytes: int = 0
    traceback_bytes: int = 0
    exit_code: int | None = None
    signal: int | None = None
    seconds: float = 0.0
    number: int = 0
    state: State = "kept"

    @property
    def stdout_text(self) -> str:
        """What was kept of stdout, read as UTF-8; what is no UTF-8 is replaced."""
        return self.stdout.decode(errors="replace")

    @property
    def stderr_text(self) -> str:
        """The same of stderr."""
        return self.stderr.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class _Answer:
    """What the keeper answered. code: of a worker that died, negative for a signal; own: the worker's parts."""

    reason: str
    code: int
    seconds: float
    streams: dict[str, Any]
    own: list[bytes]
    state: State


class _Kept:
    """The host's end of a keeper. Requests of several tasks wait for each other."""

    PROGRAM: ClassVar[str]
    FLAGS: ClassVar[tuple[str, ...]]
    PARTS: ClassVar[int]
    """How many parts of an answer are the worker's own."""

    def __init__(self, sandbox: Sandbox, env: Mapping[str, str], cwd: str | None, python: str) -> None:
        self.sandbox = sandbox
        self._command = Command(
            command=(python, *self.FLAGS, "-c", BOOT),
            env=dict(env),
            cwd=cwd,
            timeout=None,
            max_output=BEHIND,
            keep="last",
            output_limit=None,
        )
        self._line: _Line | None = None
        self._turn = asyncio.Lock()
        self._lost = False
        self._closed = False

    @classmethod
    async def open(
        cls, sandbox: Sandbox, *, env: Mapping[str, str] | None = None, cwd: str | None = None, python: str = "python3"
    ) -> Self:
        """Start it; it has answered. `python`: the interpreter in the sandbox that runs it."""
        kept = cls(sandbox, env or {}, cwd, python)
        kept._line = await kept._connect()
        return kept

    async def close(self) -> None:
        """End it and all that runs in it."""
        self._closed = True
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _connect(self) -> _Line:
        process = await self.sandbox.start(self._command)
        line = _Line(process)
        try:
            async with asyncio.timeout(READY_S):
                await line.hello(_program(self.PROGRAM))
        except BaseException as error:
            await line.close()
            if isinstance(error, TimeoutError):
                raise SandboxNotReadyError(f"the {self.PROGRAM} did not start within {READY_S:g} s") from error
            if isinstance(error, _LineEndedError):
                raise await self._not_started(process) from error
            raise
        return line

    async def _not_started(self, process: Process) -> SandboxError:
        result = await process.wait()
        said = result.stderr_text.strip()[-500:]
        if result.exit_code in (126, 127):
            what = f"the {self.PROGRAM} needs {self._command.argv[0]} in the sandbox: {said}"
            return SandboxUnsupportedError(what, hint="Take an image that has it, or name another interpreter: python=")
        return SandboxNotReadyError(f"the {self.PROGRAM} ended before it was ready: {result.reason}, {said}")

    async def _ask(self, timeout: float | None, max_output: int, output_limit: int | None, own: list[bytes]) -> _Answer:
        """One request. The keeper keeps the time; if that is stuck itself or was killed, everything it had is lost."""
        for name, value in (("timeout", timeout), ("max_output", max_output), ("output_limit", output_limit)):
            check_limit(name, value)
        if max_output > MOST_OUTPUT:
            hint = f"At most {MOST_OUTPUT}: let the command write a file, and read that."
            raise ConfigError(f"max_output is {max_output}", hint=hint)
        seconds = b"" if timeout is None else b"%.3f" % timeout
        allowed = b"" if output_limit is None else b"%d" % output_limit
        async with self._turn:
            line = await self._living()
            began = asyncio.get_running_loop().time()
            try:
                answer = await line.ask([seconds, b"%d" % max_output, allowed, *own], timeout, self.PARTS)
            except _LineEndedError:
                return await self._ended(line, asyncio.get_running_loop().time() - began)
            lost, self._lost = self._lost, False
            return replace(answer, state="lost") if lost else answer

    async def _living(self) -> _Line:
        """The line to a keeper that lives: another one, with nothing in it, if it died since the last request."""
        if self._closed:
            raise SandboxError(f"this {self.PROGRAM} is closed")
        if self._line is not None and self._line.ended:
            line, self._line, self._lost = self._line, None, True
            await line.close()
        if self._line is None:
            self._line = await self._connect()
        return self._line

    async def _ended(self, line: _Line, seconds: float) -> _Answer:
        """The keeper itself has ended: by the code, by a limit, by us; or with the sandbox."""
        self._line = None
        result = await line.close()
        if not await self.sandbox.alive():
            raise SandboxDiedError("the sandbox died while it was used")
        code = -result.signal if result.signal else result.exit_code or 0
        return _Answer("timeout" if line.late else "died", code, seconds, {}, [], "lost")


class Session(_Kept):
    """A persistent shell: bash where there is one, without start-up files and without a terminal.

    Directory, variables, functions, options and background jobs stay from command to command. stdin is empty.
    """

    PROGRAM = "shell"
    FLAGS = ("-I", "-S")
    PARTS = 1

    async def run(
        self,
        line: str,
        *,
        timeout: float | None = COMMAND_SECONDS,
        max_output: int = OUTPUT_BYTES,
        output_limit: int | None = OUTPUT_LIMIT,
    ) -> SessionResult:
        """Evaluate a line, or several. The limits are those of `Command`; cancelling the caller stops the command."""
        data = line.encode(errors="surrogateescape")
        if b"\0" in data or len(data) > MAX_COMMAND:
            raise ConfigError(
                f"a command line of {len(data)} bytes, or with a NUL character",
                hint=f"At most {MAX_COMMAND} bytes: write more into a file of the sandbox.",
            )
        answer = await self._ask(timeout, max_output, output_limit, [data])
        code = int(answer.own[0]) if answer.own else answer.code
        died = answer.reason == "died"
        reason = answer.reason if not died else "signalled" if code < 0 else "exited"
        return SessionResult(
            exit_code=code if code >= 0 and reason == "exited" else None,
            signal=-code if code < 0 else None,
            reason=reason,  # type: ignore[arg-type]  # one of the keeper's words
            seconds=answer.seconds,
            state=answer.state,
            **answer.streams,
        )


class Interpreter(_Kept):
    """A persistent Python: one namespace for all pieces of code, as in a notebook."""

    PROGRAM = "interpreter"
    FLAGS = ("-I",)
    PARTS = 6

    async def run(
        self,
        code: str,
        *,
        timeout: float | None = COMMAND_SECONDS,
        max_output: int = OUTPUT_BYTES,
        output_limit: int | None = OUTPUT_LIMIT,
    ) -> CodeResult:
        """Run a piece of code. The limits are those of `Command`; cancelling the caller stops the code."""
        data = code.encode(errors="replace")
        if len(data) > MAX_CODE:
            raise ConfigError(f"{len(data)} bytes of code", hint=f"At most {MAX_CODE}: write more into a module.")
        answer = await self._ask(timeout, max_output, output_limit, [data, b"%d" % max_output])
        kind, value, value_bytes, trace, trace_bytes, number = answer.own or [b"", b"", b"0", b"", b"0", b"0"]
        stopped = answer.reason if answer.reason != "exited" else "error" if kind == b"error" else "ok"
        return CodeResult(
            outcome=stopped,  # type: ignore[arg-type]  # one of the keeper's words
            value=value.decode(errors="replace") if kind == b"value" else None,
            traceback=trace.decode(errors="replace") if kind == b"error" else None,
            value_bytes=int(value_bytes),
            traceback_bytes=int(trace_bytes),
            exit_code=answer.code if stopped == "died" and answer.code >= 0 else None,
            signal=-answer.code if stopped == "died" and answer.code < 0 else None,
            seconds=answer.seconds,
            number=int(number),
            state=answer.state,
            **answer.streams,
        )


# --- the line to a keeper -------------------------------------------------------------------------------------------


class _LineEndedError(Exception):
    """The keeper will not answer."""


class _Line:
    """Frames to and from the keeper in a process; see `guest/keeper.py` for their form. Answers are untrusted."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.late = False
        self.ended = False
        self._nonce = os.urandom(16)
        self._number = 0
        self._heard: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self._reader = asyncio.create_task(self._read())

    async def hello(self, program: bytes) -> None:
        """Send the program and wait until it is ready."""
        await self.process.write(b"%8d" % len(program) + program + _pack([self._nonce]))
        if await self._next() != [b"ready"]:
            raise _LineEndedError

    async def ask(self, parts: list[bytes], timeout: float | None, own: int) -> _Answer:
        """Send a request and wait for its answer. Cancelled: the request is stopped first."""
        self._number += 1
        number = b"%d" % self._number
        try:
            async with asyncio.timeout(None if timeout is None else timeout + GRACE_S):
                await self._write([b"request", number, *parts])
                return _answer(await self._next(), number, own)
        except (TimeoutError, ValueError) as error:
            self.late = isinstance(error, TimeoutError)
            raise _LineEndedError from error
        except asyncio.CancelledError:
            await self._stop(number)
            raise

    async def _stop(self, number: bytes) -> None:
        """Stop a request whose caller has been cancelled; if that does not help, the keeper goes."""
        stop = asyncio.create_task(self._stopped(number))
        while not stop.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({stop})

    async def _stopped(self, number: bytes) -> None:
        try:
            async with asyncio.timeout(GRACE_S):
                await self._write([b"cancel", number])
                await self._next()
        except (TimeoutError, SandboxError, _LineEndedError):
            self.ended = True
            with contextlib.suppress(SandboxError):
                await self.process.kill()

    async def close(self) -> ExecResult:
        """Kill the process, however it is."""
        try:
            await self.process.kill()
            return await self.process.wait()
        finally:
            self._reader.cancel()
            await asyncio.wait({self._reader})

    async def _write(self, parts: list[bytes]) -> None:
        await self.process.write(_pack(parts))

    async def _next(self) -> list[bytes]:
        """The next frame. One task at a time waits for one."""
        frame = await asyncio.shield(self._heard)
        self._heard = asyncio.get_running_loop().create_future()
        return frame

    async def _read(self) -> None:
        buffer = bytearray()
        at = 0
        try:
            async for chunk in self.process.output():
                if chunk.stream != "stdout":
                    continue
                if chunk.offset != at:
                    raise SandboxError(f"{chunk.offset - at} bytes of output were lost on the way")
                at += len(chunk.data)
                buffer += chunk.data
                while (frame := _unpack(buffer)) is not None:
                    if frame[:1] != [self._nonce] or self._heard.done():
                        raise ValueError("a frame that nobody has asked for")
                    self._heard.set_result(frame[1:])
        except (SandboxError, ValueError) as error:
            logger.info("the program of a session speaks no more: %s", error)
        self.ended = True
        if not self._heard.done():
            self._heard.set_exception(_LineEndedError())
            self._heard.exception()  # maybe nobody asks


def _pack(parts: list[bytes]) -> bytes:
    return struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts)) + b"".join(parts)


def _unpack(buffer: bytearray) -> list[bytes] | None:
    """Take a frame off the buffer, if it is there as a whole. ValueError: it is none."""
    if len(buffer) < 4:
        return None
    (count,) = struct.unpack_from("<I", buffer)
    if count > 64:
        raise ValueError(f"a frame of {count} parts")
    at = 4 + 4 * count
    if len(buffer) < at:
        return None
    sizes = struct.unpack_from(f"<{count}I", buffer, 4)
    if sum(sizes) > MAX_ANSWER:
        raise ValueError(f"a frame of {sum(sizes)} bytes")
    if len(buffer) < at + sum(sizes):
        return None
    parts = []
    for size in sizes:
        parts.append(bytes(buffer[at : at + size]))
        at += size
    del buffer[:at]
    return parts


def _answer(frame: list[bytes], number: bytes, own: int) -> _Answer:
    """What the keeper's answer says. ValueError: it is none to this request."""
    told, reason, code, seconds, out, out_bytes, err, err_bytes, *rest = frame
    if told != number or len(rest) not in (1, own + 1) or reason.decode() not in REASONS:
        raise ValueError("an answer of another form")
    streams = {"stdout": out, "stderr": err, "stdout_bytes": int(out_bytes), "stderr_bytes": int(err_bytes)}
    state: State = "lost" if rest[-1] == b"lost" else "restored" if rest[-1] == b"restored" else "kept"
    return _Answer(reason.decode(), int(code), float(seconds), streams, rest[:-1], state)


@cache
def _program(name: str) -> bytes:
    """The source of a guest's program: the keeper, then the one that is named."""
    first, second = ((GUEST / f"{part}.py").read_text() for part in ("keeper", name))
    lines = [line for line in second.splitlines() if not line.startswith(("from __future__", "from verifiers."))]
    return "\n".join([first, *lines, ""]).encode()
