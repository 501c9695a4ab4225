"""One forward pass over slots of a cache: masks, positions, the routes of experts, and the check that a model fits.

    runner = Runner(model, device="auto", record_routes=False)
    logits = runner.forward(cache, rows, positions, ids)       # [B, V]: of the last token of each row

Works with transformers' causal language models whose layers attend fully or through a sliding window. What a model
does with our masks and positions is compared with its plain forward pass once (`check`), so that an architecture with
other habits (ALiBi, state spaces) is refused instead of being sampled from wrongly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from verifiers.errors import ConfigError
from verifiers.train.engines.cache import GROWTH, KvCache
from verifiers.train.engines.lean import Lean, fits

LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
PREFILL_TOKENS = 2048
"""What one forward pass over prompts holds at most."""

CHECKED_TOKENS = 12


class Runner:
    """A model that is run, and its device. The model belongs to it: its attention setting may be changed."""

    def __init__(
        self, model: Any, *, device: str = "auto", record_routes: bool = False, row_invariant: bool = False
    ) -> None:
        if device != "auto":
            model.to(device)
        self.model = model.eval().requires_grad_(False)
        self.config = model.config.get_text_config()
        self.device = next(model.parameters()).device
        self.vocabulary = int(self.config.vocab_size)
        self._types = _layer_types(self.config)
        self._window = int(getattr(self.config, "sliding_window", None) or 0)
        self._additive = _attention(model) == "eager"
        self._dtype = next(model.parameters()).dtype
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._keep = {"logits_to_keep": 1} if "logits_to_keep" in parameters else {}
        if row_invariant:
            _set_experts(model, "batched_mm")
        self._columns = torch.arange(64, device=self.device)
        self._routes: list[Any] = []
        self.routed_layers = 0
        if record_routes:
            self._record_routes()
        self._lean: Lean | None = None
        self.weights_changed()
        self.check()

    def forward(self, cache: KvCache, rows: Any, positions: Any, ids: Any, *, all_logits: bool = False) -> Any:
        """Feed ids [B, T] at positions [B, T] to the slots `rows`; logits [B, V] of the last token, float32.

        Padding stands on the left, at position -1. rows: [B] int64, or n for slots 0..n-1 (T = 1 then). With
        all_logits [B, T, V] come back. Runs under inference mode.
        """
        self._routes.clear()
        longest = int(positions.max()) + 1
        window = min(cache.capacity, -(-longest // 16) * 16)
        on = positions.to(self.device)
        places = on.clamp_min(0)
        # -1 becomes the last place, `capacity`.
        cache.place(
            rows if isinstance(rows, int) else rows.to(self.device), on.remainder(cache.capacity + 1), window
        )
        masks = self._masks(places, window)
        if self._lean is not None:
            # Attention turns flags into numbers in each layer anew.
            logits = self._lean(cache, ids.to(self.device), places, self._in_numbers(masks), last=not all_logits)
            return (logits if all_logits else logits[:, 0]).float()
        output = self.model(
            input_ids=ids.to(self.device),
            attention_mask=masks,
            position_ids=places,
            use_cache=True,
            **{self._cache_name: cache},
            **({} if all_logits else self._keep),
        )
        return (output.logits if all_logits else output.logits[:, -1]).float()

    def weights_changed(self) -> None:
        """Weights were loaded, or an adapter came or went: with one, the model runs its own pass."""
        if self._types != ["full_attention"] or not fits(self.model):
            self._lean = None
        elif self._lean is None:
            self._lean = Lean(self.model)

    def routes(self, count: int) -> Any:
        """The experts of the last forward pass: [count tokens, layers, k] int16, on the CPU."""
        stacked = torch.stack([chosen.reshape(count, -1) for chosen in self._routes], dim=1)
        return stacked.to("cpu", torch.int16).numpy()

    def check(self) -> None:
        """ConfigError unless a few tokens give the logits that the model's plain forward pass gives."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, self.vocabulary, (1, CHECKED_TOKENS), generator=generator)
        cache = KvCache(1, GROWTH)
        cache.reserve(1, CHECKED_TOKENS)
        half = CHECKED_TOKENS // 2
        try:
            with torch.inference_mode():
                expected = self.model(input_ids=ids.to(self.device)).logits[0].float()
                row = torch.zeros(1, dtype=torch.int64)
                padded = torch.cat([torch.zeros(1, 2, dtype=torch.int64), ids[:, :half]], dim=1)
                places = torch.cat([torch.full((2,), -1), torch.arange(half)])[None]
                got = [self.forward(cache, row, places, padded)[0]]
                got += [
                    self.forward(cache, 1, torch.tensor([[place]]), ids[:, place : place + 1])[0]
                    for place in range(half, CHECKED_TOKENS)
                ]
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise self._unfit(f"{type(error).__name__}: {error}") from error
        gap = (torch.stack(got) - expected[half - 1 :]).abs().max().item()
        scale = expected.abs().max().item()
        if not gap <= (1e-3 if self._dtype in (torch.float32, torch.float64) else 0.1) * max(1.0, scale):
            raise self._unfit(f"its logits differ by {gap:.2g} from those without a cache")

    def check_rows(self, fewest: int, most: int) -> None:
        """ConfigError unless on this machine a row's logits are the same bits beside few others and beside many."""
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, self.vocabulary, (most, 2), generator=generator)
        first: list[Any] = []
        for count in (fewest, most):
            cache = KvCache(count, GROWTH)
            cache.reserve(count, 2)
            with torch.inference_mode():
                for place in range(2):
                    places = torch.full((count, 1), place)
                    logits = self.forward(cache, count, places, ids[:count, place : place + 1])
            first.append(logits[:fewest])
        if not torch.equal(*first):
            raise ConfigError(
                "on this machine the bits of logits depend on how many sequences are decoded together",
                hint="Leave deterministic off: a seed still gives the same tokens, but for ties in the last bits.",
            )

    def _unfit(self, why: str) -> ConfigError:
        return ConfigError(
            f"the engine can not run {type(self.model).__name__} with its cache: {why}",
            hint="Serve the model with vLLM instead (sampler.kind = \"vllm\").",
        )

    def _masks(self, positions: Any, window: int) -> Any:
        """What each token may look at, in the form that the model takes: by kind of layer if there are several."""
        if len(self._columns) < window:
            self._columns = torch.arange(2 * window, device=self.device)
        columns = self._columns[:window]
        reach = positions[:, None, :, None]
        full = columns <= reach  # padding sees the first column: a softmax without any entry is NaN
        masks = {}
        for kind in self._types:
            mask = full
            if kind == "sliding_attention" and window > self._window:
                mask = full & (columns > reach - self._window)
            masks[kind] = self._in_form(mask)
        return masks if len(masks) > 1 else masks.popitem()[1]

    def _in_form(self, mask: Any) -> Any:
        return self._in_numbers(mask) if self._additive else mask

    def _in_numbers(self, mask: Any) -> Any:
        lowest = torch.finfo(self._dtype).min
        return torch.zeros(mask.shape, dtype=self._dtype, device=self.device).masked_fill_(~mask, lowest)

    def _record_routes(self) -> None:
        """Hook the routers: modules that give, among other things, int64 [tokens, k] of expert numbers."""
        seen: list[Any] = []

        def note(module: Any, _: Any, output: Any) -> None:
            if _chosen(output) is not None:
                seen.append(module)

        named = self.model.named_modules()
        routers = [module for name, module in named if name.rpartition(".")[2] in ("gate", "router")]
        handles = [module.register_forward_hook(note) for module in routers]
        with torch.inference_mode():
            self.model(input_ids=torch.zeros(1, 2, dtype=torch.int64, device=self.device))
        for handle in handles:
            handle.remove()
        if not seen:
            raise ConfigError(
                f"no experts are routed in {type(self.model).__name__}", hint="Leave record_routes off."
            )
        self.routed_layers = len(seen)
        for module in seen:
            module.register_forward_hook(lambda _, __, output: self._routes.append(_chosen(output)))


def _chosen(output: Any) -> Any:
    for item in output if isinstance(output, tuple | list) else ():
        if isinstance(item, torch.Tensor) and item.ndim == 2 and item.dtype == torch.int64:
            return item
    return None


def _layer_types(config: Any) -> list[str]:
    given = getattr(config, "layer_types", None)
    if given is None:
        return ["sliding_attention" if getattr(config, "sliding_window", None) else "full_attention"]
    kinds = sorted(set(given))
    if unknown := set(kinds) - LAYER_TYPES:
        raise ConfigError(
            f"the engine has no cache for layers of kind {', '.join(sorted(unknown))}",
            hint="Serve the model with vLLM instead (sampler.kind = \"vllm\").",
        )
    return kinds


def _attention(model: Any) -> str:
    """The model's attention; one that takes no masks of ours is replaced."""
    present = str(model.config._attn_implementation)
    if present not in ("eager", "sdpa"):
        model.set_attn_implementation("sdpa")
        return "sdpa"
    return present


def _set_experts(model: Any, implementation: str) -> None:
    change: Callable[[str], None] | None = getattr(model, "set_experts_implementation", None)
    if change is not None and getattr(model.config, "_experts_implementation", None) is not None:
        change(implementation)
