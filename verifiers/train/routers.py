"""Routers of a mixture of experts: force the routes that the sampler took, and keep router logits for the aux loss.

    routers = Routers(model)                           # none in a dense model
    with routers.watching(routes, keep=True):          # over forward *and* backward: checkpointing runs layers again
        model(…)
        loss = routers.balance(segments)

Replay (R3, arXiv 2510.11370): sampler and trainer compute in different ways, so near ties fall to different experts,
and the ratio of such a token says nothing about the policy. Forced experts keep gates computed from the trainer's own
router logits, so routers learn as before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from verifiers.errors import ConfigError, EvidenceError


class Routers:
    """The routers of a model in the order of its layers."""

    def __init__(self, model: Any) -> None:
        found = _find(model)
        self.layers = [_layer(name) for name, _ in found]
        self.total_layers = int(getattr(model.config.get_text_config(), "num_hidden_layers", len(found)))
        self._routes: Any = None
        self._keep = False
        self._logits: list[Any] = [None] * len(found)
        self._chosen: list[Any] = [None] * len(found)
        self._gates: list[Gates | None] = [None] * len(found)
        for number, (_, router) in enumerate(found):
            router.register_forward_hook(self._hook(number))

    def __len__(self) -> int:
        return len(self.layers)

    @contextmanager
    def watching(self, routes: Any = None, *, keep: bool = False) -> Iterator[None]:
        """While this lasts routes [tokens, layers, k] are forced where they are not -1, and logits are kept if asked.

        `layers` may count all layers of the model or only those with experts. EvidenceError if it is neither.
        """
        self._routes = None if routes is None else self._of_routers(routes)
        self._keep = keep
        try:
            yield
        finally:
            self._routes, self._keep = None, False
            self._logits = [None] * len(self)
            self._chosen = [None] * len(self)

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """While this lasts a pass through the model, such as its reference's without the adapter, leaves no trace."""
        before, (self._routes, self._keep) = (self._routes, self._keep), (None, False)
        try:
            yield
        finally:
            self._routes, self._keep = before

    def balance(self, segments: Any) -> Any:
        """Scalar: Σ over layers and rows of tokens · E · Σ_e f_e·P_e, to be divided by tokens · layers of the step.

        f_e: share of a row's routes that went to expert e; P_e: mean affinity to e over the row, of affinities that
        sum to 1 (DeepSeek-V3, arXiv 2412.19437, section 2.1.2). Row by row, so that neither packing nor ranks can
        change it; the usual loss over a micro-batch does change. 1 a token when perfectly even. segments: int64
        [tokens], 0 is padding.
        """
        rows = int(segments.max()) + 1 if len(segments) else 1
        total: Any = 0.0
        lengths = torch.bincount(segments, minlength=rows).clamp(min=1)
        for logits, chosen, gates in zip(self._logits, self._chosen, self._gates, strict=True):
            assert gates is not None  # found by the hook that kept the logits
            probabilities = gates.probabilities(logits)
            experts = probabilities.shape[-1]
            sums = probabilities.new_zeros(rows, experts).index_add(0, segments, probabilities)
            hits = torch.zeros_like(probabilities).scatter_add_(1, chosen, torch.ones_like(chosen, dtype=sums.dtype))
            loads = torch.zeros_like(sums).index_add(0, segments, hits) / (lengths[:, None] * chosen.shape[-1])
            total = total + experts * (loads * sums)[1:].sum()
        return total

    def _of_routers(self, routes: Any) -> Any:
        if not len(self):
            raise ConfigError(
                "rows say which experts their tokens went to, and the model has no routers that are known here",
                hint="Set model.router_replay = false, or check that sampler and trainer have the same model.",
            )
        if routes.shape[1] == len(self):
            return routes
        if routes.shape[1] == self.total_layers and None not in self.layers:
            return routes[:, self.layers]
        raise EvidenceError(
            f"rows have experts for {routes.shape[1]} layers; the model has {self.total_layers} layers, "
            f"{len(self)} of them with experts"
        )

    def _hook(self, number: int) -> Callable[[Any, Any, Any], Any]:
        def after(router: Any, _inputs: Any, output: Any) -> Any:
            if self._routes is None and not self._keep:
                return None
            logits, scores, chosen = _parts(output)
            gates = self._gates[number] or _gates_like(router, logits, scores, chosen)
            self._gates[number] = gates
            if self._routes is not None:
                forced = self._routes[:, number]
                chosen = torch.where(forced >= 0, forced, chosen)
                scores = gates(logits, chosen).to(scores.dtype)
            if self._keep:
                self._logits[number], self._chosen[number] = logits, chosen
            return (logits, scores, chosen) if self._routes is not None else None

        return after


def _find(model: Any) -> list[tuple[str, Any]]:
    """Modules whose output the model's family declares to be router logits (`_can_record_outputs`)."""
    kinds: list[type] = []
    for module in model.modules():
        recorder = (getattr(module, "_can_record_outputs", None) or {}).get("router_logits")
        for item in recorder if isinstance(recorder, list | tuple) else [recorder]:
            kind = getattr(item, "target_class", item)
            kinds.extend([kind] if isinstance(kind, type) else [])
    return [(name, module) for name, module in model.named_modules() if kinds and isinstance(module, tuple(kinds))]


def _layer(name: str) -> int | None:
    found = re.search(r"\.layers\.(\d+)\.", f".{name}.")
    return int(found.group(1)) if found else None


def _parts(output: Any) -> tuple[Any, Any, Any]:
    if isinstance(output, tuple) and len(output) == 3:
        return output
    raise ConfigError(
        "the routers of this model do not give (logits, gates, experts), so they can be neither replayed nor balanced",
        hint="Set model.router_replay = false and model.router_aux_coefficient = 0.",
    )


@dataclass(frozen=True, slots=True)
class Gates:
    """How a router makes gates of its logits: an affinity to each expert, of the chosen ones shares if `shares`."""

    sigmoid: bool
    shares: bool
    scale: float

    def __call__(self, logits: Any, chosen: Any) -> Any:
        """[tokens, k] from [tokens, experts] and int64 [tokens, k]."""
        picked = self._affinities(logits).gather(1, chosen)
        return self.scale * (picked / picked.sum(-1, keepdim=True) if self.shares else picked)

    def probabilities(self, logits: Any) -> Any:
        """[tokens, experts], affinities that sum to 1 a token."""
        affinities = self._affinities(logits)
        return affinities / affinities.sum(-1, keepdim=True) if self.sigmoid else affinities

    def _affinities(self, logits: Any) -> Any:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return wide.sigmoid() if self.sigmoid else wide.softmax(-1)


def _gates_like(router: Any, logits: Any, scores: Any, chosen: Any) -> Gates:
    """The formula that reproduces the gates of the experts that the router chose itself."""
    scale = float(getattr(router, "routed_scaling_factor", 1.0))
    with torch.no_grad():
        for sigmoid, shares in product((False, True), (False, True)):
            gates = Gates(sigmoid, shares, scale)
            found = gates(logits, chosen).float()
            if torch.allclose(found, scores.float(), atol=scale * (2e-2 if _is_half(scores) else 1e-5)):
                return gates
    raise ConfigError(
        "the routers of this model compute their gates in a way that is not known here, so that routes can be neither "
        "replayed nor balanced",
        hint="Set model.router_replay = false and model.router_aux_coefficient = 0.",
    )


def _is_half(values: Any) -> bool:
    return values.dtype in (torch.float16, torch.bfloat16)
