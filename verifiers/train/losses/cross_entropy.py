"""Imitation: −log π of every token that is to be learned. It takes the place of a policy loss in a `TorchLearner`.

    learner = TorchLearner(policy, config, cross_entropy, denominator=learned_tokens)
"""

from __future__ import annotations

from collections.abc import Iterable

from verifiers.train.losses.metrics import Meter
from verifiers.train.losses.tokens import LossOutput, TokenBatch
from verifiers.train.rows import Row

CROSS_ENTROPY = "loss/cross_entropy"


def cross_entropy(batch: TokenBatch) -> LossOutput:
    """−log π, each token counting once; in nats."""
    per_token = -batch.logprobs
    meter = Meter(batch)
    meter.mean(CROSS_ENTROPY, per_token)
    if batch.entropy is not None:
        meter.mean("loss/entropy", batch.entropy)
    return LossOutput(per_token, batch.logprobs.new_ones(len(per_token)), meter.sums, meter.counts, meter.maxima)


def learned_tokens(rows: Iterable[Row]) -> float:
    """How many tokens are learned: what the sum is divided by, over all micro-batches and ranks."""
    return float(sum(row.trainable for row in rows))
