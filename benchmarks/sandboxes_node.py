"""What a node between costs: commands through a `sandboxd` on the loopback interface, beside the same without one.

Daemon and client are two processes on the same cores, so what the daemon computes is in the figure.
"""

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.case import Case, median_case, times_less
from benchmarks.options import Options
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.node.client import NodeProvider
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import SandboxSpec

SPEC = SandboxSpec(memory=256, disk=64)
AT_ONCE = 16


def run(options: Options) -> Iterator[Case]:
    """One command after the other, and many at once."""
    token = secrets.token_hex()
    command = [sys.executable, "-m", "verifiers.cli.sandboxd", "--json", "--port", "0"]
    environ = {**os.environ, "VF_SANDBOXD_TOKEN": token}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as daemon:
        try:
            assert daemon.stdout is not None
            url = json.loads(daemon.stdout.readline())["url"]
            yield from asyncio.run(_measure(NodeProvider(url, token), options))
        finally:
            daemon.terminate()


async def _measure(node: NodeProvider, options: Options) -> list[Case]:
    count = 20 if options.quick else 300
    async with node, LocalProvider() as local:
        ours, peer = await _one_by_one(node, count), await _one_by_one(local, count) if options.peer else []
        case = median_case("exec of true over loopback, beside local", "ms", ours, peer, aim=times_less(0.4))
        many = [await _at_once(node, count) for _ in range(options.runs)]
        without = [await _at_once(local, count) for _ in range(options.runs)] if options.peer else []
        name = f"{AT_ONCE} at once over loopback, each"
        return [case, median_case(name, "ms", many, without, aim=times_less(0.4))]


async def _one_by_one(provider: Provider, count: int) -> list[float]:
    sandbox = await provider.create(SPEC)
    await sandbox.exec("true")
    spent = [await _timed(sandbox) for _ in range(count)]
    await sandbox.delete()
    return spent


async def _at_once(provider: Provider, count: int) -> float:
    made = await asyncio.gather(*(provider.create(SPEC) for _ in range(AT_ONCE)))

    async def work(sandbox: Sandbox) -> list[float]:
        return [await _timed(sandbox) for _ in range(count // 10)]

    began = time.perf_counter()
    done = await asyncio.gather(*(work(sandbox) for sandbox in made))
    spent = (time.perf_counter() - began) * 1000
    await asyncio.gather(*(sandbox.delete() for sandbox in made))
    return spent / sum(map(len, done))


async def _timed(sandbox: Sandbox) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    assert (await sandbox.exec(["true"])).ok
    return (time.perf_counter() - began) * 1000
