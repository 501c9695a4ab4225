"""Ratios of probabilities between policies, from logprobs, in fp32: μ of the sampler, π now, π_old before the step."""

from __future__ import annotations

from typing import Any

from verifiers.train.losses.tokens import TokenBatch

LARGEST_LOG_RATIO = 20.0
"""Beyond e^20 a ratio is taken as e^20: products with a masked 0 must not become NaN. verl clamps there too."""


def ratio(log_ratio: Any) -> Any:
    """[N] exp of log π/μ (or of another pair); r = 1 exactly on-policy. No gradient beyond e^±20."""
    return log_ratio.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


def sequence_log_ratio(log_ratio: Any, batch: TokenBatch) -> Any:
    """[N] mean of log r over each row, with the gradient of the token's own log r (GSPO-token, arXiv 2507.18071, 4.3).

    Summed over the tokens of a row with one advantage, the gradient is that of the sequence ratio; with advantages
    that differ from turn to turn each token keeps its own.
    """
    mean = batch.sequence_mean(log_ratio.detach())[batch.sequence]
    return log_ratio - log_ratio.detach() + mean


def truncated_weight(batch: TokenBatch, cap: float) -> Any:
    """[N] min(π_old/μ, cap), without gradient: truncated importance sampling (TIS).

    Source: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training"; verl's rollout
    correction (token level, cap 2).
    """
    return ratio(batch.old - batch.sampler_logprobs).clamp(max=cap)
