"""What grading a program needs of an isolated place, and conversations with programs that run in one.

Grading knows no sandboxes: it is given a `Run`, which enters as many fresh, empty places as it is asked for, all at
once. `rubrics.code_rubric.in_sandboxes` makes one of a provider of sandboxes.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self

WALL_FACTOR = 3
"""Seconds on the clock for each second of CPU time: a program may wait, and the machine may be busy."""
WALL_EXTRA = 2.0
"""Seconds on the clock besides: for starting."""

CONVERSATION = 16
"""Largest answers that one process may give in all."""


class Ended(Protocol):
    """How a program ended; `sandboxes.ExecResult` is one."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def truncated(self) -> bool: ...
    @property
    def timed_out(self) -> bool: ...
    @property
    def oom_killed(self) -> bool: ...
    @property
    def reason(self) -> str: ...


class Program(Protocol):
    """A running program; `sandboxes.Process` is one."""

    async def write(self, data: bytes) -> None: ...
    def output(self) -> AsyncIterator[Any]: ...
    async def wait(self) -> Ended: ...
    async def kill(self) -> None: ...


class Place(Protocol):
    """An isolated place that nothing else has been in. Its own failures are `SandboxError`s."""

    async def write(self, path: str, data: bytes) -> None:
        """Make a file."""

    async def exec(self, line: Sequence[str], **options: Any) -> Ended:
        """Run a program to its end. options: fields of `sandboxes.Command`."""

    async def start(self, line: Sequence[str], **options: Any) -> Program:
        """Start one whose input stays open."""


Run = Callable[[int], AbstractAsyncContextManager[Sequence[Place]]]
"""Enters so many places. All or none: who holds one and waits for another would wait for ever, if all did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeLimits:
    """What a submission may use.

    seconds: CPU time of one test; on the clock it is `WALL_FACTOR` times as long, and a little more. memory: MiB of one
    process. total_seconds: of all tests together, on the clock; timeouts: tests that may run out of time: what has not
    run by then has failed. output: bytes that one test may print or return. source: characters of the submission.
    """

    seconds: float = 6.0
    memory: int = 512
    total_seconds: float = 90.0
    timeouts: int = 3
    output: int = 1 << 20
    source: int = 100_000


class StoppedError(Exception):
    """A program gave no answer. `reason` is that of an `Outcome`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


def limited(line: Sequence[str], limits: CodeLimits, seconds: float | None) -> list[str]:
    """The command line that runs another one with limits that it can not lift: CPU seconds, and memory.

    Memory is that of data (RLIMIT_DATA): address space alone costs nothing, and libraries reserve a lot of it.
    """
    rules = [f"ulimit -d {limits.memory * 1024}", "ulimit -c 0"]
    if seconds is not None:
        whole = max(1, -(-int(seconds * 1000) // 1000))
        rules += [f"ulimit -S -t {whole}", f"ulimit -H -t {whole + 1}"]
    return ["/bin/sh", "-c", f'{"; ".join(rules)}; exec "$@"', "sh", *line]


def wall(seconds: float) -> float:
    """Seconds on the clock for so many of CPU time."""
    return seconds * WALL_FACTOR + WALL_EXTRA


def why_ended(ended: Ended) -> StoppedError | None:
    """What stopped a program; None if it ended by itself with 0."""
    if ended.timed_out or ended.signal == signal.SIGXCPU:
        return StoppedError("timeout")
    last = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2][:500]
    if ended.oom_killed or last.startswith("MemoryError"):
        return StoppedError("memory")
    if ended.reason == "output_limit" or ended.truncated:
        return StoppedError("output_limit")
    if ended.signal is not None:
        # SIGKILL is what the hard limit of CPU time gives to a program that goes on after SIGXCPU.
        return StoppedError("crashed", f"signal {ended.signal}")
    return StoppedError("error", last or f"exit code {ended.exit_code}") if ended.exit_code else None


class Conversation:
    """Messages to a program and from it, a line of JSON each. What it says is not trusted: lines are bounded, and an
    answer carries the token of the question, or it is none."""

    def __init__(self, program: Program, limits: CodeLimits) -> None:
        self._program = program
        self._limits = limits
        self._chunks = aiter(program.output())
        self._unread = b""
        self._length = 0

    @classmethod
    async def begin(cls, place: Place, line: Sequence[str], limits: CodeLimits) -> Self:
        """Start a program to speak to. It is killed once it has said too much in all."""
        total = CONVERSATION * limits.output
        options = {"timeout": None, "max_output": total, "output_limit": total, "kill_leftovers": True}
        return cls(await place.start(line, **options), limits)

    async def ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a question. Raises StoppedError if there is none; the program is gone then."""
        token = secrets.token_hex(8)
        await self.tell({**question, "token": token}, seconds)
        answer = await self.hear(seconds)
        if self._unread or answer.get("token") != token:
            await self.end()
            raise StoppedError("no_verdict", "an answer that was not asked for")
        return answer

    async def tell(self, message: dict[str, Any], seconds: float) -> None:
        """Send a message. Raises StoppedError if it is not taken in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._program.write(json.dumps(message).encode() + b"\n")
        except TimeoutError:
            await self.end()
            raise StoppedError("timeout") from None

    async def hear(self, seconds: float) -> dict[str, Any]:
        """The next message. Raises StoppedError for none in time, none at all, or nonsense."""
        try:
            async with asyncio.timeout(seconds):
                self._length = 0
                line = await self._line()
        except TimeoutError:
            await self.end()
            raise StoppedError("timeout") from None
        except StoppedError:
            await self.end()
            raise
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            await self.end()
            raise StoppedError("no_verdict", "an answer that is none")
        return message

    async def _line(self) -> bytes:
        parts: list[bytes] = []
        while True:
            # Only what is new is searched, or a byte at a time would cost us more than the sender.
            line, newline, self._unread = self._unread.partition(b"\n")
            parts.append(line)
            if newline:
                return b"".join(parts)
            self._length += len(line)
            if self._length > self._limits.output:
                raise StoppedError("output_limit")
            try:
                chunk = await anext(self._chunks)
            except StopAsyncIteration:
                raise why_ended(await self._program.wait()) or StoppedError("no_verdict", "it ended early") from None
            self._unread = chunk.data if chunk.stream == "stdout" else b""

    async def wait(self, seconds: float) -> Ended:
        """How the program ended. Raises StoppedError if it does not end by itself."""
        try:
            async with asyncio.timeout(seconds):
                return await self._program.wait()
        except TimeoutError:
            await self.end()
            raise StoppedError("timeout") from None

    async def end(self) -> None:
        """End the program and all that it started."""
        await self._program.kill()
        await self.leave()

    async def leave(self) -> None:
        """Listen no more: a connection may belong to that. The program is ended by whoever ends its place."""
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()
