"""Settings of a loss that contradict each other, or that nothing would read. No torch."""

from __future__ import annotations

from typing import Any

from verifiers.errors import ConfigError
from verifiers.train.config import LossConfig

READ_BY: dict[str, tuple[str, tuple[str, ...]]] = {
    "clip_low": ("kind", ("ppo",)),
    "clip_high": ("kind", ("ppo",)),
    "dual_clip": ("kind", ("ppo",)),
    "icepop_low": ("kind", ("icepop",)),
    "icepop_high": ("kind", ("icepop",)),
    "dppo_delta": ("kind", ("dppo",)),
    "gspo_low": ("kind", ("gspo",)),
    "gspo_high": ("kind", ("gspo",)),
    "cispo_high": ("kind", ("cispo",)),
    "tis_cap": ("kind", ("reinforce", "ppo", "gspo", "cispo")),
    "geometric_low": ("sequence_mask", ("geometric",)),
    "geometric_high": ("sequence_mask", ("geometric",)),
    "product_cap": ("sequence_mask", ("product",)),
    "max_tokens": ("normalise", ("dr_grpo",)),
}
"""Which setting is read under which values of another one. Changed from its default elsewhere, it is a mistake."""


def check_loss(config: LossConfig) -> None:
    """Raise ConfigError for settings that contradict each other or would have no effect."""
    for name, (switch, values) in READ_BY.items():
        if getattr(config, switch) not in values and getattr(config, name) != _default(name):
            _refuse_unread(config, name, switch, values)
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


def _refuse_unread(config: LossConfig, name: str, switch: str, values: tuple[str, ...]) -> None:
    given = getattr(config, switch)
    if name == "tis_cap":
        raise ConfigError(
            f"loss.tis_cap would correct twice: loss.kind = {given!r} is already weighted by policy / sampler",
            hint=f"Leave loss.tis_cap out, or set loss.kind to one of {', '.join(values)}.",
        )
    raise ConfigError(
        f"loss.{name} has no effect with loss.{switch} = {given!r}",
        hint=f"Leave it out, or set loss.{switch} to {' or '.join(map(repr, values))}.",
    )


def _default(name: str) -> Any:
    return LossConfig.model_fields[name].default
