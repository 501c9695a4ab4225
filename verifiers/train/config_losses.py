"""The sections of what is learned by reinforcement: advantages, and the policy loss."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from verifiers.train.config_section import NonNegative, Section, Share


class AdvantageConfig(Section):
    """What a rollout was worth beside the others of its group."""

    kind: Literal["mean", "leave_one_out", "max_rl", "rae"] = "mean"
    """What a reward is held against: the mean of the group, that of the others in it, the mean and then divided by it
    (MaxRL), or a running mean of the groups before (RAE)."""
    std: bool = False
    """Divide by the group's standard deviation (GRPO as published); biased towards easy and hard tasks."""
    std_eps: PositiveFloat = 1e-4
    """Added to the standard deviation."""
    rae_decay: Share = 0.95
    """Of the running mean."""
    step_rewards: bool = False
    """Use the rewards that environments give turn by turn, each from its turn on."""
    step_discount: Share = 1.0
    """Of rewards of later turns."""
    length_penalty: NonNegative = 0.0
    """Share of the mean reward that the longest reply of a group loses."""
    overlong: Literal["mask", "keep", "drop"] = "mask"
    """Truncated rollouts: out of the loss but in the baseline; as any other; or out of both."""
    overlong_soft_tokens: Annotated[int, Field(ge=0)] = 0
    """Width of the zone below the token limit in which the reward falls by up to 1 (DAPO, section 3.4)."""


class LossConfig(Section):
    """The policy loss, what masks its tokens and sequences, and what is added to it."""

    kind: Literal["dppo", "icepop", "ppo", "reinforce", "gspo", "cispo"] = "dppo"
    """Which surrogate; docs/guides/training-losses.md has the formulas."""
    clip_low: PositiveFloat = 0.2
    """`ppo`: ratios below 1 minus this are clipped."""
    clip_high: PositiveFloat = 0.28
    """`ppo`: ratios above 1 plus this are clipped."""
    dual_clip: PositiveFloat | None = None
    """`ppo`: bound of the ratio where the advantage is negative."""
    icepop_low: PositiveFloat = 0.5
    """`icepop`: tokens with a lower ratio are left out."""
    icepop_high: PositiveFloat = 5.0
    """`icepop`: tokens with a higher ratio are left out."""
    dppo_delta: PositiveFloat = 0.2
    """`dppo`: tokens whose probability has moved further than this, away from the sampler, are left out."""
    gspo_low: PositiveFloat = 3e-4
    """`gspo`: as clip_low, of sequences."""
    gspo_high: PositiveFloat = 4e-4
    """`gspo`: as clip_high, of sequences."""
    cispo_high: PositiveFloat = 0.28
    """`cispo`: weights of tokens are at most 1 plus this."""
    tis_cap: PositiveFloat | None = None
    """Truncated importance sampling: weight of a token by min(old policy / sampler, this)."""
    sequence_mask: Literal["none", "geometric", "product"] = "none"
    """Leave out whole sequences by the mean or the product of their ratios."""
    geometric_low: PositiveFloat = 0.99
    """Least mean ratio of a sequence."""
    geometric_high: PositiveFloat = 1.01
    """Greatest mean ratio of a sequence."""
    product_cap: PositiveFloat = 3.0
    """Greatest product of the ratios of a sequence."""
    off_policy_delta: PositiveFloat | None = None
    """Drop sequences of negative advantage whose mean log(sampler / policy) is above this (DeepSeek-V3.2)."""
    drift: NonNegative = 1e-3
    """Coefficient of (log ratio)², over all sampled tokens."""
    kl: NonNegative = 0.0
    """Coefficient of the KL divergence from the reference model (k3)."""
    entropy: float = 0.0
    """Coefficient of the entropy, which is rewarded."""
    normalise: Literal["token", "dr_grpo", "sequence"] = "token"
    """Divide by all sampled tokens, by sequences of one constant length, or each sequence by its own."""
    max_tokens: PositiveInt | None = None
    """The constant length of `dr_grpo`; None takes `sampling.max_tokens`."""
