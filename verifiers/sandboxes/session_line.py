"""The host's end of a keeper (`guest/keeper.py`, which has the form of the frames): requests, and what is answered.

Answers are untrusted, since hostile code runs beside the keeper: what has another form, or no nonce, ends the line.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from verifiers.errors import SandboxError
from verifiers.loops import shielded
from verifiers.sandboxes.guest.agent.wire import pack
from verifiers.sandboxes.results import ExecResult
from verifiers.sandboxes.spec import MIB

if TYPE_CHECKING:
    from verifiers.sandboxes.sandbox import Process

logger = logging.getLogger(__name__)

State = Literal["kept", "restored", "lost"]
REASONS = ("exited", "timeout", "output_limit", "cancelled", "died")

GRACE_S = 5.0
"""What answers so much later than its deadline is stuck as a whole, and killed."""
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


@dataclass(frozen=True, slots=True)
class Answer:
    """What the keeper answered. code: of a worker that died, negative for a signal; own: the worker's parts."""

    reason: str
    code: int
    seconds: float
    streams: dict[str, Any]
    own: list[bytes]
    state: State


class LineEndedError(Exception):
    """The keeper will not answer."""


class Line:
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
        await self.process.write(b"%8d" % len(program) + program + pack([self._nonce]))
        if await self._next() != [b"ready"]:
            raise LineEndedError

    async def ask(self, parts: list[bytes], timeout: float | None, own: int) -> Answer:
        """Send a request and wait for its answer. Cancelled: the request is stopped first."""
        self._number += 1
        number = b"%d" % self._number
        try:
            async with asyncio.timeout(None if timeout is None else timeout + GRACE_S):
                await self._write([b"request", number, *parts])
                return _answer(await self._next(), number, own)
        except (TimeoutError, ValueError) as error:
            self.late = isinstance(error, TimeoutError)
            raise LineEndedError from error
        except asyncio.CancelledError:
            await self._stop(number)
            raise

    async def _stop(self, number: bytes) -> None:
        """Stop a request whose caller has been cancelled; if that does not help, the keeper goes."""
        with contextlib.suppress(asyncio.CancelledError):
            await shielded(self._stopped(number))

    async def _stopped(self, number: bytes) -> None:
        try:
            async with asyncio.timeout(GRACE_S):
                await self._write([b"cancel", number])
                await self._next()
        except (TimeoutError, SandboxError, LineEndedError):
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
        await self.process.write(pack(parts))

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
            self._heard.set_exception(LineEndedError())
            self._heard.exception()  # maybe nobody asks


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


def _answer(frame: list[bytes], number: bytes, own: int) -> Answer:
    """What the keeper's answer says. ValueError: it is none to this request."""
    told, reason, code, seconds, out, out_bytes, err, err_bytes, *rest = frame
    if told != number or len(rest) not in (1, own + 1) or reason.decode() not in REASONS:
        raise ValueError("an answer of another form")
    streams = {"stdout": out, "stderr": err, "stdout_bytes": int(out_bytes), "stderr_bytes": int(err_bytes)}
    state: State = "lost" if rest[-1] == b"lost" else "restored" if rest[-1] == b"restored" else "kept"
    return Answer(reason.decode(), int(code), float(seconds), streams, rest[:-1], state)
