"""Which tokens keep their policy loss. Every mask is [N] bool, true = kept, and has no gradient.

Masked tokens lose the policy loss alone: they still count in the denominator, and the regularisers see them.
"""

from __future__ import annotations

from typing import Any

from verifiers.train.losses.ratios import ratio
from verifiers.train.losses.tokens import TokenBatch


def icepop_low(log_ratio: Any, low: float) -> Any:
    """r ≥ low: the lower side of IcePop's mask (Ring-1T, arXiv 2510.18855; INTELLECT-3, arXiv 2512.16144)."""
    return ratio(log_ratio.detach()) >= low


def icepop_high(log_ratio: Any, high: float) -> Any:
    """r ≤ high: the upper side of IcePop's mask."""
    return ratio(log_ratio.detach()) <= high


def dppo(batch: TokenBatch, delta: float) -> Any:
    """Binary total variation (DPPO, arXiv 2602.04879): drop what has moved too far the way its advantage points.

    Dropped: A > 0 and π − μ > δ, or A < 0 and π − μ < −δ. The difference of probabilities, not their ratio: rare
    tokens may become five times as likely, common ones may not move by a half.
    """
    moved = batch.logprobs.detach().exp() - batch.sampler_logprobs.exp()
    rising = (batch.advantages > 0) & (moved > delta)
    falling = (batch.advantages < 0) & (moved < -delta)
    return ~(rising | falling)


def geometric(batch: TokenBatch, low: float, high: float) -> Any:
    """Rows whose geometric mean of ρ = π_old/μ is in [low, high]; does not depend on length (Liu & Li; SkyRL)."""
    mean = ratio(batch.sequence_mean(batch.old - batch.sampler_logprobs))
    return ((mean >= low) & (mean <= high))[batch.sequence]


def product(batch: TokenBatch, cap: float) -> Any:
    """Rows whose product of ρ = π_old/μ is at most `cap`; TRL's `sequence_mask`.

    It grows with length: the same gap a token keeps a short row and drops a long one.
    """
    return (ratio(batch.sequence_sum(batch.old - batch.sampler_logprobs)) <= cap)[batch.sequence]


def off_policy(batch: TokenBatch, delta: float) -> Any:
    """DeepSeek-V3.2 (arXiv 2512.02556): drop tokens of negative advantage in rows with mean(log μ − log π) > δ."""
    gap = batch.sequence_mean(batch.sampler_logprobs - batch.logprobs.detach())
    return ~((gap > delta)[batch.sequence] & (batch.advantages < 0))
