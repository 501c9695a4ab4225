"""Continuous batching without threads: requests join and leave between tokens; `step` samples one token for each.

    decoder = Decoder(runner, Limits(max_batch=32, max_context=1024), seed=0)
    decoder.submit(Request(prompt, read_sampling(params), deliver))      # deliver(Completion or Error) at its end
    while decoder.busy:
        decoder.step()

A sequence has a slot of the cache (`verifiers.train.engines.slots`). A free slot keeps what it has, and a prompt that
begins alike takes it over: the members of a group share one pass over their prompt, and a rollout's next turn feeds
only what is new.

What is sampled depends on the request's seed, its prompt and the weights: each request has random numbers of its own.
That the *bits* of logits do not depend on the company either takes `deterministic` (see `verifiers.train.engines.
torch_engine`).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import torch

from verifiers.errors import EngineError
from verifiers.train.engines.cache import KvCache
from verifiers.train.engines.forward import PREFILL_TOKENS, Runner
from verifiers.train.engines.requests import Limits, Request, again
from verifiers.train.engines.slots import Slots, widened
from verifiers.types import FinishReason

MIN_ROWS = 8
"""Rows of a deterministic step at least: matrix products of fewer rows are summed in another order."""

MIN_SHARED = 8
"""Tokens of a common beginning below which it is not worth looking up."""

CACHED = 1 << 16
"""Numbers that a CPU's cache holds: rows of logits are worked on in pieces of so many."""


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
        self._slots = Slots(limits.max_batch, runner.vocabulary)
        self._rows = np.arange(limits.max_batch)
        self._epoch = 0
        self._routes: Any = None

    # --- requests ---------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Queue a request. Its prompt has been checked."""
        room = self.limits.max_context - len(request.prompt)
        request.limit = min(room, request.sampling.max_tokens or room)
        seed = request.sampling.seed
        if seed is None:
            request.key = self._seeds.getrandbits(64)
        else:  # a rollout asks every turn with its one seed: the prompt's length gives each turn other numbers
            named = f"{seed} {len(request.prompt)}".encode()
            request.key = int.from_bytes(hashlib.blake2b(named, digest_size=8).digest())
        self.waiting.append(request)

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self.waiting) or bool(self._slots.active.any())

    @property
    def running(self) -> int:
        """How many requests have a slot."""
        return int(self._slots.active.sum())

    def fail(self, error: EngineError) -> None:
        """End every request with `error`."""
        ended = [*self.waiting, *(request for request in self._slots.requests if request is not None)]
        self.waiting.clear()
        for slot in np.flatnonzero(self._slots.active).tolist():
            self._free(slot)
        for request in ended:
            request.deliver(again(error))

    def weights_changed(self, version: int, *, recompute: bool) -> None:
        """Name the weights that are in the model from now on. Keys and values of running requests stay as the earlier
        weights made them, or are made again."""
        self.version = version
        self._epoch += 1
        running = np.flatnonzero(self._slots.active)
        self._slots.epochs[running] = -1
        if recompute and len(running):
            items = [(slot, 0, int(self._slots.fed[slot])) for slot in running.tolist()]
            with torch.inference_mode():
                self._feed(items, again=True)
            self._slots.epochs[running] = self._epoch

    # --- the step ---------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Drop cancelled requests, admit waiting ones, sample a token for each that runs."""
        self._drop_cancelled()
        with torch.inference_mode():
            if self.waiting:
                self._admit()
            if self._slots.active.any():
                self._decode_token()

    def _drop_cancelled(self) -> None:
        if any(request.cancelled for request in self.waiting):
            self.waiting = deque(request for request in self.waiting if not request.cancelled)
        for slot, request in enumerate(self._slots.requests):
            if request is not None and request.cancelled:
                self._free(slot)

    def _free(self, slot: int) -> None:
        self._slots.free(slot, self.sampled)

    def _decode_token(self) -> None:
        slots = self._slots
        count = self._compacted()
        active = np.flatnonzero(slots.active)
        if self._deterministic:
            count = max(count, min(MIN_ROWS, self.limits.max_batch))
        all_run = len(active) == count
        # A free slot is fed along, at padding: what it holds stays as it is.
        places = slots.fed[:count] if all_run else np.where(slots.active[:count], slots.fed[:count], -1)
        ids = slots.tokens[self._rows[:count], places if all_run else np.maximum(places, 0)]
        self._reserve(count, int(places.max()) + 1)
        logits = self.runner.forward(
            self._cache, count, torch.from_numpy(places[:, None]), torch.from_numpy(ids[:, None])
        )
        if self._routes is not None:
            self._routes[active, slots.fed[active]] = self.runner.routes(count)[active]
        slots.fed[active] += 1
        self._sample(active, logits if all_run else logits[torch.from_numpy(active)])

    def _compacted(self) -> int:
        """Rows of the next step: the last running slot and all below. Few that are spread far move together."""
        active = self._slots.active
        running = np.flatnonzero(active)
        count = int(running[-1]) + 1
        if count <= MIN_ROWS or 2 * len(running) > count:
            return count
        targets = np.flatnonzero(~active[: len(running)]).tolist()
        sources = running[len(running) - len(targets) :].tolist()
        self._take_over(sources, targets)
        self._slots.move(sources, targets)
        self._slots.fed[sources] = 0
        return len(running)

    def _sample(self, slots: Any, logits: Any) -> None:
        """Sample a token for each slot [N] from logits [N, V], and end the requests that end with it."""
        chosen, values = _choose(logits, self._slots.temperatures[slots], self._slots.draws(slots))
        tokens, logprobs = chosen.cpu().numpy(), values.cpu().numpy()
        if not np.isfinite(logprobs).all():
            raise EngineError(
                "the model's logits are not finite",
                hint="The last update broke the weights: lower trainer.lr, and go on from a checkpoint before it.",
            )
        self.sampled += len(tokens)
        for slot in self._slots.append(slots, tokens, logprobs, self.version):
            request = self._slots.requests[slot]
            assert request is not None
            reason = self._ending(slot, request)
            if reason is not None:
                completion = self._slots.completion(slot, reason, self._routes_of(slot))
                self._free(slot)
                request.deliver(completion)

    def _ending(self, slot: int, request: Request) -> FinishReason | None:
        if self._slots.reply(slot, 1)[0] in request.stop_ids:
            return "stop"
        if request.sampling.stop and self._has_stop(slot, request):
            return "stop"
        return "length" if self._slots.is_full(slot) else None

    def _has_stop(self, slot: int, request: Request) -> bool:
        assert self._decode is not None
        # A stop text has no more tokens than bytes; a few more tell a character that is not complete.
        reach = max(len(text.encode()) for text in request.sampling.stop) + 4
        text = self._decode(self._slots.reply(slot, reach))
        return any(stop in text for stop in request.sampling.stop)

    def _routes_of(self, slot: int) -> Any:
        return None if self._routes is None else self._routes[slot, : self._slots.fed[slot]].copy()

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
            self._slots.seat(slot, request, prompt, shared, self._epoch)
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
        slots = np.array([slot for slot, _, _ in items] + [slot for _, slot in followers])
        order = [index[slot] for slot, _, _ in items] + [index[leader] for leader, _ in followers]
        self._sample(slots, logits[torch.tensor(order)])

    def _free_slots(self) -> list[int]:
        """Free slots, those first that hold nothing of use, then those that were left longest ago."""
        slots = self._slots
        when = np.where((slots.epochs == self._epoch) & (slots.fed > 0), slots.left, -1)
        free = np.flatnonzero(~slots.active)
        ordered: list[int] = free[np.argsort(when[free], kind="stable")].tolist()
        return ordered

    def _shared(self, prompt: Any) -> tuple[int, int]:
        """The slot with the longest common beginning of present keys and values, and its length; (-1, 0) if short."""
        slots = self._slots
        most = min(len(prompt) - 1, slots.tokens.shape[1])
        if most < MIN_SHARED:
            return -1, 0
        differ = slots.tokens[:, :most] != prompt[:most]
        common = np.where(differ.any(axis=1), differ.argmax(axis=1), most)
        common = np.where(slots.epochs == self._epoch, np.minimum(common, slots.fed), 0)
        source = int(common.argmax())
        return (source, int(common[source])) if common[source] >= MIN_SHARED else (-1, 0)

    def _take_over(self, sources: list[int], targets: list[int], length: int | None = None) -> None:
        """Copy keys, values and routes of the first tokens (of all that are fed) from slots to slots."""
        length = int(self._slots.fed[sources].max()) if length is None else length
        self._cache.copy(sources, targets, length)
        if self._routes is not None:
            self._routes[targets, :length] = self._routes[sources, :length]
        self._slots.fed[targets] = np.minimum(self._slots.fed[sources], length)

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
        ids = np.where(places < 0, 0, self._slots.tokens[slots[:, None], places])
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
            self._slots.fed[slot] = end
            self.fed += end - begin
        return logits

    def _keep_routes(self, slots: Any, places: Any) -> None:
        routes = self.runner.routes(places.size)
        if self._routes is None:
            shape = (self.limits.max_batch, self._slots.tokens.shape[1], *routes.shape[1:])
            self._routes = np.zeros(shape, np.int16)
        rows, columns = np.nonzero(places >= 0)
        self._routes[slots[rows], places[rows, columns]] = routes[rows * places.shape[1] + columns]

    def _reserve(self, slots: int, length: int) -> None:
        """Have room for `length` tokens in each of the first `slots` slots."""
        self._cache.reserve(slots, length)
        self._slots.reserve(length + 1)
        width = self._slots.tokens.shape[1]
        if self._routes is not None and self._routes.shape[1] < width:
            self._routes = widened(self._routes, width)


def _choose(logits: Any, temperatures: Any, draws: Any) -> tuple[Any, Any]:
    """Tokens [N] and their logprobs [N] from logits [N, V] in float32, and numpy's temperatures [N] and draws [N] in
    [0, 1).

    By inversion of the distribution function, in float64: one random number a token. The first token whose sum exceeds
    the draw has a probability above 0; one is there (`Slots.draws` stay clear of 1) unless logits are NaN. Temperature
    0 takes the likeliest token.
    """
    if logits.device.type == "cpu" and logits.numel() > CACHED and len(logits) > 1:
        rows = max(1, CACHED // logits.shape[1])
        parts = [slice(at, at + rows) for at in range(0, len(logits), rows)]
        chosen = [_choose(logits[part], temperatures[part], draws[part]) for part in parts]
        return torch.cat([tokens for tokens, _ in chosen]), torch.cat([logprobs for _, logprobs in chosen])
    if (temperatures != 1.0).any():
        scale = np.where(temperatures > 0, temperatures, np.float32(1.0))
        logits = logits / torch.from_numpy(scale).to(logits.device)[:, None]
    shares = torch.softmax(logits, dim=-1)
    sums = shares.cumsum(dim=-1, dtype=torch.float64)
    drawn = torch.from_numpy(draws).to(logits.device)[:, None]
    tokens = torch.searchsorted(sums, sums[:, -1:] * drawn, right=True).clamp_max_(logits.shape[1] - 1)
    if not temperatures.all():
        warm = torch.from_numpy(temperatures > 0).to(logits.device)[:, None]
        tokens = torch.where(warm, tokens, logits.argmax(dim=-1, keepdim=True))
    return tokens[:, 0], shares.gather(1, tokens)[:, 0].log_()
