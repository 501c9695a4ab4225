"""A link to a worker process on this machine, over a socket pair that only the two processes have.

The process is the first of a session and process group of its own: Ctrl-C at the terminal reaches the parent alone,
and ending the group ends whatever the environment's code started, too. What the process writes to stdout and stderr
goes to the log, and its last lines into the error when it dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import IO, cast

from verifiers.envs.provenance import package_version
from verifiers.errors import ProtocolError, WorkerDiedError
from verifiers.rollouts.workers.link import FrameReader, check_hello, check_ready, to_frame
from verifiers.rollouts.workers.messages import FromWorker, Load, Log, Message, Ready, Stop, ToWorker
from verifiers.threads import run_beside

logger = logging.getLogger(__name__)

LOAD_SECONDS = 1800.0
"""Deadline of loading: an environment may fetch its data set."""

HELD_SECONDS = 300.0
"""How long code may hold the interpreter (a regular expression that never ends, say) before the worker ends itself."""

_MAIN = "verifiers.rollouts.workers.main"
LAST_LINES = 60
"""What a dead worker said last: enough for the tracebacks of all its threads."""
_LONGEST_LINE = 2000


class ProcessLink:
    """One worker process. `python` runs it; `isolated` keeps this process's path and PYTHON* variables out of it."""

    def __init__(
        self,
        load: Load,
        python: str = sys.executable,
        *,
        number: int = 1,
        isolated: bool = False,
        environ: Mapping[str, str] | None = None,
        load_seconds: float = LOAD_SECONDS,
        held_seconds: float = HELD_SECONDS,
    ) -> None:
        self.load = load
        self.python = python
        self.number = number
        self.isolated = isolated
        self.environ = dict(os.environ if environ is None else environ)
        self.load_seconds = load_seconds
        self.held_seconds = held_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._exit: asyncio.Task[None] | None = None
        self._channel = _Channel()
        self._output = _Output(number)
        self._killed = False

    @property
    def name(self) -> str:
        """`worker 1 (process 4711)`."""
        process = f" (process {self._process.pid})" if self._process is not None else ""
        return f"worker {self.number}{process}"

    @property
    def pid(self) -> int | None:
        """The process's id once it is started."""
        return self._process.pid if self._process is not None else None

    # --- start ------------------------------------------------------------------------------------------------

    async def start(self) -> Ready:
        """Start the process, greet it, let it load. See `link.Link.start`."""
        try:
            await self._spawn()
            async with asyncio.timeout(self.load_seconds):
                check_hello(await self._next(), package_version())
                await self.send(self.load)
                return check_ready(await self._next())
        except TimeoutError as error:
            await self.kill()
            raise WorkerDiedError(
                f"{self.name} did not load {self.load.env_id} within {self.load_seconds:.0f} s", said=self.said
            ) from error
        except BaseException:
            await self.kill()
            raise

    async def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = self._popen(theirs.fileno())
            except OSError as error:
                ours.close()
                raise WorkerDiedError(f"can not run {self.python}: {error.strerror}", cause=error) from error
        loop = asyncio.get_running_loop()
        self._exit = loop.create_task(self._watch(self._process))
        await loop.create_unix_connection(lambda: self._channel, sock=ours)
        await loop.connect_read_pipe(lambda: self._output, cast(IO[bytes], self._process.stdout))

    def _popen(self, descriptor: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self.python, *self._program(), str(descriptor), str(self.held_seconds)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(descriptor,),
            start_new_session=True,
            env=self.environ,
        )

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Neither the socket nor the pipe tells the end: processes that the worker started may hold them open."""
        await run_beside(process.wait, _in_a_thread)
        self._channel.finish()

    def _program(self) -> list[str]:
        """What the interpreter runs. Without -P and -I the working directory would shadow installed modules."""
        if self.isolated:
            return ["-I", "-m", _MAIN]
        # This very package, however this process came to it.
        place = Path(__file__).parents[3]
        return ["-P", "-c", f"import sys; sys.path.insert(0, {str(place)!r}); from {_MAIN} import main; main()"]

    async def _next(self) -> Message:
        while True:
            message = await self._channel.receive()
            if message is None:
                raise await self._death()
            if not is_told(message):
                return message

    # --- messages ---------------------------------------------------------------------------------------------

    async def send(self, message: ToWorker) -> None:
        """Hand a message over. See `link.Link.send`."""
        self._channel.send(message)

    async def messages(self) -> AsyncIterator[FromWorker]:
        """What the worker sends. See `link.Link.messages`."""
        while True:
            yield cast(FromWorker, await self._next())

    @property
    def said(self) -> str:
        """The last lines that the process wrote."""
        return "\n".join(self._output.lines)

    # --- end --------------------------------------------------------------------------------------------------

    async def _death(self) -> WorkerDiedError | ProtocolError:
        if self._channel.broken is not None:
            await self.kill()
            return self._channel.broken
        assert self._process is not None
        if not await self._exits_within(5):  # it closed its socket and lives on
            await self.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._output.ended.wait()  # its last words
        code = self._process.returncode
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return WorkerDiedError(f"{self.name} {how}", said=self.said)

    async def _exits_within(self, seconds: float) -> bool:
        assert self._exit is not None
        done, _ = await asyncio.wait([self._exit], timeout=seconds)
        return bool(done)

    async def stop(self, seconds: float) -> None:
        """Ask for the end, wait, then kill. See `link.Link.stop`."""
        await self.send(Stop())
        if self._exit is not None:
            await self._exits_within(seconds)
        await self.kill()

    async def kill(self) -> None:
        """End the process and its group. See `link.Link.kill`."""
        if self._process is None or self._exit is None:
            return
        if not self._killed:
            self._killed = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await asyncio.shield(self._exit)
        self._channel.close()
        self._output.close()


def _in_a_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="waits-for-worker", daemon=True).start()


def is_told(message: Message) -> bool:
    """Log what a worker wants to have told, and whether that was it."""
    if isinstance(message, Log):
        logging.getLogger(message.logger).log(message.level, "%s", message.text)
        return True
    return False


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


class _Output(asyncio.Protocol):
    """What the process writes to stdout and stderr: logged, and the last lines kept."""

    def __init__(self, number: int) -> None:
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self.ended = asyncio.Event()
        self._number = number
        self._rest = b""
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._tell(line)

    def connection_lost(self, exc: Exception | None) -> None:
        self._tell(self._rest)
        self.ended.set()

    def _tell(self, line: bytes) -> None:
        text = line.decode("utf-8", "backslashreplace").rstrip()[:_LONGEST_LINE]
        if text:
            self.lines.append(text)
            logger.info("worker %d: %s", self._number, text)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Channel(asyncio.Protocol):
    """Messages over a socket; `receive` gives None at its end. `broken` is why it ended, if not by itself."""

    def __init__(self) -> None:
        self.broken: ProtocolError | None = None
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._arrived: deque[Message] = deque()
        self._ended = False
        self._waiting: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._arrived += self._reader.feed(data)
        except ProtocolError as error:
            self.broken = error
            self._end()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def send(self, message: Message) -> None:
        if self._transport is not None and not self._ended and not self._transport.is_closing():
            self._transport.write(to_frame(message))

    async def receive(self) -> Message | None:
        while not self._arrived and not self._ended:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._arrived.popleft() if self._arrived else None

    def finish(self) -> None:
        """The other end's process is gone: take what it sent before, then end."""
        # A transport that is closing may have none: None with uvloop, which Ray uses, a closed one with asyncio.
        ours = self._transport.get_extra_info("socket") if self._transport is not None else None
        if not self._ended and ours is not None and ours.fileno() >= 0:
            with socket.socket(fileno=os.dup(ours.fileno())) as rest, contextlib.suppress(OSError):
                while data := rest.recv(1 << 18, socket.MSG_DONTWAIT):
                    self.data_received(data)
        self._end()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
