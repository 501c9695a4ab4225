"""Calling a reward function, sync or async, with a time limit and without blocking the event loop.

    value = await call_within(func, {"completion": completion}, seconds=120)

Sync functions run in threads (`verifiers.threads`). `verifiers.clocks.paused_clock` stops the time of the function that
runs, for waits that have limits of their own (a judge's queue and retries).
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from verifiers.clocks import Clock, current_clock
from verifiers.decorators import is_async
from verifiers.threads import Threads

T = TypeVar("T")

_NUMBERS = frozenset({bool, float, int})


async def call_within(func: Callable[..., Any], arguments: Mapping[str, Any], seconds: float | None) -> Any:
    """Call `func` and return its result. Raises TimeoutError after `seconds`, else what `func` raises."""
    if is_async(func):
        return await _within(func(**arguments), seconds)
    bound = functools.partial(func, **arguments)
    context = contextvars.copy_context()
    context.run(current_clock.set, None)  # a clock can be paused only on the loop it belongs to
    result = await THREADS.run(bound, seconds, context)
    is_plain = type(result) in _NUMBERS  # most often: to look for an `__await__` takes longer than much of scoring
    return result if is_plain or not inspect.isawaitable(result) else await _within(result, seconds)


async def all_of(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Await all at once; when one raises, or this task is cancelled, the others are cancelled and awaited."""
    if len(calls) == 1:
        return [await calls[0]]
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _within(awaitable: Awaitable[T], seconds: float | None) -> T:
    if seconds is None:
        return await awaitable
    timeout = asyncio.timeout(seconds)
    try:
        async with timeout:
            token = current_clock.set(Clock(timeout))
            try:
                return await awaitable
            finally:
                current_clock.reset(token)
    except TimeoutError as error:
        if timeout.expired():
            raise TimeoutError(f"did not return within {seconds:g} seconds") from error
        raise


# Enough for functions that wait, such as a synchronous HTTP call.
THREADS = Threads(limit=128, name="reward function")
