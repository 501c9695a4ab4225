"""What a decoder works on: a request for one reply, and how much a decoder may hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from verifiers.clients.sampler import Completion
from verifiers.errors import EngineError, Error
from verifiers.train.engines.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Limits:
    """max_batch: sequences that are decoded together. max_context: tokens of one, prompt and reply."""

    max_batch: int
    max_context: int


@dataclass(slots=True, eq=False)
class Request:
    """A prompt in work. `deliver` is called once, with the completion or with the error that ended it."""

    prompt: list[int]
    sampling: Sampling
    deliver: Callable[[Completion | Error], None]
    stop_ids: frozenset[int] = frozenset()
    limit: int = 0
    """Tokens of the reply at most: what was asked for and what fits."""
    cancelled: bool = False
    key: int = 0
    """What the request's own random numbers follow from, 64 bits."""


def again(error: EngineError) -> EngineError:
    """The same error for another caller: a raised one gathers tracebacks."""
    return EngineError(*error.args, hint=error.hint, cause=error.__cause__)
