"""What a loss sees and gives: the sampled tokens of a micro-batch, flat, so that padding and packing cannot matter.

A *sequence* is a row. Rows of one rollout may be in different micro-batches or on different ranks; whatever has to
count them as one rollout does so by their weights, which sum to 1 (docs/decisions/0029-losses.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch


@dataclass(frozen=True)
class TokenBatch:
    """N sampled tokens (mask true) of S rows. All tensors are [N], on one device; N may be 0.

    logprobs: float32 with gradient; of the policy, its logits divided by the sampling temperature.
    sampler_logprobs: of the policy that sampled the token, as the sampler reported them.
    sequence: int64, the number of the token's row, 0..S-1, every number used.
    weights: the row's share of its rollout (`Row.weight`).
    old_logprobs: of the policy before the first update from this batch; None = the present one.
    ref_logprobs: of the reference model. entropy: of the policy, in nats; with gradient if it is rewarded.
    """

    logprobs: Any
    sampler_logprobs: Any
    advantages: Any
    sequence: Any
    weights: Any
    old_logprobs: Any = None
    ref_logprobs: Any = None
    entropy: Any = None

    @cached_property
    def old(self) -> Any:
        """[N] logprobs of the old policy, without gradient."""
        return (self.logprobs if self.old_logprobs is None else self.old_logprobs).detach()

    @cached_property
    def lengths(self) -> Any:
        """[S] tokens of each row, as floats."""
        rows = int(self.sequence.max()) + 1 if len(self.sequence) else 0
        return torch.bincount(self.sequence, minlength=rows).to(self.logprobs.dtype)

    def sequence_sum(self, values: Any) -> Any:
        """[S] sums of [N] values over the tokens of each row."""
        return torch.zeros_like(self.lengths, dtype=values.dtype).index_add(0, self.sequence, values)

    def sequence_mean(self, values: Any) -> Any:
        """[S] means of [N] values over the tokens of each row."""
        return self.sequence_sum(values) / self.lengths


@dataclass(frozen=True)
class LossOutput:
    """What a loss made of a micro-batch.

    per_token: [N] with gradient. coefficients: [N], what each token counts in the sum. sums, counts, maxima: figures
    without gradient, scalars on the batch's device, with the same names whatever the batch holds: sums and counts
    add up over micro-batches and ranks, maxima take the largest (`verifiers.train.tally`).
    """

    per_token: Any
    coefficients: Any
    sums: Mapping[str, Any]
    counts: Mapping[str, Any]
    maxima: Mapping[str, Any]

    @property
    def total(self) -> Any:
        """Scalar Σ per_token · coefficients; a zero that can be differentiated if there are no tokens.

        Divide by `denominator(rows, config)` of the whole step, over all ranks, before going backward.
        """
        return (self.per_token * self.coefficients).sum()
