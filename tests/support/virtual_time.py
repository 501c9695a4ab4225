"""An event loop whose clock jumps to the next timer as soon as nothing else can run: hours pass in milliseconds.

    result = run_virtual(main())   # asyncio.sleep(3600) inside takes no time, and the order is that of the timers

The clock stands still while code runs, so that what is measured with `loop.time()` is exact and repeatable. Nothing
inside may use threads, processes or sockets: their time is not virtual.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Waits for nothing: tells the loop how long it would have waited."""

    waited = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits and no timer is set: nothing will ever happen again")
        self.waited += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Begins at 0 seconds."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        # A timer's own resolution, so that adding small waits to large times reaches it.
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._jump.waited


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
