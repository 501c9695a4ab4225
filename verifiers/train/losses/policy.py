"""Surrogates: the policy loss of each token, [N] with gradient, before masks and weights. All are minimised."""

from __future__ import annotations

from typing import Any

import torch

from verifiers.train.losses.ratios import ratio


def reinforce(logprobs: Any, advantages: Any) -> Any:
    """−A·log π: no correction for the policy that sampled, unless it is weighted (TIS)."""
    return -advantages * logprobs


def importance(log_ratio: Any, advantages: Any) -> Any:
    """−A·r, the gradient through r: −A·r·∇log π. What IcePop and DPPO mask."""
    return -advantages * ratio(log_ratio)


def clipped(log_ratio: Any, advantages: Any, low: float, high: float, dual: float | None = None) -> Any:
    """PPO: −min(r·A, clip(r, 1−low, 1+high)·A); with high > low it is DAPO's clip-higher (arXiv 2503.14476).

    dual: for A < 0 the objective is at least dual·A, so that r ≫ 1 gives no huge gradient (arXiv 1912.09729;
    two-sided GRPO clipping in INTELLECT-2, arXiv 2505.07291).
    """
    r = ratio(log_ratio)
    objective = torch.minimum(r * advantages, r.clamp(1 - low, 1 + high) * advantages)
    if dual is not None:
        objective = torch.where(advantages < 0, torch.maximum(objective, dual * advantages), objective)
    return -objective


def cispo(log_ratio: Any, logprobs: Any, advantages: Any, high: float) -> Any:
    """−sg(min(r, 1+high))·A·log π: every token keeps a gradient (MiniMax-M1, arXiv 2506.13585)."""
    return -ratio(log_ratio.detach()).clamp(max=1 + high) * advantages * logprobs


def clip_sides(log_ratio: Any, advantages: Any, low: float, high: float) -> tuple[Any, Any]:
    """[N] bool twice: tokens whose gradient the lower and the upper bound of `clipped` took away."""
    r = ratio(log_ratio.detach())
    return (advantages < 0) & (r < 1 - low), (advantages > 0) & (r > 1 + high)
