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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from verifiers.errors import (
    ConfigError,
    SandboxDiedError,
    SandboxError,
    SandboxNotReadyError,
    SandboxUnsupportedError,
)
from verifiers.sandboxes.guest.program import keeper_source
from verifiers.sandboxes.results import ExecResult
from verifiers.sandboxes.session_line import (
    BEHIND,
    BOOT,
    MOST_OUTPUT,
    Answer,
    Line,
    LineEndedError,
    State,
)
from verifiers.sandboxes.spec import (
    COMMAND_SECONDS,
    MIB,
    OUTPUT_BYTES,
    OUTPUT_LIMIT,
    Command,
    check_limit,
    check_words,
)

if TYPE_CHECKING:
    from verifiers.sandboxes.sandbox import Process, Sandbox

READY_S = 15.0
MAX_COMMAND = 1 << 17
"""Bytes of one command line of a session."""
MAX_CODE = 8 * MIB


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
        self._line: Line | None = None
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

    async def _connect(self) -> Line:
        process = await self.sandbox.start(self._command)
        line = Line(process)
        try:
            async with asyncio.timeout(READY_S):
                await line.hello(keeper_source(self.PROGRAM))
        except BaseException as error:
            await line.close()
            if isinstance(error, TimeoutError):
                raise SandboxNotReadyError(f"the {self.PROGRAM} did not start within {READY_S:g} s") from error
            if isinstance(error, LineEndedError):
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

    async def _ask(self, timeout: float | None, max_output: int, output_limit: int | None, own: list[bytes]) -> Answer:
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
            except LineEndedError:
                return await self._ended(line, asyncio.get_running_loop().time() - began)
            lost, self._lost = self._lost, False
            return replace(answer, state="lost") if lost else answer

    async def _living(self) -> Line:
        """The line to a keeper that lives: another one, with nothing in it, if it died since the last request."""
        if self._closed:
            raise SandboxError(f"this {self.PROGRAM} is closed")
        if self._line is not None and self._line.ended:
            line, self._line, self._lost = self._line, None, True
            await line.close()
        if self._line is None:
            self._line = await self._connect()
        return self._line

    async def _ended(self, line: Line, seconds: float) -> Answer:
        """The keeper itself has ended: by the code, by a limit, by us; or with the sandbox."""
        self._line = None
        result = await line.close()
        if not await self.sandbox.alive():
            raise SandboxDiedError("the sandbox died while it was used")
        code = -result.signal if result.signal else result.exit_code or 0
        return Answer("timeout" if line.late else "died", code, seconds, {}, [], "lost")


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
        check_words("a command line", (line,))
        data = line.encode(errors="surrogateescape")
        if len(data) > MAX_COMMAND:
            raise ConfigError(
                f"a command line of {len(data)} bytes",
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
