"""What a sum over tokens is divided by, once for the whole step: over all rows, all micro-batches, all ranks. No torch.

Divided by anything local (a micro-batch's or a rank's own count) the gradient would depend on how rows were packed.

With k rows a rollout, weights w_i = n_i / Σ n (n: sampled tokens of a row, each in one row only):

    token      1 a token                Σ n          the same whether or not a rollout was forked: w is not needed
    dr_grpo    1 a token                Σ w · L      Σ w = number of rollouts, so a fork adds nothing to N · L_max
    sequence   w_i / n_i = 1 / Σ n      Σ w          each rollout counts as its mean over tokens, in however many rows
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from verifiers.errors import ConfigError
from verifiers.train.config import LossConfig
from verifiers.train.rows import Row

if TYPE_CHECKING:
    from verifiers.train.losses.tokens import TokenBatch


def denominator(rows: Iterable[Row], config: LossConfig) -> float:
    """What `LossOutput.total` is divided by, for these rows. It adds up over ranks; 0.0 only without rows.

    token: sampled tokens (DAPO, arXiv 2503.14476). dr_grpo: rollouts × `max_tokens` (Dr.GRPO, arXiv 2503.20783).
    sequence: rollouts (GRPO, arXiv 2402.03300). Tokens that a loss mask drops count: a mask is no reward.
    """
    if config.normalise == "token":
        return float(sum(row.trainable for row in rows))
    rollouts = sum(row.weight for row in rows)
    if config.normalise == "sequence":
        return rollouts
    if config.max_tokens is None:
        raise ConfigError(
            "loss.normalise = 'dr_grpo' divides by a constant length, and loss.max_tokens is not set",
            hint="Set loss.max_tokens, as a rule to sampling.max_tokens.",
        )
    return rollouts * config.max_tokens


def coefficients(batch: TokenBatch, config: LossConfig) -> Any:
    """[N] what each token counts in the sum that `denominator` divides."""
    if config.normalise == "sequence":
        return batch.weights / batch.lengths[batch.sequence]
    return batch.logprobs.new_ones(len(batch.logprobs))
