"""Which rollout the running code belongs to, what it has spent, and what it may spend.

The engine opens a `Scope` around each attempt of a rollout, below one for the run. A client finds it in
`current_scope` and charges it; whoever decides about going on asks `reached`. A scope is seen by all code that runs
for the rollout, also in the threads of synchronous functions, whatever objects that code was handed.

    with entered(Scope(Limit(tokens=20_000), parent=run)) as scope:
        ...
        if (name := scope.reached()) is not None:   # "tokens"
            ...
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from typing import Literal

Phase = Literal["generation", "scoring"]
"""Model calls while scoring are a judge's: they are counted apart and no limit of a rollout ends them."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What a rollout, or a whole run, may spend; None is no limit.

    tokens: input and output tokens, as the endpoint counts them. turns: model calls. cost: US dollars, judges
    included. seconds: of a rollout its working time, which is wall time less what was waited for rate limits; of a run
    the time in which it was played.

    A limit is looked at between two model calls, so the last call may exceed it.
    """

    tokens: int | None = None
    turns: int | None = None
    cost: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
                raise ValueError(f"a limit of {item.name} is a number above 0, not {value!r}")

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) is not None for item in fields(self))


@dataclass(slots=True)
class Spending:
    """What model calls took: their number, tokens, and US dollars; `unpriced` calls have no known price."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    unpriced: int = 0

    def add(self, input_tokens: int, output_tokens: int, cost: float | None) -> None:
        """Count one call."""
        self.calls += 1
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        if cost is None:
            self.unpriced += 1
        else:
            self.cost += cost


class Scope:
    """One rollout attempt, or the run that it belongs to (`parent` of the attempts)."""

    __slots__ = (
        *("attempt", "example_id", "judge", "limit", "parent", "phase", "rollout_id", "rollout_index"),
        *("spent", "started", "waited_s", "_waiting", "_waits_since"),
    )

    def __init__(
        self,
        limit: Limit | None = None,
        *,
        parent: Scope | None = None,
        rollout_id: str = "",
        example_id: int = 0,
        rollout_index: int = 0,
        attempt: int = 1,
        phase: Phase = "generation",
    ) -> None:
        self.limit = limit or None
        self.parent = parent
        self.rollout_id = rollout_id
        self.example_id = example_id
        self.rollout_index = rollout_index
        self.attempt = attempt
        self.phase: Phase = phase
        self.spent = Spending()
        self.judge = Spending()
        self.waited_s = 0.0
        self.started = time.monotonic()
        self._waiting = 0
        self._waits_since = 0.0

    def charge(self, input_tokens: int, output_tokens: int, cost: float | None) -> None:
        """Count one model call here and in every scope around."""
        scope: Scope | None = self
        while scope is not None:
            spending = scope.judge if self.phase == "scoring" else scope.spent
            spending.add(input_tokens, output_tokens, cost)
            scope = scope.parent

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around a wait for a rate limit. What is waited side by side counts once, as it takes the time of one."""
        self._waiting += 1
        if self._waiting == 1:
            self._waits_since = time.monotonic()
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self.waited_s += time.monotonic() - self._waits_since

    def _worked_s(self) -> float:
        now = time.monotonic()
        waits = now - self._waits_since if self._waiting else 0.0
        return now - self.started - self.waited_s - waits

    def reached(self) -> str | None:
        """The name of the limit of this scope that is used up, None while there is none."""
        limit = self.limit
        if limit is None:
            return None
        spent = self.spent
        if limit.tokens is not None and spent.input_tokens + spent.output_tokens >= limit.tokens:
            return "tokens"
        if limit.turns is not None and spent.calls >= limit.turns:
            return "turns"
        if limit.cost is not None and spent.cost + self.judge.cost >= limit.cost:
            return "cost"
        if limit.seconds is not None and self._worked_s() >= limit.seconds:
            return "seconds"
        return None


current_scope: contextvars.ContextVar[Scope | None] = contextvars.ContextVar("scope", default=None)
"""The scope that the running code belongs to; None outside of the engine."""


class _Entered:
    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> Scope:
        self._token = current_scope.set(self._scope)
        return self._scope

    def __exit__(self, *_: object) -> None:
        current_scope.reset(self._token)


def entered(scope: Scope) -> AbstractContextManager[Scope]:
    """Make `scope` the current one within the block."""
    return _Entered(scope)
