"""The stages around the turns of a rollout, each inside its boundary.

The boundary between the framework and an environment's code is here: whatever a hook raises ends up typed on the
state, never in the caller. Only three things pass: cancellation, errors that are `fatal` for the whole run, and
exceptions that end the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from verifiers.clocks import time_limit
from verifiers.decorators import call_with, function_name, maybe_await
from verifiers.error_text import error_record
from verifiers.errors import (
    EnvironmentCodeError,
    Error,
    LimitError,
    OverlongPromptError,
    SpentError,
    as_error,
    is_failure,
)
from verifiers.loops import GRACE_S, ends_within, shielded
from verifiers.scopes import current_scope
from verifiers.types import State

logger = logging.getLogger(__name__)

SETUP_SECONDS = 600.0
"""Deadline of `setup_state`."""
CLEANUP_SECONDS = 30.0
"""Deadline of each cleanup handler, unless its environment gives them more."""


class boundary:  # noqa: N801 - used as a function; a generator would cost each rollout more than all that it does
    """Record what the block raises as `state["error"]`; a prompt that outgrew the model is a truncation."""

    __slots__ = ("_context", "_state")

    def __init__(self, state: State, context: str) -> None:
        self._state = state
        self._context = context

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: object, error: BaseException | None, traceback: object) -> bool:
        if error is None:
            return False
        return _record_raised(self._state, error, self._context)


def _record_raised(state: State, error: BaseException, context: str) -> bool:
    """Returns False for what has to pass. Raises an error that is fatal for the run."""
    if isinstance(error, OverlongPromptError):
        state["is_truncated"] = True
        state["prompt_too_long"] = True
        if not state["trajectory"]:
            # Before the first reply there is nothing to score: a limit, not a truncated answer.
            record_error(state, error)
    elif isinstance(error, SpentError):
        # A call between two turns, such as that of a simulated user.
        if not end_if_spent(state):
            record_error(state, error)
    elif not is_failure(error):
        return False
    else:  # boundary: code of the environment, its tools and its model
        typed = as_error(error, EnvironmentCodeError, context)
        record_error(state, typed)
        if typed.fatal:
            raise typed from typed.__cause__
    return True


def end_if_spent(state: State) -> bool:
    """End the rollout, truncated, if it has spent what it may and has a reply; says whether it has."""
    scope = current_scope.get()
    name = scope.reached() if scope is not None else None
    if name is None or not state["trajectory"]:
        return False
    state["is_completed"] = state["is_truncated"] = True
    state["stop_condition"] = f"limit_of_{name}_reached"
    return True


def record_error(state: State, error: Error) -> None:
    """Keep the first error as the rollout's; with its traceback for the run's log."""
    if state.get("error") is None:
        state["error"] = error
        logger.debug("rollout %s: %s", state.get("trajectory_id"), error, exc_info=error)


async def before_deadline(state: State, seconds: float | None, work: Coroutine[Any, Any, None]) -> None:
    """Await `work` for at most `seconds`: the rollout has then timed out, and is scored if it has a reply.

    Waiting for a rate limit does not count: how busy a provider is must not decide how far a rollout gets. Work that
    swallows its cancellation is left to itself, in a task of its own, and the rollout ends without it.
    """
    if seconds is None:
        await work
        return
    try:
        async with time_limit(seconds):
            task = asyncio.create_task(work)  # inside, so that waits in it find the clock that they pause
            await asyncio.wait({task})
    except TimeoutError:
        pass
    except BaseException:
        await ends_within(task)
        raise
    if task.done():
        task.result()
        return
    state["timed_out"] = True
    if not await ends_within(task):
        logger.warning("rollout %s goes on after its time-out: what it does is lost", state.get("trajectory_id"))
    elif not task.cancelled():
        task.result()
    state["is_completed"] = True
    state["stop_condition"] = "timeout_reached"
    if not state["trajectory"]:
        record_error(state, LimitError(f"the rollout gave no reply within {seconds:g} s"))


async def run_setup(state: State, setup_state: Callable[[State], Any]) -> State:
    """Call `setup_state` within its deadline. It may return a state, None, or be a plain function."""
    with boundary(state, "setup_state"):
        with state["timing"].record("setup"):
            try:
                async with asyncio.timeout(SETUP_SECONDS) as limit:
                    returned = await maybe_await(setup_state, state)
            except TimeoutError as error:
                if limit.expired():
                    raise LimitError(f"setup_state took longer than {SETUP_SECONDS:g} s", cause=error) from error
                raise
        adopt(state, returned)
    return state


def adopt(state: State, returned: Any) -> None:
    """Let a state that a hook returned replace the current one, whose identity others hold."""
    if isinstance(returned, dict) and returned is not state:
        dict.clear(state)
        dict.update(state, returned)


class _Patience:
    """How long cleanup may take: `seconds` for each handler, and no more than `CLEANUP_SECONDS` once nobody waits for
    the rollout any more."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = CLEANUP_SECONDS if seconds is None else seconds
        self._running: dict[asyncio.Timeout, float] = {}

    @contextlib.asynccontextmanager
    async def limit(self, grace: float = 0.0) -> AsyncIterator[None]:
        """Let the block run for `grace` longer than a handler may. TimeoutError: it has not ended by then."""
        async with asyncio.timeout(self.seconds + grace) as timeout:
            self._running[timeout] = grace
            try:
                yield
            finally:
                del self._running[timeout]

    def shorten(self) -> None:
        """The rollout is cancelled."""
        self.seconds = min(self.seconds, CLEANUP_SECONDS)
        for timeout, grace in self._running.items():
            latest = asyncio.get_running_loop().time() + self.seconds + grace
            if not timeout.expired():
                timeout.reschedule(min(timeout.when() or latest, latest))


async def run_cleanup(
    state: State, handlers: list[Callable[..., Any]], candidates: dict[str, Any], seconds: float | None = None
) -> None:
    """Run every handler, each within its deadline (`seconds`); a failing one is recorded and the next one runs.

    Shielded: a cancelled rollout still releases what it holds, and so does one cancelled twice.
    """
    patience = _Patience(seconds)
    await shielded(_run_handlers(state, handlers, candidates, patience), patience.shorten)


async def _run_handlers(
    state: State, handlers: list[Callable[..., Any]], candidates: dict[str, Any], patience: _Patience
) -> None:
    for handler in handlers:
        await clean_up(
            state, function_name(handler), functools.partial(call_with, handler, candidates), patience
        )


async def clean_up(
    state: State, name: str, work: Callable[[], Awaitable[Any]], patience: _Patience | None = None
) -> None:
    """Do one piece of cleanup within its deadline; what fails is recorded under `name`. Not shielded."""
    patience = patience or _Patience()
    # A task of its own: one that swallows its cancellation is left to itself.
    task = asyncio.create_task(_clean_up(state, name, work, patience))
    with contextlib.suppress(TimeoutError):
        async with patience.limit(GRACE_S):
            await asyncio.wait({task})
    if task.done():
        task.result()
    else:
        await ends_within(task, 0)
        _record_cleanup_error(state, name, TimeoutError("it does not end"))


async def _clean_up(state: State, name: str, work: Callable[[], Awaitable[Any]], patience: _Patience) -> None:
    try:
        async with patience.limit():
            await work()
    except BaseException as error:  # boundary: the other handlers must still run
        if not is_failure(error):
            raise
        _record_cleanup_error(state, name, error)


def _record_cleanup_error(state: State, name: str, error: BaseException) -> None:
    typed = as_error(error, EnvironmentCodeError, f"cleanup handler {name}")
    state.setdefault("cleanup_errors", []).append({"handler": name, **error_record(typed)})
    logger.warning("cleanup handler %s failed: %s", name, typed)
