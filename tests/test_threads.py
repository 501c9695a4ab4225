"""Blocking functions beside the event loop: as few threads as they need, and none that holds anything up."""

import asyncio
import functools
import threading
import time
from typing import Any

import pytest

from verifiers import threads as module
from verifiers.threads import Threads

PATIENCE = 30.0
"""Seconds after which a blocked function gives up, so that a failing test ends."""


def compute(seconds: float) -> str:
    """Pure Python for some CPU time; the name of the thread that did it."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))
    return threading.current_thread().name + str(threading.get_ident())


async def test_stuck_functions_do_not_starve_others():
    """Calls that were given up on no longer count against the limit of threads."""
    released = threading.Event()
    threads = Threads(limit=2, name="test")
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(threads.run(lambda: released.wait(PATIENCE)), 0.05)
    for _ in range(5):
        with pytest.raises(TimeoutError, match=r"did not return within 0\.01 seconds"):
            await threads.run(lambda: released.wait(PATIENCE), 0.01)
    assert await threads.run(lambda: "free") == "free"
    released.set()


async def test_waiting_for_a_thread_is_no_time_of_the_function():
    """The limit counts from when the function runs, however many stand in line before it."""
    threads = Threads(limit=1, name="test")
    seconds = 0.4
    naps = [threads.run(functools.partial(threading.Event().wait, seconds / 4), seconds) for _ in range(8)]
    assert await asyncio.gather(*naps) == [False] * 8


async def test_functions_that_wait_get_threads_up_to_the_limit():
    """As many as the limit meet at a barrier, so they run at once; one more has to stand in line."""
    limit = 48
    threads = Threads(limit, name="test")
    barrier = threading.Barrier(limit)
    most = alive = 0
    lock = threading.Lock()

    def meets() -> int:
        nonlocal alive, most
        with lock:
            alive += 1
            most = max(most, alive)
        number = barrier.wait(PATIENCE)
        with lock:
            alive -= 1
        return number

    found = await asyncio.gather(*(threads.run(meets) for _ in range(3 * limit)))
    assert sorted(found) == sorted(list(range(limit)) * 3) and most == limit


async def test_functions_that_compute_share_few_threads():
    """Each further computing thread would only keep the loop waiting."""
    threads = Threads(limit=64, name="test")
    used = await asyncio.gather(*(threads.run(functools.partial(compute, 0.02)) for _ in range(64)))
    assert len(set(used)) <= 8


async def test_a_call_in_line_can_be_cancelled():
    """It never runs."""
    threads = Threads(limit=1, name="test")
    released = threading.Event()
    ran: list[str] = []
    first = asyncio.ensure_future(threads.run(lambda: released.wait(PATIENCE)))
    second = asyncio.ensure_future(threads.run(lambda: ran.append("second")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    released.set()
    assert await first
    await threads.run(lambda: ran.append("third"))
    assert ran == ["third"] and second.cancelled()


@pytest.mark.parametrize("error", [LookupError("mine"), KeyboardInterrupt(), TimeoutError("mine")])
async def test_what_the_function_raises_comes_out(error: BaseException):
    """The very object, whatever it is."""

    def raises() -> None:
        raise error

    threads = Threads(limit=1, name="test")
    with pytest.raises(type(error)) as raised:
        await threads.run(raises, 10.0)
    assert raised.value is error


async def test_threads_are_reused():
    """Calls one after the other run in one thread."""
    threads = Threads(limit=4, name="test")
    idents = [await threads.run(threading.get_ident) for _ in range(3)]
    assert len(set(idents)) <= 2 and threading.get_ident() not in idents


async def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch):
    """A thread that nobody needs ends; the next call gets a new one."""
    monkeypatch.setattr(module, "IDLE_S", 0.01)
    threads = Threads(limit=4, name="test")
    thread = await threads.run(threading.current_thread)
    await asyncio.to_thread(thread.join, PATIENCE)
    assert not thread.is_alive() and await threads.run(lambda: "again") == "again"


def test_several_loops_use_one_object():
    """One after the other, and at the same time."""
    threads = Threads(limit=2, name="test")
    barrier = threading.Barrier(3)
    found: list[Any] = []

    def loop() -> None:
        found.append(asyncio.run(_meets(threads, barrier)))

    others = [threading.Thread(target=loop) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join(PATIENCE)
    assert sorted(found) == [0, 1, 2]
    assert asyncio.run(_meets(threads, threading.Barrier(1))) == 0


async def _meets(threads: Threads, barrier: threading.Barrier) -> Any:
    return await threads.run(functools.partial(barrier.wait, PATIENCE))


async def test_a_system_that_gives_no_thread_ends_the_calls_that_wait(monkeypatch):
    """Where none can be had, calls raise; where there are some, more that are refused hold nothing up."""
    start = threading.Thread.start

    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    threads = Threads(limit=4, name="test")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await asyncio.wait_for(threads.run(lambda: None), PATIENCE)
    monkeypatch.setattr(threading.Thread, "start", start)
    assert await threads.run(lambda: "one") == "one"
    monkeypatch.setattr(threading.Thread, "start", refused)
    naps = [threads.run(functools.partial(time.sleep, 0.1)) for _ in range(4)]
    await asyncio.wait_for(asyncio.gather(*naps), PATIENCE)
    released = threading.Event()
    stuck = asyncio.ensure_future(threads.run(lambda: released.wait(PATIENCE)))
    behind = asyncio.ensure_future(threads.run(lambda: None))
    await asyncio.sleep(0.05)
    stuck.cancel()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await asyncio.wait_for(behind, PATIENCE)
    released.set()


async def test_a_quick_call_is_told_of_while_the_one_after_it_blocks(monkeypatch):
    """The loop is told of quick calls together, but waits for no slow one that the same thread goes on with."""
    monkeypatch.setattr(module, "TOGETHER_S", 2 * PATIENCE)
    threads = Threads(limit=1, name="test")
    begun, released = threading.Event(), threading.Event()
    waits = [lambda: begun.wait(PATIENCE), lambda: released.wait(PATIENCE)]
    first, second, last = [asyncio.ensure_future(threads.run(call)) for call in (lambda: "first", *waits)]
    assert await first == "first"
    begun.set()
    assert await second
    released.set()
    assert await last
