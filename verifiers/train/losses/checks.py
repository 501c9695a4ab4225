"""Settings of a loss that contradict each other, or that nothing would read. No torch."""

from __future__ import annotations

from verifiers.errors import ConfigError
from verifiers.train.config import LossConfig
from verifiers.train.config_unread import check_section


def check_loss(config: LossConfig) -> None:
    """Raise ConfigError for settings that contradict each other or would have no effect."""
    check_section(config, "loss")
    for low, high in (("icepop_low", "icepop_high"), ("geometric_low", "geometric_high")):
        if not getattr(config, low) <= 1.0 <= getattr(config, high):
            raise ConfigError(
                f"loss.{low} = {getattr(config, low):g} and loss.{high} = {getattr(config, high):g} would drop tokens "
                "whose ratio is 1, which are exactly on-policy",
                hint=f"Set loss.{low} to at most 1 and loss.{high} to at least 1.",
            )
    for low in ("clip_low", "gspo_low"):
        if getattr(config, low) >= 1.0:
            raise ConfigError(
                f"loss.{low} = {getattr(config, low):g} never clips: ratios are above 0",
                hint=f"Set loss.{low} below 1, the bound is 1 - {low}.",
            )
    if config.dual_clip is not None and config.dual_clip <= 1 + config.clip_high:
        raise ConfigError(
            f"loss.dual_clip = {config.dual_clip:g} is within the clip range, which ends at {1 + config.clip_high:g}",
            hint="Set it well above 1 + loss.clip_high, to 4 for example.",
        )
    if config.product_cap < 1.0:
        raise ConfigError(
            f"loss.product_cap = {config.product_cap:g} would drop rows that are exactly on-policy",
            hint="Set loss.product_cap to at least 1.",
        )
