"""The connection to an agent in a sandbox of Prime: a live process's input and output, as a transport for a `Channel`.

Output is the stream of one call, input is a call for each piece. A piece whose call broke may have arrived or not, so
pieces have numbers: it is sent again, and the few lines in the sandbox that come before the agent (`BOOT`) drop what
they have seen. The end of the stream is the end of the sandbox: what was on its way is lost.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp

from verifiers.errors import SandboxCreationError, SandboxDiedError, SandboxError, SandboxNotReadyError
from verifiers.sandboxes.host.channel import Channel
from verifiers.sandboxes.prime import connect
from verifiers.sandboxes.prime.api import FAILURES, GATEWAY_MARGIN_S, Api
from verifiers.sandboxes.prime.connect import Envelopes, RpcError

PIECE = 1 << 18
HIGH, LOW = 1 << 20, 1 << 18
"""Bytes that wait to be sent, over and under which whoever sends is told to wait, and to go on."""
WORDS = 4096
"""Bytes of stderr that are kept: why an agent did not start."""
PASSING = ("unavailable", "resource_exhausted", "aborted", "deadline_exceeded", "internal", "unknown")
"""Codes of calls that are made again."""
TOKEN_CODES = ("unauthenticated",)
BOOT = (
    "import sys,posix,_signal\n"
    "if sys.version_info < (3, 9): sys.exit('its python3 is '+sys.version.split()[0])\n"
    "seen=0\n"
    "def take(n):\n"
    " got=b''\n"
    " while len(got)<n:\n"
    "  more=posix.read(0,n-len(got))\n"
    "  if not more: posix._exit(0)\n"
    "  got+=more\n"
    " return got\n"
    "def piece():\n"
    " global seen\n"
    " while 1:\n"
    "  n,size=(int.from_bytes(take(4),'big') for _ in 'ab')\n"
    "  data=take(size)\n"
    "  if n>seen+1: posix._exit(4)\n"
    "  if n==seen+1:\n"
    "   seen=n\n"
    "   return data\n"
    "source=b''\n"
    "while len(source)<int(sys.argv[3]): source+=piece()\n"
    "r,w=posix.pipe()\n"
    "_signal.signal(_signal.SIGCHLD,lambda *_: posix._exit(0))\n"
    "if posix.fork():\n"
    " posix.close(r)\n"
    " while 1:\n"
    "  data=piece()\n"
    "  while data: data=data[posix.write(w,data):]\n"
    "_signal.signal(_signal.SIGCHLD,_signal.SIG_DFL)\n"
    "posix.close(w);posix.dup2(r,0);posix.close(r)\n"
    "exec(compile(source,'agent','exec'),{'__name__':'__main__'})\n"
)
"""Reads the agent from the first pieces and forks into it and its postman; arguments: the agent's, then its length."""


class Gateway:
    """The way to one sandbox: address and token, which is renewed before it is over."""

    def __init__(self, api: Api, sandbox_id: str) -> None:
        self.api = api
        self.sandbox_id = sandbox_id
        self._found: Mapping[str, Any] = {}
        self._lock = asyncio.Lock()

    async def target(self, method: str) -> tuple[str, dict[str, str]]:
        """Address and headers of a call."""
        async with self._lock:
            if not self._found or _over(self._found["expires_at"]):
                _, self._found = await self.api.ask("POST", f"/sandbox/{self.sandbox_id}/auth")
        found = self._found
        url = f"{found['gateway_url'].rstrip('/')}/{found['user_ns']}/{found['job_id']}/{connect.SERVICE}/{method}"
        return url, {"Authorization": f"Bearer {found['token']}", "Connect-Protocol-Version": "1"}

    def forget(self) -> None:
        """The token was refused."""
        self._found = {}

    async def call(self, method: str, message: bytes) -> None:
        """A unary call whose answer says nothing. Raises RpcError, or one of FAILURES."""
        url, headers = await self.target(method)
        headers["Content-Type"] = "application/proto"
        timeout = aiohttp.ClientTimeout(total=self.api.patience.answer)
        async with self.api.session.post(url, data=message, headers=headers, timeout=timeout) as answer:
            body = await answer.read()
        if answer.status != 200:
            raise connect.rpc_error(body, answer.status)

    async def context(self) -> tuple[str, str]:
        """What the service says of the sandbox: status, and why it has ended."""
        status, found = await self.api.ask("GET", f"/sandbox/{self.sandbox_id}/error-context", also=(404,))
        if status == 404:
            return "TERMINATED", "there is no such sandbox any more"
        kind, words = (found.get(name) or "" for name in ("errorType", "errorMessage"))
        return str(found.get("status")), f"{kind} {words}".strip()


def _over(expires_at: str) -> bool:
    moment = datetime.fromisoformat(expires_at)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return datetime.now(UTC) >= moment - timedelta(seconds=GATEWAY_MARGIN_S)


class Session(asyncio.Transport):
    """A program that runs in a sandbox, and its streams.

    name: asked for the error to tell when the connection has broken.
    """

    def __init__(self, gateway: Gateway, channel: Channel, name: Callable[[str], Awaitable[SandboxError]]) -> None:
        super().__init__()
        self._gateway, self._channel, self._name = gateway, channel, name
        self._loop = asyncio.get_running_loop()
        self._pid: asyncio.Future[int] = self._loop.create_future()
        self._waiting = bytearray()
        self._more = asyncio.Event()
        self._paused = self._closed = False
        self._words = bytearray()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def words(self) -> str:
        """What the program said on stderr."""
        return self._words.decode(errors="replace").strip()

    async def open(self, program: str, arguments: list[str], *, seconds: float) -> None:
        """Start it. The call is made again only if its answer says that nothing was started."""
        message = connect.envelope(connect.start_request(program, arguments, {}))
        patience = self._gateway.api.patience
        end = self._loop.time() + seconds
        pause = patience.pause
        while True:
            answer = await self._begin(message)
            if answer.status == 200:
                break
            error = connect.rpc_error(await answer.read(), answer.status)
            answer.release()
            if error.code in TOKEN_CODES:
                self._gateway.forget()
            elif error.code not in PASSING and error.code != "not_found":  # of a gateway that has not heard of it yet
                raise SandboxCreationError(f"Prime's gateway refuses a live process: {error}")
            if self._loop.time() > end:
                raise SandboxNotReadyError(f"Prime's gateway did not reach the sandbox within {seconds:g} s: {error}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, patience.longest_poll)
        self._channel.connection_made(self)
        self._tasks.append(asyncio.ensure_future(self._read(answer)))
        self._tasks.append(asyncio.ensure_future(self._send()))

    async def _begin(self, message: bytes) -> aiohttp.ClientResponse:
        patience = self._gateway.api.patience
        for attempt in range(1, patience.attempts + 1):
            url, headers = await self._gateway.target("Start")
            headers["Content-Type"] = "application/connect+proto"
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=patience.answer)
            try:
                return await self._gateway.api.session.post(url, data=message, headers=headers, timeout=timeout)
            except aiohttp.ClientConnectorError as error:  # it was never sent
                if attempt == patience.attempts:
                    raise await self._name(str(error)) from error
                await asyncio.sleep(patience.pause * 2 ** (attempt - 1))
            except FAILURES as error:
                raise SandboxCreationError(f"the connection broke while the agent was started: {error}") from error
        raise AssertionError

    # --- its output

    async def _read(self, answer: aiohttp.ClientResponse) -> None:
        envelopes, error = Envelopes(), ""
        try:
            async for data in answer.content.iter_any():
                messages = envelopes.feed(data)
                while messages:
                    if self._take(*[connect.event(one) for one in messages]):
                        return
                    messages = envelopes.feed(b"")
            error = "its stream ended without an end"
        except EOFError:
            error = "its stream ended without an exit"
        except (*FAILURES, RpcError, ValueError) as problem:
            error = str(problem) or type(problem).__name__
        finally:
            answer.close()
            if not error:
                self._lost(SandboxDiedError("the sandbox's agent has ended"))
        if not self._closed:
            self._lost(await self._named(error))

    def _take(self, *events: tuple[str, Any]) -> bool:
        """Pass them on; whether the program has ended."""
        for kind, value in events:
            if kind == "start" and not self._pid.done():
                self._pid.set_result(value)
            elif kind == "stdout":
                self._channel.data_received(value)
            elif kind == "stderr":
                self._words += value[: WORDS - len(self._words)]
            elif kind == "end":
                return True
        return False

    # --- its input

    def write(self, data: Any) -> None:
        self._waiting += data
        self._more.set()
        if len(self._waiting) > HIGH and not self._paused:
            self._paused = True
            self._channel.pause_writing()

    async def _send(self) -> None:
        number = 0
        try:
            pid = await self._pid
            while True:
                while self._waiting:
                    piece = bytes(self._waiting[:PIECE])
                    del self._waiting[:PIECE]
                    number += 1
                    await self._deliver(connect.input_request(pid, struct.pack(">II", number, len(piece)) + piece))
                    if self._paused and len(self._waiting) < LOW:
                        self._paused = False
                        self._channel.resume_writing()
                self._more.clear()
                await self._more.wait()
        except (RpcError, SandboxError, *FAILURES) as error:
            self._lost(await self._named(str(error) or type(error).__name__))

    async def _deliver(self, message: bytes) -> None:
        """Until it has arrived, once or more often."""
        patience = self._gateway.api.patience
        for attempt in range(1, patience.attempts + 1):
            try:
                await self._gateway.call("SendInput", message)
            except RpcError as error:
                if error.code in TOKEN_CODES:
                    self._gateway.forget()
                elif error.code not in PASSING:
                    raise
                if attempt == patience.attempts:
                    raise
            except FAILURES:
                if attempt == patience.attempts:
                    raise
            else:
                return
            await asyncio.sleep(patience.pause * 2 ** (attempt - 1))

    # --- its end

    async def _named(self, what: str) -> SandboxError:
        try:
            return await self._name(what)
        except SandboxError as error:
            return error

    def _lost(self, error: SandboxError) -> None:
        if not self._closed:
            self._channel.fail(error)  # which aborts

    def is_closing(self) -> bool:
        return self._closed

    def abort(self) -> None:
        if self._closed:
            return
        self._closed = True
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._pid.cancel()
        self._loop.call_soon(self._channel.connection_lost, None)

    close = abort
