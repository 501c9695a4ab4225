"""A node in this process, and daemons that are processes of their own."""

import asyncio
import json
import os
import signal
import sys
from contextlib import asynccontextmanager

import pytest

from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.node.link import Patience
from verifiers.sandboxes.node.server import NodeServer

TOKEN = "the token"
STEADY = Patience(connect=60.0, silence=60.0, probe=60.0, pause=0.01)
"""For a machine that has much else to do: no answer is late."""
HASTY = Patience(connect=2.0, beat=0.1, silence=2.0, probe=1.0, attempts=4, pause=0.01)
"""For a node that will not answer."""


@asynccontextmanager
async def serving(host="127.0.0.1", port=0, **options):
    """A node over a local provider of its own, on the loopback interface."""
    async with LocalProvider() as local:
        server = NodeServer(local, token=TOKEN, **options)
        await server.start_tcp(host, port)
        try:
            yield server
        finally:
            await server.stop()


class Daemon:
    """A `sandboxd` of its own process."""

    def __init__(self, *arguments, port=0):
        self.arguments = [sys.executable, "-m", "verifiers.cli.sandboxd", "--json", "--port", str(port), *arguments]

    async def __aenter__(self):
        environ = {**os.environ, "VF_SANDBOXD_TOKEN": TOKEN}
        self.process = await asyncio.create_subprocess_exec(
            *self.arguments, env=environ, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        line = await self.process.stdout.readline()
        if not line:
            pytest.fail((await self.process.stderr.read()).decode())
        self.url = json.loads(line)["url"]
        return self

    async def end(self, number=signal.SIGTERM):
        """Send a signal and wait; the exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        await self.process.communicate()
        return self.process.returncode

    async def __aexit__(self, *_):
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGCONT)
        await self.end(signal.SIGKILL)


def alive_with(word):
    """Processes of this machine that have this word among their arguments."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if word.encode() in file.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:
            continue
    return found
