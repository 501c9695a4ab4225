"""Continuous batching without threads: requests join and leave between tokens; `step` samples one token for each.

    decoder = Decoder(runner, Limits(max_batch=32, max_context=1024), seed=0)
    decoder.submit(Request(prompt, read_sampling(params), deliver))      # deliver(Completion or Error) at its end
    while decoder.busy:
        decoder.step()

A slot of the cache holds a sequence: its tokens, of which the first `fed` have keys and values there. A running slot
has one token more, which the next step feeds. A free slot keeps what it has, and a prompt that begins alike takes it
over: the members of a group share one pass over their prompt, and a rollout's next turn feeds only what is new.

What is sampled depends on the request's seed, its prompt and the weights: each request has random numbers of its own.
That the *bits* of logits do not depend on the company either takes `deterministic` (see `verifiers.train.engines.
torch_engine`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import torch

from verifiers.clients.sampler import Completion
from verifiers.errors import EngineError
from verifiers.train.engines.cache import KvCache
from verifiers.train.engines.forward import PREFILL_TOKENS, Runner
from verifiers.train.engines.requests import Limits, Request, again
from verifiers.types import FinishReason

MIN_ROWS = 8
"""Rows of a deterministic step at least: matrix products of fewer rows are summed in another order."""

MIN_SHARED = 8
"""Tokens of a common beginning below which it is not worth looking up."""

class Decoder:
    """Slots, what waits for one, and the step. Not thread-safe, except for `Request.cancelled`."""

    def __init__(
        self,
        runner: Runner,
        limits: Limits,
        *,
        version: int = 0,
        seed: int = 0,
        deterministic: bool = False,
        decode: Callable[[list[int]], str] | None = None,
    ) -> None:
        self.runner = runner
        self.limits = limits
        self.version = version
        self.waiting: deque[Request] = deque()
        self.sampled = 0
        """Tokens sampled so far."""
        self.fed = 0
        """Tokens of prompts that went through the model; what was shared is not counted."""
        self._seeds = Random(seed)
        self._deterministic = deterministic
        self._decode = decode
        self._cache = KvCache(limits.max_batch, limits.max_context)
        self._slots: list[Request | None] = [None] * limits.max_batch
        self._active = np.zeros(limits.max_batch, bool)
        """Which slots have a request."""
        self._used = [0] * limits.max_batch
        self._epoch = 0
        self._epochs = np.full(limits.max_batch, -1)
        """The epoch of the weights that made all keys and values of a slot, -1 if there were several."""
        self._fed = np.zeros(limits.max_batch, np.int64)
        self._tokens = np.zeros((limits.max_batch, 64), np.int64)
        self._temperatures = np.ones(limits.max_batch, np.float32)
        self._routes: Any = None

    # --- requests ---------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request. Its prompt has been checked."""
        room = self.limits.max_context - len(request.prompt)
        request.limit = min(room, request.sampling.max_tokens or room)
        seed = request.sampling.seed
        # A rollout asks every turn with its one seed: the prompt's length gives each turn other numbers.
        request.random = Random(self._seeds.getrandbits(64) if seed is None else seed << 32 | len(request.prompt))
        self.waiting.append(request)

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self.waiting) or bool(self._active.any())

    @property
    def running(self) -> int:
        """How many requests have a slot."""
        return int(self._active.sum())

    def fail(self, error: EngineError) -> None:
        """End every request with `error`."""
        ended = [*self.waiting, *(request for request in self._slots if request is not None)]
        self.waiting.clear()
        self._slots = [None] * len(self._slots)
        self._active[:] = False
        for request in ended:
            request.deliver(again(error))

    def weights_changed(self, version: int, *, recompute: bool) -> None:
        """Name the weights that are in the model from now on. Keys and values of running requests stay as the earlier
        weights made them, or are made again."""
        self.version = version
        self._epoch += 1
        running = np.flatnonzero(self._active).tolist()
        self._epochs[running] = -1
        if recompute and running:
            items = [(slot, 0, int(self._fed[slot])) for slot in running]
            with torch.inference_mode():
                self._feed(items, again=True)
            self._epochs[running] = self._epoch

    # --- the step ---------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Drop cancelled requests, admit waiting ones, sample a token for each that runs."""
        self._drop_cancelled()
        with torch.inference_mode():
            if self.waiting:
                self._admit()
            if self._active.any():
                self._decode_token()

    def _drop_cancelled(self) -> None:
        if any(request.cancelled for request in self.waiting):
            self.waiting = deque(request for request in self.waiting if not request.cancelled)
        for slot, request in enumerate(self._slots):
            if request is not None and request.cancelled:
                self._free(slot)

    def _free(self, slot: int) -> None:
        self._slots[slot] = None
        self._active[slot] = False
        self._used[slot] = self.sampled

    def _decode_token(self) -> None:
        count = self._compacted()
        active = np.flatnonzero(self._active)
        if self._deterministic:
            count = max(count, min(MIN_ROWS, self.limits.max_batch))
        # A free slot is fed along, at padding: what it holds stays as it is.
        places = np.where(self._active[:count], self._fed[:count], -1)
        ids = self._tokens[np.arange(count), np.maximum(places, 0)]
        self._reserve(count, int(places.max()) + 1)
        logits = self.runner.forward(
            self._cache, count, torch.from_numpy(places[:, None]), torch.from_numpy(ids[:, None])
        )
        if self._routes is not None:
            self._routes[active, self._fed[active]] = self.runner.routes(count)[active]
        self._fed[active] += 1
        self._sample(active.tolist(), logits if len(active) == count else logits[active])

    def _compacted(self) -> int:
        """Rows of the next step: the last running slot and all below. Few that are spread far move together."""
        running = np.flatnonzero(self._active).tolist()
        count: int = running[-1] + 1
        if count <= MIN_ROWS or 2 * len(running) > count:
            return count
        targets = [slot for slot in range(len(running)) if self._slots[slot] is None]
        sources = running[len(running) - len(targets) :]
        self._take_over(sources, targets)
        for array in (self._tokens, self._temperatures, self._epochs):
            array[targets] = array[sources]
        for source, target in zip(sources, targets, strict=True):
            self._slots[target], self._slots[source] = self._slots[source], None
        self._active[sources], self._active[targets] = False, True
        self._fed[sources] = 0
        return len(running)

    def _sample(self, slots: Sequence[int], logits: Any) -> None:
        """Sample a token for each slot from logits [N, V], and end the requests that end with it."""
        requests = [request for slot in slots if (request := self._slots[slot]) is not None]
        draws = torch.tensor([request.draw() for request in requests], dtype=torch.float64)
        temperatures = self._temperatures[slots]
        chosen, values = _choose(
            logits,
            torch.from_numpy(temperatures).to(logits.device),
            draws.to(logits.device),
            greedy=not temperatures.all(),
        )
        tokens, logprobs = chosen.tolist(), values.tolist()
        if not math.isfinite(sum(logprobs)):
            raise EngineError(
                "the model's logits are not finite",
                hint="The last update broke the weights: lower trainer.lr, and go on from a checkpoint before it.",
            )
        self.sampled += len(tokens)
        self._tokens[slots, self._fed[slots]] = tokens
        for slot, request, token, logprob in zip(slots, requests, tokens, logprobs, strict=True):
            request.tokens.append(token)
            request.logprobs.append(logprob)
            request.versions.append(self.version)
            reason = self._ending(request, token)
            if reason is not None:
                self._free(slot)
                request.deliver(self._completion(slot, request, reason))

    def _ending(self, request: Request, token: int) -> FinishReason | None:
        if token in request.stop_ids:
            return "stop"
        if request.sampling.stop and self._has_stop(request):
            return "stop"
        return "length" if len(request.tokens) >= request.limit else None

    def _has_stop(self, request: Request) -> bool:
        assert self._decode is not None
        # A stop text has no more tokens than bytes; a few more tell a character that is not complete.
        reach = max(len(text.encode()) for text in request.sampling.stop) + 4
        text = self._decode(request.tokens[-reach:])
        return any(stop in text for stop in request.sampling.stop)

    def _completion(self, slot: int, request: Request, reason: FinishReason) -> Completion:
        routes = None
        if self._routes is not None:
            routes = self._routes[slot, : len(request.prompt) + len(request.tokens) - 1].copy()
        return Completion(request.tokens, request.logprobs, request.versions, reason, routes)

    # --- prompts ----------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Give waiting requests slots, feed their prompts, sample their first tokens."""
        leaders: dict[bytes, int] = {}
        followers: list[tuple[int, int]] = []
        items: list[tuple[int, int, int]] = []
        free = self._free_slots()
        while self.waiting and free:
            request = self.waiting.popleft()
            prompt = np.array(request.prompt, np.int64)
            leader = leaders.get(key := prompt.tobytes())
            source, shared = (-1, 0) if leader is not None or self._deterministic else self._shared(prompt)
            slot = source if source in free else free[0]
            free.remove(slot)
            self._reserve(slot + 1, len(prompt) + 1)
            if shared and slot != source:
                self._take_over([source], [slot], shared)
            self._seat(slot, request, prompt, shared)
            if leader is not None:
                followers.append((leader, slot))
            else:
                leaders[key] = slot
                items.append((slot, shared, len(prompt)))
        if items:
            self._begin(items, followers)

    def _begin(self, items: list[tuple[int, int, int]], followers: list[tuple[int, int]]) -> None:
        logits = self._feed(items)
        index = {slot: number for number, (slot, _, _) in enumerate(items)}
        if followers:
            self._take_over([leader for leader, _ in followers], [slot for _, slot in followers])
        slots = [slot for slot, _, _ in items] + [slot for _, slot in followers]
        order = [index[slot] for slot, _, _ in items] + [index[leader] for leader, _ in followers]
        self._sample(slots, logits[order])

    def _seat(self, slot: int, request: Request, prompt: Any, shared: int) -> None:
        self._slots[slot] = request
        self._active[slot] = True
        self._tokens[slot, : len(prompt)] = prompt
        self._fed[slot] = shared
        self._epochs[slot] = self._epoch
        self._temperatures[slot] = request.sampling.temperature

    def _free_slots(self) -> list[int]:
        """Free slots, those first that hold nothing of use, then those that were left longest ago."""
        useful = (self._epochs == self._epoch) & (self._fed > 0)
        free = np.flatnonzero(~self._active).tolist()
        return sorted(free, key=lambda slot: (self._used[slot] if useful[slot] else -1, slot))

    def _shared(self, prompt: Any) -> tuple[int, int]:
        """The slot with the longest common beginning of present keys and values, and its length; (-1, 0) if short."""
        most = min(len(prompt) - 1, self._tokens.shape[1])
        if most < MIN_SHARED:
            return -1, 0
        differ = self._tokens[:, :most] != prompt[:most]
        common = np.where(differ.any(axis=1), differ.argmax(axis=1), most)
        common = np.where(self._epochs == self._epoch, np.minimum(common, self._fed), 0)
        source = int(common.argmax())
        return (source, int(common[source])) if common[source] >= MIN_SHARED else (-1, 0)

    def _take_over(self, sources: list[int], targets: list[int], length: int | None = None) -> None:
        """Copy keys, values and routes of the first tokens (of all that are fed) from slots to slots."""
        length = int(self._fed[sources].max()) if length is None else length
        self._cache.copy(sources, targets, length)
        if self._routes is not None:
            self._routes[targets, :length] = self._routes[sources, :length]
        self._fed[targets] = np.minimum(self._fed[sources], length)

    def _feed(self, items: list[tuple[int, int, int]], *, again: bool = False) -> Any:
        """Feed the tokens [begin, end) of slots, several slots in one pass where they are of like length.

        Returns logits [len(items), V] of each one's last token. With `again` the routes stay those of the first time:
        it is those that the tokens were sampled by.
        """
        logits: list[Any] = [None] * len(items)
        order = sorted(range(len(items)), key=lambda number: items[number][2] - items[number][1])
        while order:
            batch = [order.pop()]
            longest = items[batch[0]][2] - items[batch[0]][1]
            while order and not self._deterministic and (len(batch) + 1) * longest <= PREFILL_TOKENS:
                batch.append(order.pop())
            fed = self._feed_together([items[number] for number in batch], again)
            for number, row in zip(batch, fed, strict=True):
                logits[number] = row
        return torch.stack(logits)

    def _feed_together(self, items: list[tuple[int, int, int]], again: bool) -> Any:
        """One batch, padded on the left, in pieces of at most PREFILL_TOKENS."""
        width = max(end - begin for _, begin, end in items)
        slots = np.array([slot for slot, _, _ in items])
        places = np.full((len(items), width), -1)
        for row, (_, begin, end) in enumerate(items):
            places[row, width - (end - begin) :] = np.arange(begin, end)
        ids = np.where(places < 0, 0, self._tokens[slots[:, None], places])
        piece = max(1, PREFILL_TOKENS // len(items))
        logits = None
        for at in range(0, width, piece):
            part = np.ascontiguousarray(places[:, at : at + piece])
            logits = self.runner.forward(
                self._cache,
                torch.from_numpy(slots),
                torch.from_numpy(part),
                torch.from_numpy(np.ascontiguousarray(ids[:, at : at + piece])),
            )
            if self.runner.routed_layers and not again:
                self._keep_routes(slots, part)
        for slot, begin, end in items:
            self._fed[slot] = end
            self.fed += end - begin
        return logits

    def _keep_routes(self, slots: Any, places: Any) -> None:
        routes = self.runner.routes(places.size)
        if self._routes is None:
            shape = (self.limits.max_batch, self._tokens.shape[1], *routes.shape[1:])
            self._routes = np.zeros(shape, np.int16)
        rows, columns = np.nonzero(places >= 0)
        self._routes[slots[rows], places[rows, columns]] = routes[rows * places.shape[1] + columns]

    def _reserve(self, slots: int, length: int) -> None:
        """Have room for `length` tokens in each of the first `slots` slots."""
        self._cache.reserve(slots, length)
        if length + 1 > self._tokens.shape[1]:
            self._tokens = _widened(self._tokens, max(length + 1, 2 * self._tokens.shape[1]))
            if self._routes is not None:
                self._routes = _widened(self._routes, self._tokens.shape[1])


def _choose(logits: Any, temperatures: Any, draws: Any, *, greedy: bool) -> tuple[Any, Any]:
    """Tokens [N] and their logprobs [N] from logits [N, V] in float32; draws [N] float64 in [0, 1).

    By inversion of the distribution function, in float64: one random number a token. The first token whose sum exceeds
    the draw has a probability above 0; one is there (`Request.draw` stays clear of 1) unless logits are NaN.
    greedy: whether a temperature is 0.
    """
    scale = torch.where(temperatures > 0, temperatures, 1.0) if greedy else temperatures
    logprobs = torch.log_softmax(logits / scale[:, None], dim=-1)
    sums = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    tokens = torch.searchsorted(sums, draws[:, None] * sums[:, -1:], right=True).clamp_max(logits.shape[1] - 1)
    if greedy:
        tokens = torch.where(temperatures[:, None] > 0, tokens, logprobs.argmax(dim=-1, keepdim=True))
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0]


def _widened(array: Any, columns: int) -> Any:
    wider = np.zeros((array.shape[0], columns, *array.shape[2:]), array.dtype)
    wider[:, : array.shape[1]] = array
    return wider
