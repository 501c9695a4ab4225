"""What sandboxes of this machine cost, with all isolation on: to start, to run a command in, to have many of.

The peer of one command is `subprocess.run` of the same on the host. The rest has no peer but its bounds, in wall time,
which a busy machine multiplies: only a quiet one gives figures that mean something.
"""

import asyncio
import resource
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from benchmarks.case import Case, at_most, median_case, times_less
from benchmarks.options import Options
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.sandbox import Sandbox
from verifiers.sandboxes.spec import SandboxSpec

SPEC = SandboxSpec(memory=256, disk=64)
LIFE = "(setsid sleep 1000 &) ; trap '' TERM; sleep 1000"


def run(options: Options) -> Iterator[Case]:
    """Every row of the table in the design, section 11, but those of the pool."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield from asyncio.run(_measure(options))


async def _measure(options: Options) -> list[Case]:
    few = 5 if options.quick else 40
    many, alive = (10, 20) if options.quick else (200, 1000)
    cases = []
    async with LocalProvider() as provider:
        await (await provider.create(SPEC)).delete()  # what all share is made once
        starts = [await _timed(lambda: _first_output(provider)) for _ in range(few)]
        cases.append(
            median_case("cold start to the first output", "ms", starts, must=at_most(40), aim=at_most(15))
        )
        sandbox = await provider.create(SPEC)
        cases.append(await _one_command(sandbox, 5 * few, options))
        over = [await _timed(lambda: sandbox.exec(LIFE, timeout=0.1)) - 100 for _ in range(few // 2)]
        cases.append(median_case("beyond a time-out, all dead", "ms", over, must=at_most(500), aim=at_most(100)))
        await sandbox.delete()
        at_once = [await _timed(lambda: _at_once(provider, many)) / 1000 for _ in range(options.runs)]
        name = f"{many} started at once, a command in each"
        cases.append(median_case(name, "s", at_once, must=at_most(5), aim=at_most(2)))
        cases.append(await _rate(provider, 200 if options.quick else 4000))
        cases.append(await _memory(provider, alive))
    return cases


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


async def _first_output(provider: LocalProvider) -> None:
    sandbox = await provider.create(SPEC)
    assert (await sandbox.exec("echo hi")).stdout == b"hi\n"
    await sandbox.delete()


async def _one_command(sandbox: Sandbox, count: int, options: Options) -> Case:
    ours, peer = [], []
    for _ in range(count):
        ours.append(await _timed(lambda: sandbox.exec(["sh", "-c", "true"])))
        if options.peer:
            peer.append(_on_the_host())
    name = "exec of sh -c true, beside subprocess.run"
    return median_case(name, "ms", ours, peer, must=times_less(0.5), aim=times_less(1))


def _on_the_host() -> float:
    began = time.perf_counter()
    subprocess.run(["sh", "-c", "true"], check=True, capture_output=True)
    return (time.perf_counter() - began) * 1000


async def _at_once(provider: LocalProvider, count: int) -> None:
    async def one() -> Sandbox:
        sandbox = await provider.create(SPEC)
        assert (await sandbox.exec("true")).ok
        return sandbox

    made = await asyncio.gather(*(one() for _ in range(count)))
    asyncio.get_running_loop().create_task(_delete(made))


async def _delete(made: list[Sandbox]) -> None:
    await asyncio.gather(*(sandbox.delete() for sandbox in made))


async def _rate(provider: LocalProvider, count: int) -> Case:
    """Commands a second in 64 sandboxes that all work at once, told as time for each."""
    made = [await provider.create(SPEC) for _ in range(64)]
    await asyncio.gather(*(sandbox.exec("true") for sandbox in made))

    async def work(sandbox: Sandbox) -> None:
        for _ in range(count // len(made)):
            await sandbox.exec("true")

    spent = await _timed(lambda: asyncio.gather(*(work(sandbox) for sandbox in made)))
    await _delete(made)
    each = spent / (count // len(made) * len(made))
    return Case("exec over 64 sandboxes, time for each", "ms", each, must=at_most(1 / 0.7), aim=at_most(0.5))


async def _memory(provider: LocalProvider, count: int) -> Case:
    """What the machine has less of for each sandbox that is alive and has run a command."""
    before = _available()
    made = []
    for _ in range(count // 20):
        made += await asyncio.gather(*(provider.create(SPEC) for _ in range(20)))
    await asyncio.gather(*(sandbox.exec("true") for sandbox in made))
    each = (before - _available()) / len(made)
    await _delete(made)
    return Case(f"{count} alive, each", "MB", each, must=at_most(10), aim=at_most(3))


def _available() -> float:
    """Megabytes of memory that programs can have."""
    text = Path("/proc/meminfo").read_text()
    return int(text.split("MemAvailable:")[1].split()[0]) * 1024 / 1e6

