"""What is added to the policy loss: over all sampled tokens, also those that a mask dropped. [N] with gradient."""

from __future__ import annotations

from typing import Any

from verifiers.train.losses.ratios import LARGEST_LOG_RATIO, ratio


def drift(log_ratio: Any) -> Any:
    """(log π/μ)²: pulls the policy to the one that sampled (Kimi-K2.5, arXiv 2602.02276; prime-rl)."""
    return log_ratio.square()


def reference_kl(log_ratio: Any, logprobs: Any, ref_logprobs: Any) -> Any:
    """r·(e^d − d − 1), d = log ref − log π: Schulman's k3, corrected for the policy that sampled.

    Tokens come from μ, so k3 alone (arXiv 2402.03300) estimates nothing that is wanted. Times r = π/μ, with its
    gradient, both value and gradient are those of KL(π‖ref), in expectation (DeepSeek-V3.2, arXiv 2512.02556; TRL's
    `use_bias_correction_kl`). Times r without its gradient only the value is: the gradient is that of KL(ref‖π).
    """
    d = ref_logprobs - logprobs
    return ratio(log_ratio) * (d.clamp(max=LARGEST_LOG_RATIO).exp() - d - 1)
