"""Work that is done once for each key, however often it is asked for: a launch whose answer was lost on the way.

    operation = once.begin(key, work)          # the same key again: the same operation, and in the end the same outcome
    with operation.awaited(): await asyncio.wait({operation.task})

Nobody waiting any more does not end it at once: who lost the connection comes back with the key. After `ORPHAN_S`
without anybody it is cancelled. Outcomes are kept until their client says that it has them, at most for `KEPT_S` and
`KEPT_BYTES`; of those that had to go for the latter the key stays, so that no launch is ever repeated.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from verifiers.errors import SandboxError
from verifiers.sandboxes.node.wire import Answer, error_answer

ORPHAN_S = 30.0
KEPT_S = 300.0
KEPT_BYTES = 1 << 26

Undo = Callable[[Answer], Awaitable[None]]
"""Takes back what was done, when it is cancelled after all."""
Outcome = tuple[int, Answer]
"""A status and a message."""
CANCELLED: Outcome = error_answer(SandboxError("it was cancelled"))


class Operation:
    """One piece of work and who waits for it. `task` ends with an `Outcome`, whatever happens."""

    def __init__(self, owner: str, work: Callable[[], Awaitable[Answer]], undo: Undo | None = None) -> None:
        self.owner = owner
        self.undo = undo
        self.ended = math.inf
        self.size = 0
        self.waiting = 0
        self._orphan: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[Outcome] = asyncio.get_running_loop().create_task(_outcome(work))

    def outcome(self) -> Outcome:
        """How it ended."""
        return CANCELLED if self.task.cancelled() else self.task.result()

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Somebody waits within the block."""
        self.waiting += 1
        if self._orphan is not None:
            self._orphan.cancel()
            self._orphan = None
        try:
            yield
        finally:
            self.waiting -= 1
            if not self.waiting and not self.task.done():
                self._orphan = asyncio.get_running_loop().call_later(ORPHAN_S, self.task.cancel)


async def _outcome(work: Callable[[], Awaitable[Answer]]) -> Outcome:
    try:
        return 200, await work()
    except asyncio.CancelledError:
        return CANCELLED
    except Exception as error:  # boundary: whatever the provider raises is what the client is told
        return error_answer(error)


async def _given_up() -> Answer:
    raise SandboxError("it was cancelled before it began")


async def _forgotten() -> Answer:
    raise SandboxError("it was done, and its outcome is no longer kept")


class Once:
    """The operations of one server, by key."""

    def __init__(self, *, kept_bytes: int = KEPT_BYTES) -> None:
        self._operations: dict[str, Operation] = {}
        self._kept_bytes = kept_bytes
        self._bytes = 0

    def begin(
        self, key: str | None, owner: str, work: Callable[[], Awaitable[Answer]], undo: Undo | None = None
    ) -> Operation:
        """The operation of this key, which begins if there is none. None: one that is never asked for again."""
        if key is None:
            return Operation(owner, work, undo)
        operation = self._operations.get(key)
        if operation is None:
            operation = self._operations[key] = Operation(owner, work, undo)
            operation.task.add_done_callback(lambda _: self._ended(operation))
        return operation

    async def cancel(self, key: str) -> None:
        """End what this key began and wait for its end, or take it back; what has not arrived yet will not begin."""
        operation = self._operations.get(key)
        if operation is None:
            operation = self.begin(key, "", _given_up)
        else:
            operation.task.cancel()
        await asyncio.wait({operation.task})
        status, answer = operation.outcome()
        if status == 200 and operation.undo is not None:
            undo, operation.undo = operation.undo, None
            await undo(answer)

    async def cancel_all(self, owner: str | None = None) -> None:
        """End all that this owner (None: anybody) has begun."""
        tasks = {one.task for one in self._operations.values() if owner in (None, one.owner) and not one.task.done()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def forget(self, key: str) -> None:
        """Its client has the outcome, and will not ask again."""
        operation = self._operations.get(key)
        if operation is not None and operation.task.done():
            self._bytes -= self._operations.pop(key).size

    def prune(self) -> None:
        """Forget what ended long ago."""
        before = time.monotonic() - KEPT_S
        for key in [key for key, one in self._operations.items() if one.task.done() and one.ended < before]:
            self.forget(key)

    def _ended(self, operation: Operation) -> None:
        operation.ended = time.monotonic()
        operation.size = sum(len(blob) for blob in operation.outcome()[1].blobs)
        self._bytes += operation.size
        if self._bytes <= self._kept_bytes:
            return
        for key, one in self._operations.items():  # in the order of their beginning
            if one.size and one is not operation:
                self._bytes -= one.size
                self._operations[key] = Operation(one.owner, _forgotten)
                self._operations[key].ended = one.ended
            if self._bytes <= self._kept_bytes:
                break
