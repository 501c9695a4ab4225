"""Running an event loop to its end although code in it does not end: a task that swallows its cancellation, a thread
that never returns.

    outcome = run_to_end(main())                     # instead of asyncio.run
    ended = await ends_within(task, seconds=5)       # cancel and wait, but not for ever
    await shielded(release())                        # to its end, also if this task is cancelled
    await done_in(loop, close())                     # on another thread's loop, which may end meanwhile
    result = Background("name").run(main())          # on a loop in a thread of its own, for who has none
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

logger = logging.getLogger(__name__)

GRACE_S = 3.0
"""How long a task that was cancelled is waited for."""

LOOK_S = 0.1
"""How often who waits for another loop looks whether it is still there."""

SHARED_THREADS = 64
"""Threads of a loop's own executor, which resolves host names too: more than asyncio's, since some may never return."""

_left_behind: set[asyncio.Task[Any]] = set()
"""Tasks that did not end. Kept, since Python would complain when it throws them away."""


async def ends_within(task: asyncio.Task[Any], seconds: float = GRACE_S) -> bool:
    """Cancel a task and wait for its end; False if it does not end in time. It is left to itself then."""
    task.cancel()
    await asyncio.wait({task}, timeout=seconds)
    if task.done():
        return True
    _left_behind.add(task)
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it has been told of
    return False


async def shielded(work: Awaitable[T], on_cancel: Callable[[], None] | None = None) -> T:
    """The outcome of work that must not be cut short: if the caller is cancelled, that shows after its end.

    on_cancel: told when the caller is cancelled.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            if on_cancel is not None:
                on_cancel()
    if cancelled is None:
        return task.result()
    raised = None if task.cancelled() else task.exception()
    if raised is not None and not isinstance(raised, Exception):
        raise raised
    raise cancelled from raised


class _Executor(ThreadPoolExecutor):
    """asyncio waits for its executor's threads, up to five minutes each."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=cancel_futures)

    def join(self, seconds: float = GRACE_S) -> None:
        """After its shutdown: wait for its threads, but not for ever."""
        until = time.monotonic() + seconds
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))


async def done_in(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T | None:
    """The outcome of work on another thread's loop; None if that loop ends before it. Cancelled with the caller."""
    try:
        done = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))
    except RuntimeError:  # it was closed a moment ago
        work.close()
        return None
    try:
        while not (await asyncio.wait({done}, timeout=LOOK_S))[0]:
            if loop.is_closed():  # what was handed to it in its last moment is never begun, nor cancelled
                return None
        return None if done.cancelled() else done.result()
    finally:
        if not loop.is_closed():
            done.cancel()
        elif inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
            work.close()


def _new_executor() -> _Executor:
    return _Executor(SHARED_THREADS, thread_name_prefix="asyncio")


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(_new_executor())
    return loop


def run_to_end(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run`, except that tasks and threads which do not end are left behind."""
    runner = asyncio.Runner(loop_factory=_new_loop)
    try:
        return runner.run(main)
    finally:
        loop = runner.get_loop()
        if loop.run_until_complete(_all_end()):
            runner.close()
        else:
            with suppress(TimeoutError):
                loop.run_until_complete(asyncio.wait_for(loop.shutdown_asyncgens(), GRACE_S))
            asyncio.set_event_loop(None)
            loop.close()


async def _all_end() -> bool:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    known = tasks.intersection(_left_behind)
    ended = await asyncio.gather(*(ends_within(task) for task in tasks - known))
    if not all(ended):
        logger.warning("%d tasks of the environment do not end: they are left behind", ended.count(False))
    return all(ended) and not known


# --- a loop beside callers that have none ---------------------------------------------------------------------


class Background:
    """Runs coroutines on one loop, which lives until `close`. Usable wherever the caller has a loop or none."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._executor = _new_executor()
        self._loop.set_default_executor(self._executor)
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Wait for its result. An interrupt of the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(main, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Let it run; returns the `concurrent.futures.Future` of its result."""
        return asyncio.run_coroutine_threadsafe(main, self._loop)

    def close(self) -> None:
        """Cancel what still runs, and end the thread and those that the loop has had beside it."""
        if self._loop.is_closed():
            return
        self.run(_end_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._executor.join()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
