"""Other people's blocking code beside the event loop: a reward function, a tool.

    value = await threads.run(functools.partial(func, 1), seconds=120)

As few threads as the work needs. Functions that wait (a file, a synchronous HTTP call) get a thread each, up to a
limit; functions that compute stay at one, since CPython runs one at a time anyhow, and each further one would keep
the event loop waiting for its turn (about 5 ms a computing thread). Which of the two they are is measured, by the CPU
time of the threads. Not `concurrent.futures`: its threads are no daemons, so a function that never returns would hold
the interpreter's exit. `run_beside` is for who has a thread of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

LOOK_S = 0.01
"""How often it is asked whether there should be more threads, while calls wait for one."""
LONG_S = 0.025
"""What has run for less than this may only be waiting for the interpreter, which the loop holds 5 ms at a time."""
TOGETHER_S = 0.0005
"""While calls wait, the loop is told together of what a thread ends within this time: each wake costs it more."""
IDLE_S = 10.0
"""After this time without work a thread ends."""
WAITING_SHARE = 0.3
"""Threads that use less of the time than this, on average, are waiting: more of them help."""
BUSY_SHARE = 0.8
"""With so much of one core in use no thread is added."""


class Threads:
    """Runs blocking functions of event loops, at most `limit` at once for each loop.

    A call that was given up on (cancelled, or out of time) no longer counts, though its thread goes on.
    """

    def __init__(self, limit: int, name: str) -> None:
        self.limit = limit
        self.name = name
        self._lanes: dict[asyncio.AbstractEventLoop, _Lane] = {}

    async def run(
        self,
        func: Callable[[], Any],
        seconds: float | None = None,
        context: contextvars.Context | None = None,
    ) -> Any:
        """Run `func` in a thread, in `context` (default: a copy of this task's), and return or raise what it does.

        Raises TimeoutError if it runs for longer than `seconds`; waiting for a thread does not count. RuntimeError if
        the system has no thread for it. A function that is given up on, so or by cancellation, goes on and its outcome
        is dropped.
        """
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop) or self._open(loop)
        call = _Call(func, seconds, context or contextvars.copy_context(), loop.create_future())
        lane.submit(call)
        try:
            await call.settled
        finally:
            if not call.finished:
                lane.give_up(call)
        if call.error is not None:
            raise call.error
        return call.result

    def _open(self, loop: asyncio.AbstractEventLoop) -> _Lane:
        self._lanes = {known: lane for known, lane in self._lanes.items() if not known.is_closed()}
        lane = self._lanes[loop] = _Lane(loop, self.limit, self.name)
        return lane


class _Call:
    """One function to run, and what became of it. `settled` is done when there is an outcome."""

    __slots__ = ("began", "context", "error", "finished", "func", "result", "seconds", "settled", "skipped", "worker")

    def __init__(
        self,
        func: Callable[[], Any],
        seconds: float | None,
        context: contextvars.Context,
        settled: asyncio.Future[None],
    ) -> None:
        self.func = func
        self.seconds = seconds
        self.context = context
        self.settled = settled
        self.worker: _Worker | None = None
        self.began = 0.0
        self.skipped = self.finished = False
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.context.run(self.func)
        except BaseException as error:  # boundary: handed over to the awaiting task, which raises it
            self.error = error
        self.finished = True


class _Worker:
    """One thread: what it runs, and how much of its time it has used."""

    __slots__ = ("call", "given_up", "since", "thread", "used")

    def __init__(self) -> None:
        self.call: _Call | None = None
        self.given_up = False
        self.thread = threading.get_native_id()
        self.since = self.used = 0.0

    def begin(self, call: _Call) -> None:
        self.since = call.began = time.monotonic()
        self.used = -1.0
        call.worker, self.call = self, call

    def share(self, now: float) -> float:
        """The part of the time since it was last asked that the thread has computed; 1 when it is asked first."""
        used = _time_used(self.thread)
        share = 1.0 if self.used < 0 else (used - self.used) / max(now - self.since, 1e-6)
        self.since, self.used = now, used
        return share


def _time_used(thread: int) -> float:
    """Seconds that a thread has computed, or would have if other programs had not had the processor.

    Where the system does not tell (proc(5), `schedstat`), 0: all threads count as waiting.
    """
    try:
        with open(f"/proc/self/task/{thread}/schedstat", "rb") as file:
            running, runnable, _ = file.read().split()
    except (OSError, ValueError):
        return 0.0
    return (int(running) + int(runnable)) / 1e9


class _Lane:
    """The calls and threads of one event loop. Everything but `_serve` runs on that loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int, name: str) -> None:
        self._loop = loop
        self._limit = limit
        self._name = name
        self._waiting: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._coming: list[_Call] = []
        self._done: deque[_Call] = deque()
        self._settling = False
        self._threads = 0
        self._lock = threading.Lock()
        self._open: set[_Call] = set()
        self._look: asyncio.TimerHandle | None = None
        self._looks = 0
        """How often in a row calls were waiting and none was running."""

    # --- on the loop ------------------------------------------------------------------------------------------

    def submit(self, call: _Call) -> None:
        self._open.add(call)
        self._coming.append(call)
        if len(self._coming) == 1:  # those of one turn of the loop together: each wakes a thread, which wants its turn
            self._loop.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        coming, self._coming = self._coming, []
        wanted = [call for call in coming if not call.skipped]
        for call in wanted:
            self._waiting.put(call)
        if wanted:
            self._need_thread()
        if self._look is None:
            self._look = self._loop.call_later(LOOK_S, self._look_around)

    def give_up(self, call: _Call) -> None:
        """Nobody waits for the outcome any more: the thread that runs the call counts no longer."""
        call.skipped = True
        self._open.discard(call)
        with self._lock:
            worker = call.worker
            if worker is not None and worker.call is call and not worker.given_up:
                worker.given_up = True
                self._threads -= 1
        if self._open:
            self._need_thread()

    def _look_around(self) -> None:
        """End what has run out of time, and start threads if calls wait behind threads that wait."""
        self._settle()  # of quick calls that nobody has told of, since the one after them is slow
        now = time.monotonic()
        running = [call for call in self._open if call.worker is not None and not call.finished]
        wait = 5 * LOOK_S
        for call in running:
            if call.seconds is None or call.settled.done():
                continue
            left = call.began + call.seconds - now
            if left <= 0:
                error = TimeoutError(f"did not return within {call.seconds:g} seconds")
                call.settled.set_exception(error)
            else:
                wait = min(wait, left)
        if self._waiting.qsize():
            self._need_thread()
        if waiting := self._waiting.qsize():
            wait = LOOK_S
            # Without a running call the threads are between two, unless what they run was given up on.
            self._looks = 0 if running else self._looks + 1
            if self._looks > 3 or (running and all(now - call.began >= LONG_S for call in running)):
                self._add_threads(waiting, [call.worker.share(now) for call in running if call.worker])
        self._look = self._loop.call_later(wait, self._look_around) if self._open else None

    def _add_threads(self, waiting: int, shares: list[float]) -> None:
        """`shares`: how much of its time each of the running threads has computed."""
        if sum(shares) < BUSY_SHARE and sum(shares) <= WAITING_SHARE * len(shares):
            for _ in range(min(waiting, max(1, self._threads), self._limit - self._threads)):
                self._start()

    def _need_thread(self) -> None:
        """Have at least one thread. If the system gives none, the calls that wait end with its error."""
        if self._threads or (refused := self._start()) is None:
            return
        with contextlib.suppress(queue.Empty):
            while True:
                call = self._waiting.get_nowait()
                call.error, call.finished = RuntimeError(*refused.args), True
                self._open.discard(call)
                if not call.settled.done():
                    call.settled.set_result(None)

    def _start(self) -> RuntimeError | None:
        """Start a thread. Returns why the system does not give one, if so (a limit of processes or memory)."""
        with self._lock:
            self._threads += 1
        try:
            threading.Thread(target=self._serve, name=self._name, daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._threads -= 1
            return error
        return None

    def _settle(self) -> None:
        self._settling = False
        while self._done:
            call = self._done.popleft()
            self._open.discard(call)
            if not call.settled.done():  # else it was given up
                call.settled.set_result(None)

    # --- in the threads ---------------------------------------------------------------------------------------

    def _serve(self) -> None:
        worker = _Worker()
        told = 0.0
        while (call := self._next()) is not None:
            if call.skipped:
                continue
            worker.begin(call)
            call.run()
            with self._lock:
                worker.call = None
                if worker.given_up:
                    return
            self._done.append(call)
            del call  # and with it the arguments, while the thread waits
            now = time.monotonic()
            if not self._settling and (now - told >= TOGETHER_S or self._waiting.empty()):
                self._settling, told = True, now
                # The loop may be closed by now.
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._settle)

    def _next(self) -> _Call | None:
        try:
            return self._waiting.get(timeout=IDLE_S)
        except queue.Empty:
            with self._lock:
                if self._waiting.empty():
                    self._threads -= 1
                    return None
            return self._next()


async def run_beside(
    func: Callable[[], Any],
    start: Callable[[Callable[[], None]], object],
    context: contextvars.Context | None = None,
) -> Any:
    """Let `start` run `func` in some thread, in a copy of this task's context; return or raise what it does.

    If this task is cancelled, `func` goes on and its outcome is dropped.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    chosen = contextvars.copy_context() if context is None else context

    def settle(outcome: tuple[Any, BaseException | None]) -> None:
        if not done.done():  # else the caller has given up
            done.set_result(outcome)

    def work() -> None:
        outcome: tuple[Any, BaseException | None]
        try:
            outcome = (chosen.run(func), None)
        except BaseException as error:  # boundary: handed over to the awaiting task, which raises it
            outcome = (None, error)
        with contextlib.suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(settle, outcome)

    start(work)
    result, error = await done
    if error is not None:
        raise error
    return result
