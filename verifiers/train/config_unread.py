"""Settings that nothing would read, in one table for all sections: whoever sets one expects what does not happen.

    check_unread(config)                     # every section of a configuration
    check_section(config.loss, "loss")       # one section

A setting counts as set if it differs from its default, so that a file with every setting can be read again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from verifiers.errors import ConfigError


class Read(NamedTuple):
    """When a setting is read: while `switch`, of the same section, has one of the `values`; without values, while it is
    set at all; without a switch, never. what: what is wrong with the setting otherwise."""

    switch: str = ""
    values: tuple[Any, ...] = ()
    what: str = "has no effect"


_OURS, _VLLM = Read("kind", ("inproc", "process")), Read("kind", ("vllm",))
_PPO, _ICEPOP, _GSPO = Read("kind", ("ppo",)), Read("kind", ("icepop",)), Read("kind", ("gspo",))
_RAY = {"ray_options": Read("ray")}

READ_BY: Mapping[str, Mapping[str, Read]] = {
    "sampler": {
        "urls": _VLLM,
        "api_key_var": _VLLM,
        "transfer": _VLLM,
        "max_batch": _OURS,
        "deterministic": _OURS,
        "recompute_cache": _OURS,
        "dtype": _OURS,
        "device": _OURS,
    },
    "env": {**_RAY, "hard": Read("pools"), "easy": Read("pools"), "pool_weight": Read("pools")},
    # All their tasks are played, and equally often.
    "eval.environments": {**_RAY, **dict.fromkeys(("ratio", "pools", "hard", "easy", "pool_weight"), Read())},
    "trainer": {
        "betas": Read("optimizer", ("adamw",)),
        "eps": Read("optimizer", ("adamw",)),
        "total_steps": Read("schedule", ("linear", "cosine")),
    },
    "log": {"prometheus_host": Read("prometheus_port")},
    "advantage": {
        "std": Read("kind", ("mean",)),
        "std_eps": Read("std"),
        "rae_decay": Read("kind", ("rae",)),
        "step_discount": Read("step_rewards"),
    },
    "loss": {
        "clip_low": _PPO,
        "clip_high": _PPO,
        "dual_clip": _PPO,
        "icepop_low": _ICEPOP,
        "icepop_high": _ICEPOP,
        "dppo_delta": Read("kind", ("dppo",)),
        "gspo_low": _GSPO,
        "gspo_high": _GSPO,
        "cispo_high": Read("kind", ("cispo",)),
        # The others are weighted by policy / sampler already.
        "tis_cap": Read("kind", ("reinforce", "ppo", "gspo", "cispo"), "would correct twice"),
        "geometric_low": Read("sequence_mask", ("geometric",)),
        "geometric_high": Read("sequence_mask", ("geometric",)),
        "product_cap": Read("sequence_mask", ("product",)),
        "max_tokens": Read("normalise", ("dr_grpo",)),
    },
}
"""By section and setting; what is not in it is always read."""


def check_unread(config: BaseModel) -> None:
    """Raise one ConfigError for all settings of a configuration that nothing would read."""
    _refuse(mistake for place, section in _sections(config, ()) for mistake in _unread(section, place))


def check_section(section: BaseModel, name: str) -> None:
    """Raise ConfigError for settings of one section that nothing would read."""
    _refuse(_unread(section, (name,)))


def _refuse(mistakes: Iterator[tuple[str, str]]) -> None:
    if told := dict(mistakes):
        raise ConfigError("; ".join(told), hint=" ".join(dict.fromkeys(told.values())))


def _sections(section: BaseModel, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], BaseModel]]:
    yield place, section
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _sections(value, (*place, name))
        for number, entry in enumerate(value if isinstance(value, list) else ()):
            if isinstance(entry, BaseModel):
                yield from _sections(entry, (*place, name, str(number)))


def _unread(section: BaseModel, place: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """What is wrong with each setting of a section that is set in vain, and what to do about it."""
    where = ".".join(place)
    for name, read in READ_BY.get(".".join(part for part in place if not part.isdecimal()), {}).items():
        field = type(section).model_fields[name]
        if getattr(section, name) == field.get_default(call_default_factory=True):
            continue
        given = getattr(section, read.switch) if read.switch else None
        wrong = f"{where}.{name} {read.what}"
        if not read.switch:
            yield wrong, "Leave it out."
        elif not read.values and (given is None or given is False):  # 0 is a port
            yield f"{wrong} without {where}.{read.switch}", f"Leave it out, or set {where}.{read.switch}."
        elif read.values and given not in read.values:
            values = " or ".join(map(repr, read.values))
            switch = f"{where}.{read.switch}"
            yield f"{wrong} with {switch} = {given!r}", f"Leave it out, or set {switch} to {values}."
