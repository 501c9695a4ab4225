"""What a decoder knows of its slots, as arrays: an operation on all slots costs what one on a single slot does.

A slot of the cache holds a sequence: its tokens, of which the first `fed` have keys and values there. A running slot
has one token more, which the next step feeds. A free slot keeps what it has until another request takes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from verifiers.clients.sampler import Completion
from verifiers.train.engines.requests import Request
from verifiers.types import FinishReason

CLEAR = 1.0 - 2.0**-40
"""Draws stay this clear of 1: rounded sums of probabilities may end a little below it."""


class Slots:
    """Rows of arrays, one a slot. `vocabulary`: how many token ids there are."""

    def __init__(self, count: int, vocabulary: int) -> None:
        self.requests: list[Request | None] = [None] * count
        self.active = np.zeros(count, bool)
        """Which slots have a request."""
        self.fed = np.zeros(count, np.int64)
        self.tokens = np.zeros((count, 64), np.int64)
        self.temperatures = np.ones(count, np.float32)
        self.epochs = np.full(count, -1)
        """The epoch of the weights that made all keys and values of a slot, -1 if there were several."""
        self.left = np.zeros(count, np.int64)
        """When a slot became free, in tokens sampled until then."""
        self._logprobs = np.zeros((count, 64), np.float32)
        self._versions = np.zeros((count, 64), np.int64)
        self._ends = np.zeros(count, np.int64)
        """How long sequences get at most, prompt and reply."""
        self._keys = np.zeros(count, np.uint64)
        self._watched = np.zeros(count, bool)
        """Which replies a text may end."""
        self._stops = np.zeros(vocabulary, bool)
        """Which tokens have ever ended a reply of some request: only they are looked at."""

    def reserve(self, length: int) -> None:
        """Have room for that many tokens in each."""
        if length > self.tokens.shape[1]:
            wanted = max(length, 2 * self.tokens.shape[1])
            self.tokens, self._logprobs, self._versions = (
                widened(array, wanted) for array in (self.tokens, self._logprobs, self._versions)
            )

    def seat(self, slot: int, request: Request, prompt: Any, fed: int, epoch: int) -> None:
        """Give a slot to a request, of whose prompt (an array) the first `fed` tokens are in the cache."""
        self.requests[slot] = request
        self.active[slot] = True
        self.tokens[slot, : len(prompt)] = prompt
        self.fed[slot] = fed
        self.epochs[slot] = epoch
        self.temperatures[slot] = request.sampling.temperature
        self._ends[slot] = len(prompt) + request.limit
        self._keys[slot] = request.key
        self._watched[slot] = bool(request.sampling.stop)
        for token in request.stop_ids:
            if token < len(self._stops):
                self._stops[token] = True

    def free(self, slot: int, when: int) -> None:
        """Take a slot from its request."""
        self.requests[slot] = None
        self.active[slot] = False
        self.left[slot] = when

    def move(self, sources: list[int], targets: list[int]) -> None:
        """Requests of slots go to free slots, with all but `fed`."""
        for array in (self.tokens, self._logprobs, self._versions, self.temperatures, self.epochs):
            array[targets] = array[sources]
        for array in (self._ends, self._keys, self._watched):
            array[targets] = array[sources]
        for source, target in zip(sources, targets, strict=True):
            self.requests[target], self.requests[source] = self.requests[source], None
        self.active[sources], self.active[targets] = False, True

    def draws(self, slots: Any) -> Any:
        """The next random number of each slot [N], float64 in [0, 1) and clear of 1: SplitMix64, where the request's
        key is the state to begin with and the token's place the number of steps."""
        state = self._keys[slots] + (self.fed[slots].astype(np.uint64) + 1) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> 30)) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> 27)) * np.uint64(0x94D049BB133111EB)
        return ((state ^ (state >> 31)) >> 11) * (2.0**-53 * CLEAR)

    def append(self, slots: Any, tokens: Any, logprobs: Any, version: int) -> list[int]:
        """Put a token [N] behind what each slot has been fed; the slots whose replies it may end."""
        places = self.fed[slots]
        self.tokens[slots, places] = tokens
        self._logprobs[slots, places] = logprobs
        self._versions[slots, places] = version
        ending = self._stops[tokens] | self._watched[slots] | (places + 1 >= self._ends[slots])
        ended: list[int] = slots[ending].tolist()
        return ended

    def reply(self, slot: int, most: int | None = None) -> list[int]:
        """The tokens of a slot's reply, or the last `most` of them."""
        request, end = self.requests[slot], int(self.fed[slot]) + 1
        assert request is not None
        begin = len(request.prompt)
        tokens: list[int] = self.tokens[slot, begin if most is None else max(begin, end - most) : end].tolist()
        return tokens

    def is_full(self, slot: int) -> bool:
        """Whether a reply has all the tokens that it may have."""
        return bool(self.fed[slot] + 1 >= self._ends[slot])

    def completion(self, slot: int, reason: FinishReason, routes: Any) -> Completion:
        """A slot's reply."""
        tokens, end = self.reply(slot), int(self.fed[slot]) + 1
        part = slice(end - len(tokens), end)
        logprobs, versions = self._logprobs[slot, part], self._versions[slot, part]
        return Completion(tokens, logprobs.tolist(), versions.tolist(), reason, routes)


def widened(array: Any, columns: int) -> Any:
    """An array [rows, columns, …] with more columns, of zeros."""
    wider = np.zeros((array.shape[0], columns, *array.shape[2:]), array.dtype)
    wider[:, : array.shape[1]] = array
    return wider
