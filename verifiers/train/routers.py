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
from typing import Any

import torch

from verifiers.errors import ConfigError, EvidenceError

Gates = Callable[[Any, Any], Any]


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

    def balance(self, segments: Any) -> Any:
        """Scalar: Σ over layers and rows of tokens · E · Σ_e f_e·P_e, to be divided by tokens · layers of the step.

        f_e: share of a row's routes that went to expert e; P_e: mean probability of e over the row (DeepSeek-V3,
        arXiv 2412.19437, section 2.1.2). Row by row, so that neither packing nor ranks can change it; the usual loss
        over a micro-batch does change. 1 a token when perfectly even. segments: int64 [tokens], 0 is padding.
        """
        rows = int(segments.max()) + 1 if len(segments) else 1
        total: Any = 0.0
        lengths = torch.bincount(segments, minlength=rows).clamp(min=1)
        for logits, chosen in zip(self._logits, self._chosen, strict=True):
            probabilities = torch.softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
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
        def after(_router: Any, _inputs: Any, output: Any) -> Any:
            if self._routes is None and not self._keep:
                return None
            logits, scores, chosen = _parts(output)
            if self._routes is not None:
                if self._gates[number] is None:
                    self._gates[number] = _gates_like(logits, scores, chosen)
                forced = self._routes[:, number]
                chosen = torch.where(forced >= 0, forced, chosen)
                scores = self._gates[number](logits, chosen).to(scores.dtype)  # type: ignore[misc]
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


def _softmax(logits: Any, chosen: Any) -> Any:
    return torch.softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32)).gather(1, chosen)


def _softmax_of_chosen(logits: Any, chosen: Any) -> Any:
    picked = _softmax(logits, chosen)
    return picked / picked.sum(-1, keepdim=True)


def _gates_like(logits: Any, scores: Any, chosen: Any) -> Gates:
    """How this router computes gates: the formula that reproduces those it chose itself."""
    with torch.no_grad():
        for gates in (_softmax, _softmax_of_chosen):
            if torch.allclose(gates(logits, chosen).float(), scores.float(), atol=2e-2 if _is_half(scores) else 1e-5):
                return gates
    raise ConfigError(
        "the routers of this model compute their gates in a way that is not known here, so routes cannot be replayed",
        hint="Set model.router_replay = false.",
    )


def _is_half(values: Any) -> bool:
    return values.dtype in (torch.float16, torch.bfloat16)
