"""The loss of a configuration, put together from its pieces.

    loss = make_loss(config.loss)
    output = loss(batch)                                   # a TokenBatch; one micro-batch
    (output.total / denominator(rows, config.loss)).backward()      # rows: of the whole step, over all ranks

Which ratio a surrogate has: r = π/μ against the sampler, so that staleness and numerical mismatch are both corrected.
With `tis_cap` ppo, gspo and cispo have π/π_old instead, and the rest, ρ = π_old/μ, is the truncated weight: the
decoupled objective (AReaL, arXiv 2505.24298), which matters once a batch is used for several updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from verifiers.errors import ConfigError
from verifiers.train.config import LossConfig
from verifiers.train.losses import masks, policy, regularisers
from verifiers.train.losses.checks import check_loss
from verifiers.train.losses.metrics import Meter
from verifiers.train.losses.normalise import coefficients
from verifiers.train.losses.ratios import sequence_log_ratio, truncated_weight
from verifiers.train.losses.tokens import LossOutput, TokenBatch

Loss = Callable[[TokenBatch], LossOutput]


def make_loss(config: LossConfig) -> Loss:
    """The loss of these settings. ConfigError if they contradict each other."""
    check_loss(config)

    def loss(batch: TokenBatch) -> LossOutput:
        return _loss(batch, config)

    return loss


def _loss(batch: TokenBatch, config: LossConfig) -> LossOutput:
    meter = Meter(batch)
    meter.mismatch()
    meter.advantages()
    surrogate = _surrogate(batch, config, meter)
    if config.tis_cap is not None:
        weight = truncated_weight(batch, config.tis_cap)
        surrogate = surrogate * weight
        meter.mean("loss/tis_weight", weight)
        meter.mean("loss/tis_capped", weight >= config.tis_cap)
    dropping = _masks(batch, config)
    keep = torch.ones_like(batch.sequence, dtype=torch.bool)
    for kept in dropping.values():
        keep = keep & kept
    meter.masks(dropping, keep)
    per_token = torch.where(keep, surrogate, torch.zeros_like(surrogate))
    meter.mean("loss/policy", per_token)
    return LossOutput(
        per_token + _regularisers(batch, config, meter),
        coefficients(batch, config),
        meter.sums,
        meter.counts,
        meter.maxima,
    )


def _surrogate(batch: TokenBatch, config: LossConfig, meter: Meter) -> Any:
    advantages = batch.advantages
    if config.kind == "reinforce":
        return policy.reinforce(batch.logprobs, advantages)
    before = batch.sampler_logprobs if config.tis_cap is None else batch.old
    log_ratio = batch.logprobs - before
    if config.kind in ("icepop", "dppo"):
        return policy.importance(log_ratio, advantages)
    if config.kind == "cispo":
        meter.mean("loss/clipped_high", log_ratio.detach().exp() > 1 + config.cispo_high)
        return policy.cispo(log_ratio, batch.logprobs, advantages, config.cispo_high)
    low, high, dual = config.clip_low, config.clip_high, config.dual_clip
    if config.kind == "gspo":
        log_ratio = sequence_log_ratio(log_ratio, batch)
        low, high, dual = config.gspo_low, config.gspo_high, None
    at_low, at_high = policy.clip_sides(log_ratio, advantages, low, high)
    meter.mean("loss/clipped_low", at_low)
    meter.mean("loss/clipped_high", at_high)
    if dual is not None:
        meter.mean("loss/clipped_dual", (advantages < 0) & (log_ratio.detach().exp() > dual))
    return policy.clipped(log_ratio, advantages, low, high, dual)


def _masks(batch: TokenBatch, config: LossConfig) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    if config.kind == "icepop":
        log_ratio = batch.logprobs - batch.sampler_logprobs
        kept["icepop_low"] = masks.icepop_low(log_ratio, config.icepop_low)
        kept["icepop_high"] = masks.icepop_high(log_ratio, config.icepop_high)
    if config.kind == "dppo":
        kept["dppo"] = masks.dppo(batch, config.dppo_delta)
    if config.sequence_mask == "geometric":
        kept["geometric"] = masks.geometric(batch, config.geometric_low, config.geometric_high)
    if config.sequence_mask == "product":
        kept["product"] = masks.product(batch, config.product_cap)
    if config.off_policy_delta is not None:
        kept["off_policy"] = masks.off_policy(batch, config.off_policy_delta)
    return kept


def _regularisers(batch: TokenBatch, config: LossConfig, meter: Meter) -> Any:
    """[N] with gradient: what the configuration adds to the policy loss, with its coefficients."""
    log_ratio = batch.logprobs - batch.sampler_logprobs
    added = torch.zeros_like(batch.logprobs)
    if config.drift:
        values = regularisers.drift(log_ratio)
        meter.mean("loss/drift", values)
        added = added + config.drift * values
    if config.kl:
        values = regularisers.reference_kl(log_ratio, batch.logprobs, _given(batch.ref_logprobs, "kl"))
        meter.mean("loss/reference_kl", values)
        added = added + config.kl * values
    if config.entropy:
        added = added - config.entropy * _given(batch.entropy, "entropy")
    return added


def _given(values: Any, setting: str) -> Any:
    if values is None:
        needed = {"kl": "the logprobs of a reference model", "entropy": "the entropy of the policy"}[setting]
        raise ConfigError(
            f"loss.{setting} needs {needed}, and the batch has none",
            hint=f"Give it to TokenBatch, or set loss.{setting} = 0.",
        )
    return values
