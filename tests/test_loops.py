"""Event loops that end although code in them does not."""

import asyncio
import threading
from contextlib import suppress

import pytest

from verifiers.loops import done_in, ends_within, run_to_end


async def swallowing(over: asyncio.Event):
    while not over.is_set():
        with suppress(asyncio.CancelledError):
            await over.wait()


def test_the_outcome_is_that_of_the_coroutine():
    """What it returns is returned, what it raises is raised, and what it left is cancelled."""
    seen = []

    async def left():
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    async def main(error):
        kept.append(asyncio.create_task(left()))
        await asyncio.sleep(0)
        if error:
            raise error
        return 7

    kept = []
    assert run_to_end(main(None)) == 7
    with pytest.raises(KeyError):
        run_to_end(main(KeyError("x")))
    assert seen == ["cancelled", "cancelled"]


def test_asynchronous_generators_are_closed():
    """As `asyncio.run` does: connections are closed this way."""
    closed = []

    async def generator():
        try:
            yield 1
        finally:
            closed.append(True)

    async def main():
        held.append(generator())
        return await anext(held[0])

    held = []
    assert run_to_end(main()) == 1 and closed == [True]


def test_a_thread_that_never_returns_is_not_waited_for():
    """A blocked call in the loop's executor does not hold the end, and other calls find a thread."""
    release = threading.Event()

    async def main():
        loop = asyncio.get_running_loop()
        blocked = [loop.run_in_executor(None, release.wait) for _ in range(40)]
        value = await asyncio.to_thread(lambda: 7)
        return value, any(future.done() for future in blocked)

    try:
        assert run_to_end(main()) == (7, False)
    finally:
        release.set()


async def test_a_task_that_swallows_its_cancellation_is_left():
    """It is told so, and tasks that end in time are not."""
    over = asyncio.Event()
    stuck = asyncio.create_task(swallowing(over))
    await asyncio.sleep(0)
    assert not await ends_within(stuck, 0.05)
    assert await ends_within(asyncio.create_task(asyncio.sleep(60)))
    over.set()
    await stuck


@pytest.mark.parametrize("closed", [True, False], ids=["before", "meanwhile"])
async def test_who_waits_for_another_loop_outlives_it(closed):
    """What is handed to a loop in its last moment is never begun; nobody waits for it, or is told of it for ever."""
    loop = asyncio.new_event_loop()
    if closed:
        loop.close()
    waiting = asyncio.create_task(done_in(loop, asyncio.sleep(0, 7)))
    await asyncio.sleep(0)
    loop.close()
    assert await waiting is None


async def test_work_on_another_loop_is_waited_for():
    """Its outcome and its error are those of the work; cancelled, it ends there too."""
    ended = threading.Event()

    async def fails():
        raise KeyError("x")

    async def lasts():
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        assert await done_in(loop, asyncio.sleep(0, 7)) == 7
        with pytest.raises(KeyError):
            await done_in(loop, fails())
        lasting = asyncio.create_task(done_in(loop, lasts()))
        await done_in(loop, asyncio.sleep(0))
        lasting.cancel()
        await asyncio.wait({lasting})
        assert lasting.cancelled() and await asyncio.to_thread(ended.wait, 60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
