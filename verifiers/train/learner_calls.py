"""How the loop calls a learner: its methods block, so they run in one thread beside the event loop, one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from verifiers.errors import Error, TrainingError
from verifiers.train.learner import Learner, Weights
from verifiers.train.rows import Row

T = TypeVar("T")


class Blocking(Protocol):
    """Runs blocking functions beside the event loop, one at a time; tests let virtual time pass instead."""

    async def __call__(self, function: Callable[..., T], /, *args: Any) -> T: ...

    def close(self) -> None:
        """Nothing is called any more, for now."""
        ...


class Thread:
    """`Blocking` as one thread, which the next call starts."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None

    async def __call__(self, function: Callable[..., T], /, *args: Any) -> T:
        self._executor = self._executor or ThreadPoolExecutor(1, "trainer")
        return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)

    def close(self) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=False)
            self._executor = None


class LearnerCalls:
    """A learner behind the thread. What it raises becomes a TrainingError, unless it is an error of ours already.

    broken: a step raised, so that the learner's state is unknown and must not be saved.
    """

    def __init__(self, learner: Learner, blocking: Blocking | None = None) -> None:
        self.broken = False
        self._learner = learner
        self._blocking: Blocking = blocking or Thread()

    async def step(self, rows: Sequence[Row], number: int) -> dict[str, float]:
        """The `number`-th update of the run."""
        try:
            return await self._guarded(f"in step {number}", self._learner.step, rows)
        except BaseException:
            self.broken = True
            raise

    async def weights(self) -> Weights:
        """The present weights."""
        return await self._guarded("when it was asked for its weights", self._learner.weights)

    async def run(self, function: Callable[..., T], /, *args: Any) -> T:
        """Another function that uses the learner, with errors of its own."""
        return await self._blocking(function, *args)

    def close(self) -> None:
        """The run is over."""
        self._blocking.close()

    async def _guarded(self, when: str, function: Callable[..., T], *args: Any) -> T:
        try:
            return await self._blocking(function, *args)
        except Error:
            raise
        except Exception as error:  # boundary: a learner's own code
            raise TrainingError(f"the trainer failed {when}: {type(error).__name__}: {error}") from error
