"""What the rollout feels of its sandbox: the wait at the first tool call, an idle one against a new one, and a command
in a shell or interpreter that stays against one that is started for it. Wall time, all isolation on.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator

from benchmarks.case import Case, at_most, median_case, times_less
from benchmarks.options import Options
from verifiers.sandboxes.lease import Lease
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.pool import SandboxPool
from verifiers.sandboxes.sessions import Interpreter, Session
from verifiers.sandboxes.spec import SandboxSpec

SPEC = SandboxSpec(memory=256, disk=64)
INFERENCE_S = 0.3


def run(options: Options) -> Iterator[Case]:
    """The rows of the design's section 11 that are the pool's, and what sessions save."""
    yield from asyncio.run(_measure(options))


async def _measure(options: Options) -> list[Case]:
    few, rollouts = (5, 32) if options.quick else (100, 320)
    cases = [
        await _waits("wait at the first tool call, p95, 16 rollouts at once, none idle", 16, 16),
        await _waits(f"wait at the first tool call, p95, {rollouts} rollouts, 32 at a time", rollouts, 32),
        await _claims(few, options),
    ]
    async with LocalProvider() as provider:
        sandbox = await provider.create(SPEC)
        session, python = await sandbox.session(), await sandbox.interpreter()
        opened = [await _timed(lambda: _opened(sandbox.session)) for _ in range(few // 2)]
        cases.append(median_case("a session opened and closed", "ms", opened))
        opened = [await _timed(lambda: _opened(sandbox.interpreter)) for _ in range(few // 2)]
        cases.append(median_case("an interpreter opened and closed", "ms", opened))
        name = "true in a session, beside exec"
        cases.append(await _beside(name, lambda: session.run("true"), lambda: sandbox.exec("true"), few, options))
        name, line = "1 in an interpreter, beside python3 -c", ["python3", "-c", "1"]
        cases.append(await _beside(name, lambda: python.run("1"), lambda: sandbox.exec(line), few, options))
    return cases


Work = Callable[[], Awaitable[object]]


async def _beside(name: str, ours: Work, peer: Work, count: int, options: Options) -> Case:
    first, second = [], []
    for _ in range(2 * count):
        first.append(await _timed(ours))
        if options.peer:
            second.append(await _timed(peer))
    return median_case(name, "ms", first, second, must=times_less(0.5) if second else None)


async def _timed(work: Work) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    await work()
    return (time.perf_counter() - began) * 1000


async def _opened(open_one: Callable[[], Awaitable[Session | Interpreter]]) -> None:
    await (await open_one()).close()


async def _waits(name: str, count: int, at_once: int) -> Case:
    """Rollouts that think for `INFERENCE_S`, run a command, think and run another."""
    limit, waits = asyncio.Semaphore(at_once), []

    async def rollout(pool: SandboxPool) -> None:
        async with limit, Lease(pool, SPEC) as lease:
            for _ in range(2):
                await asyncio.sleep(INFERENCE_S)
                assert (await (await lease).exec("echo $((6 * 7))")).stdout == b"42\n"
            waits.append(lease.waited_s * 1000)

    async with SandboxPool(LocalProvider(), 2 * at_once, 8, ready=8) as pool:
        await (await pool.create(SPEC)).delete()  # what all share is made once
        await asyncio.gather(*(rollout(pool) for _ in range(count)))
    return Case(name, "ms", statistics.quantiles(waits, n=20)[-1], must=at_most(5), aim=at_most(0.1))


async def _claims(count: int, options: Options) -> Case:
    """An idle sandbox claimed, beside a new one made."""
    hits, starts = [], []
    async with SandboxPool(LocalProvider(), ready=2) as pool:
        for _ in range(count):
            pool.warm(SPEC, 2)
            while pool.stats().idle < 2:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.01)
            hits.append(await _timed(lambda: pool.create(SPEC)))
            if options.peer:
                starts.append(await _timed(lambda: pool.provider.create(SPEC)))
            await pool.delete_many({})
    return median_case("an idle sandbox, beside a new one", "ms", hits, starts, must=times_less(2) if starts else None)
