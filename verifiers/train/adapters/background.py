"""An event loop in a thread of its own, for trainers that are not asynchronous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Runs coroutines on one loop, which lives until `close`. Usable wherever the caller has a loop or none."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
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
        """Cancel what still runs, and end the thread."""
        if self._loop.is_closed():
            return
        self.run(_end_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
