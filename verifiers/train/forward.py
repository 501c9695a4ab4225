"""One forward pass over a micro-batch: the logprobs of its sampled tokens, as the sampler would report them.

    head = SampledHead(model)                      # once a model
    tensors = on_device(micro, device)
    logprobs, entropy = head.logprobs(tensors)     # [N], [N]; N = sampled tokens, in the order of the flat arrays

Logits are computed where a sampled token follows and nowhere else: at 4 sampled of 1,000 tokens that is 4 rows of the
vocabulary's width instead of 1,000.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from verifiers.errors import ConfigError
from verifiers.train import attention
from verifiers.train.losses.logprobs import token_logprobs
from verifiers.train.packing import MicroBatch, pack
from verifiers.train.rows import Row


@dataclass(frozen=True, slots=True)
class Tensors:
    """A micro-batch on a device; N sampled tokens.

    tokens, positions: int64 [B, T]. segments: int64 [B·T]. at: int64 [N], flat places of the sampled tokens; each is
    predicted from the place before it. The rest is [N]. sequence: int64, rows numbered 0..S-1, every number used.
    """

    tokens: Any
    positions: Any
    segments: Any
    at: Any
    sequence: Any
    temperatures: Any
    sampler_logprobs: Any
    advantages: Any
    weights: Any
    lengths: list[int]
    """Of the rows of a single sequence and the padding behind them; empty where each row has a sequence of its own."""
    routes: Any = None


def on_device(micro: MicroBatch, device: Any) -> Tensors:
    """The arrays as tensors; those of single tokens for the sampled ones alone."""
    at = np.flatnonzero(micro.mask)

    def of_sampled(values: Any) -> Any:
        return torch.from_numpy(values.reshape(-1)[at]).to(device)

    sequence = np.unique(micro.segments.reshape(-1)[at], return_inverse=True)[1].reshape(-1)
    return Tensors(
        tokens=torch.from_numpy(micro.tokens).to(device),
        positions=torch.from_numpy(micro.positions).to(device),
        segments=torch.from_numpy(micro.segments.reshape(-1)).to(device),
        at=torch.from_numpy(at).to(device),
        sequence=torch.from_numpy(sequence).to(device),
        temperatures=of_sampled(micro.temperatures),
        sampler_logprobs=of_sampled(micro.logprobs),
        advantages=of_sampled(micro.advantages),
        weights=of_sampled(micro.weights),
        lengths=_lengths(micro),
        routes=None if micro.routes is None else _flat_routes(micro.routes, device),
    )


def _lengths(micro: MicroBatch) -> list[int]:
    if micro.isolated or len(micro.tokens) > 1:
        return []
    begins = np.flatnonzero(micro.positions[0] == 0)
    lengths: list[int] = np.diff(begins, append=micro.tokens.shape[1]).tolist()
    return lengths


def _flat_routes(routes: Any, device: Any) -> Any:
    return torch.from_numpy(routes.reshape(-1, *routes.shape[2:]).astype(np.int64)).to(device)


class SampledHead:
    """A model whose output layer sees the places before sampled tokens only."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._at: Any = None
        self._by_segments = model.config._attn_implementation == attention.NAME
        model.get_output_embeddings().register_forward_pre_hook(self._select)

    def logprobs(self, tensors: Tensors, *, entropy_gradient: bool = False) -> tuple[Any, Any]:
        """[N] logprobs at each row's temperature, and [N] entropies in nats; float32, or float64 for such a model.

        Rows do not see each other: transformers makes the mask (or the segments of flash-attn) from positions that
        start again; attention by segments is told their lengths.
        """
        self._at = tensors.at
        options = {"segment_lengths": tensors.lengths or None} if self._by_segments else {}
        try:
            output = self.model(input_ids=tensors.tokens, position_ids=tensors.positions, use_cache=False, **options)
        finally:
            self._at = None
        targets = tensors.tokens.view(-1)[tensors.at]
        return token_logprobs(output.logits[0], targets, tensors.temperatures, entropy_gradient=entropy_gradient)

    def _select(self, _head: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._at is None:
            return None
        hidden = inputs[0]
        return (hidden.reshape(-1, hidden.shape[-1])[self._at - 1].unsqueeze(0), *inputs[1:])


def check_isolation(head: SampledHead, device: Any) -> None:
    """Raise ConfigError if a row sees the one before it in its sequence, after two passes over a few tokens.

    Some models of transformers make their masks without positions (gpt-oss in 5.24): rows would be trained in the
    context of others, and nothing would show it.
    """
    was_training = head.model.training
    head.model.eval()  # dropout would differ between the passes
    try:
        with torch.no_grad():
            first, second = (_second_of_two(head, device, other) for other in (1, 9))
    finally:
        head.model.train(was_training)
    if float((first - second).abs().max()) > (1e-4 if _exact(head.model) else 2e-2):
        raise ConfigError(
            f"packed rows would see each other: {head.model.config.model_type} does not keep them apart "
            f"(attention {head.model.config._attn_implementation})",
            hint="Set trainer.packing = false, or another model.attention.",
        )


def _second_of_two(head: SampledHead, device: Any, begin: int) -> Any:
    """[7] logprobs of a row of 8 tokens behind another one, whose ids count from `begin`."""
    ids = [list(range(begin, begin + 8)), list(range(8))]
    rows = [Row(tokens, [False] + [True] * 7, [0.0] * 8, [0] * 8, None) for tokens in ids]
    (micro,) = pack(rows, 16, width=16).batches
    return head.logprobs(on_device(micro, device))[0][7:]


def _exact(model: Any) -> bool:
    return next(model.parameters()).dtype in (torch.float32, torch.float64)
