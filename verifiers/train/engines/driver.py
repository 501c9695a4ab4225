"""Who calls `Decoder.step`: a thread of its own, or the event loop between its callbacks.

Both run steps one after another, and whatever changes the model between two of them. A step that raises ends every
request with an EngineError, and the engine with them: its state is not known any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from verifiers.clients.sampler import Completion
from verifiers.errors import ConfigError, EngineError, Error
from verifiers.train.engines.decoder import Decoder
from verifiers.train.engines.requests import Request, again

T = TypeVar("T")
Outcome = tuple[asyncio.Future[Completion], Completion | Error]


class InlineDriver:
    """Steps on the event loop, each a callback of its own: nothing ever runs beside a step."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._scheduled: asyncio.Handle | None = None
        self.paused = False
        self.failure: EngineError | None = None

    def submit(self, request: Request) -> None:
        """Queue a request."""
        if self.failure is not None:
            raise again(self.failure)
        self._decoder.submit(request)
        self._schedule()

    def settle(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Completion], outcome: Completion | Error
    ) -> None:
        """Hand an outcome to whoever awaits it."""
        if not loop.is_closed():
            loop.call_soon(_settle, [(future, outcome)])

    def cancel(self, request: Request) -> None:
        """Give a request up."""
        request.cancelled = True

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` between two steps."""
        if self.failure is not None:
            raise again(self.failure)
        try:
            return work()
        except ConfigError:
            raise
        except Exception as error:  # what it left behind is not known
            self._fail(_as_failure(error))
            raise

    async def pause(self) -> None:
        """No step from now on."""
        self.paused = True

    def resume(self) -> None:
        """Steps again."""
        self.paused = False
        self._schedule()

    async def close(self) -> None:
        """End, with every request."""
        self._fail(EngineError("the engine was closed", hint="Make another one."))

    def _schedule(self) -> None:
        if not self.paused and self._decoder.busy and self._scheduled is None:
            self._scheduled = asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._scheduled = None
        if self.paused or self.failure is not None:
            return
        try:
            self._decoder.step()
        except Exception as error:  # the boundary to the model: whatever it is, the requests are told
            self._fail(_as_failure(error))
        self._schedule()

    def _fail(self, error: EngineError) -> None:
        self.failure = self.failure or error
        self._decoder.fail(self.failure)


class ThreadDriver:
    """Steps in a daemon thread, which starts with the first request. Its lock is held for the queues only.

    What goes between thread and loop goes together: all requests of one turn of the loop, all outcomes of one step.
    Each hand-over costs a system call and a change of the thread that has the interpreter, and requests that come one
    by one would be decoded in steps of their own.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._coming: list[Request] = []
        self._coming_from: asyncio.AbstractEventLoop | None = None
        self._settled: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
        self._wake = threading.Condition()
        self._inbox: deque[Request] = deque()
        self._work: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._closing = False
        self.paused = False
        self.failure: EngineError | None = None

    def submit(self, request: Request) -> None:
        """Queue a request, from the event loop."""
        if self.failure is not None:
            raise again(self.failure)
        self._coming.append(request)
        loop = asyncio.get_running_loop()
        if self._coming_from is not loop:
            self._coming_from = loop
            loop.call_soon(self._take_in)

    def _take_in(self) -> None:
        requests, self._coming, self._coming_from = self._coming, [], None
        with self._wake:
            failure = self.failure
            if failure is None:
                self._inbox.extend(requests)
                self._start()
                self._wake.notify()
        if failure is not None:
            self._end(requests, failure)

    def settle(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Completion], outcome: Completion | Error
    ) -> None:
        """Keep an outcome for whoever awaits it, until the step has ended."""
        with self._wake:
            self._settled.setdefault(loop, []).append((future, outcome))

    def _tell(self) -> None:
        with self._wake:
            settled, self._settled = self._settled, {}
        for loop, outcomes in settled.items():
            with contextlib.suppress(RuntimeError):  # the loop has ended, and whoever awaited with it
                loop.call_soon_threadsafe(_settle, outcomes)

    def cancel(self, request: Request) -> None:
        """Give a request up; its place is free from the next step on."""
        request.cancelled = True

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` in the thread, between two steps, whether paused or not."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            outcome: Any = None
            failed: BaseException | None = None if self.failure is None else again(self.failure)
            if failed is None:
                try:
                    outcome = work()
                except Exception as error:  # handed to whoever asked
                    failed = error
                    if not isinstance(error, ConfigError):
                        self._fail(_as_failure(error))
            with contextlib.suppress(RuntimeError):  # the loop has ended, and whoever awaited with it
                loop.call_soon_threadsafe(_set, future, outcome, failed)

        with self._wake:
            if self.failure is not None:
                raise again(self.failure)
            self._work.append(run)
            self._start()
            self._wake.notify()
        return await future

    async def pause(self) -> None:
        """No step from now on; returns when the present one has ended."""
        self.paused = True
        if self._thread is not None and self.failure is None:
            await self.call(lambda: None)

    def resume(self) -> None:
        """Steps again."""
        with self._wake:
            self.paused = False
            self._wake.notify()

    async def close(self) -> None:
        """End the thread, with every request."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        self._fail(EngineError("the engine was closed", hint="Make another one."))
        while self._work:
            self._work.popleft()()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="verifiers-engine", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while self._await_work():
            while self._work:
                self._work.popleft()()
            if self.paused or self.failure is not None:
                continue
            try:
                while self._inbox:
                    self._decoder.submit(self._inbox.popleft())
                self._decoder.step()
                self._tell()
            except Exception as error:  # the boundary to the model: whatever it is, the requests are told
                self._fail(_as_failure(error))

    def _await_work(self) -> bool:
        """Wait until there is something to do; False when it is to end."""
        with self._wake:
            while not self._closing:
                stepping = not self.paused and self.failure is None
                if self._work or (stepping and (self._inbox or self._decoder.busy)):
                    return True
                self._wake.wait()
            return False

    def _fail(self, error: EngineError) -> None:
        with self._wake:
            self.failure = self.failure or error
            left = list(self._inbox)
            self._inbox.clear()
        self._decoder.fail(self.failure)
        self._end(left, self.failure)

    def _end(self, requests: list[Request], failure: EngineError) -> None:
        for request in requests:
            request.deliver(again(failure))
        self._tell()


def _settle(outcomes: list[Outcome]) -> None:
    for future, outcome in outcomes:
        if isinstance(outcome, Completion):
            _set(future, outcome, None)
        else:
            _set(future, None, outcome)


def _set(future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)


def _as_failure(error: Exception) -> EngineError:
    if isinstance(error, EngineError):
        return error
    return EngineError(f"the engine failed: {type(error).__name__}: {error}", cause=error)


