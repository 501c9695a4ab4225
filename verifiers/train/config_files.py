"""From TOML files and overrides to a configuration, and back to TOML. What the settings are: `verifiers.train.config`.

    config = load_config(["base.toml", "mine.toml"], ["trainer.lr=1e-5", "env.0.args.level=2"])
    text = to_file(config)                      # every setting, as a file that gives the same configuration

Files are merged from left to right, tables key by key, lists replaced whole; overrides go on top of them. What follows
the `=` of an override is a TOML value, or else text. `none` stands for "not set" where a setting may be unset: TOML has
no null. A mistake is told with the file, or the override, that it came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from verifiers.errors import ConfigError
from verifiers.evals.encoding import to_toml
from verifiers.settings import read_toml
from verifiers.train.advantages import check_advantages
from verifiers.train.config import TrainConfig
from verifiers.train.config_mistakes import Place, explained
from verifiers.train.config_section import NONE
from verifiers.train.config_unread import check_unread
from verifiers.train.losses.checks import check_loss
from verifiers.train.sampling_check import check_sampling

Config = TypeVar("Config", bound=BaseModel)


def load_config(files: Iterable[str | Path], overrides: Sequence[str] = ()) -> TrainConfig:
    """The configuration of a run of `vf-train`. See `read_config`."""
    return read_config(TrainConfig, files, overrides)


def read_config(model: type[Config], files: Iterable[str | Path], overrides: Sequence[str] = ()) -> Config:
    """The configuration of these files, in order, with overrides such as `trainer.lr=1e-5` on top.

    ConfigError lists all mistakes: unknown settings with near misses, wrong values, what contradicts each other.
    """
    draft = _Draft()
    for file in files:
        draft.merge(read_toml(Path(file)), str(file))
    for override in overrides:
        draft.override(override)
    try:
        config = model.model_validate(draft.values)
    except ValidationError as error:
        raise explained(error, draft.origin, model) from error
    check_unread(config)
    if isinstance(config, TrainConfig):
        check_loss(config.loss)
        check_advantages(config.advantage, config.sampling.max_tokens)
        check_sampling(config.sampling.extra, "sampling.extra")
    return config


class _Draft:
    """Values that are being merged, and where each came from."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._origins: dict[Place, str] = {}

    def merge(self, table: Mapping[str, Any], origin: str) -> None:
        self._merge(self.values, table, origin, ())

    def _merge(self, into: dict[str, Any], table: Mapping[str, Any], origin: str, place: Place) -> None:
        for key, value in table.items():
            here = (*place, key)
            if isinstance(value, Mapping):
                if not isinstance(into.get(key), dict):
                    into[key] = {}
                    self._came_from(here, origin)
                self._merge(into[key], value, origin, here)
            else:
                into[key] = value
                self._came_from(here, origin)

    def override(self, text: str) -> None:
        """Set what `a.b.0.c=value` names; tables on the way there are made, list entries have to be there."""
        name, equals, value = text.partition("=")
        keys = name.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(
                f"{text!r} is neither a file nor a setting", hint="Write section.name=value, or FILE.toml."
            )
        into: Any = self.values
        place: Place = ()
        for key, following in pairwise(keys):
            if following.isdecimal() and isinstance(into, dict):
                if isinstance(into.get(key), str):
                    into[key] = [into[key]]  # `env=sums env.0.args.level=2`
                elif key not in into and following == "0":
                    into[key] = [{}]  # `env.0.id=sums`, and no file
            into, place = _step(into, key, place, text)
        last: str | int = _index(into, keys[-1], text) if isinstance(into, list) else keys[-1]
        into[last] = _value(value.strip())
        self._came_from((*place, last), f"the override {name.strip()}")

    def _came_from(self, place: Place, origin: str) -> None:
        """Note where a value came from; what was beneath it is gone."""
        for other in [other for other in self._origins if other[: len(place)] == place]:
            del self._origins[other]
        self._origins[place] = origin

    def origin(self, place: Place) -> str:
        """Where the value at a place came from, or what is around it; empty for defaults."""
        for length in range(len(place), 0, -1):
            if (origin := self._origins.get(place[:length])) is not None:
                return origin
        return ""


def _step(into: Any, key: str, place: Place, text: str) -> tuple[Any, Place]:
    if isinstance(into, list):
        index = _index(into, key, text)
        into[index] = dict(into[index]) if isinstance(into[index], Mapping) else {"id": into[index]}
        return into[index], (*place, index)
    if not isinstance(into.get(key), dict | list):
        into[key] = {}
    return into[key], (*place, key)


def _index(entries: list[Any], key: str, text: str) -> int:
    if not key.isdecimal() or int(key) >= len(entries):
        raise ConfigError(
            f"{text!r} names entry {key!r} of a list of {len(entries)}",
            hint="Entries are counted from 0; more of them are added in a file.",
        )
    return int(key)


def _value(text: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


# --- back to TOML ---------------------------------------------------------------------------------------------


def to_file(config: BaseModel) -> str:
    """Every setting as a TOML file that gives the same configuration."""
    parts: list[str] = []
    _write(config, (), parts)
    return "\n".join(parts)


def _write(section: BaseModel, place: tuple[str, ...], parts: list[str], head: str = "[{}]\n") -> None:
    plain: dict[str, Any] = {}
    below: list[tuple[str, Any]] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel) or _is_sections(value):
            below.append((name, value))
        elif value is not None or field.get_default(call_default_factory=True) is not None:
            plain[name] = NONE if value is None else str(value) if isinstance(value, Path) else value
    if plain or not below:
        parts.append((head.format(".".join(place)) if place else "") + to_toml(plain))
    for name, value in below:
        if isinstance(value, BaseModel):
            _write(value, (*place, name), parts)
        for entry in value if isinstance(value, list) else ():
            _write(entry, (*place, name), parts, "[[{}]]\n")


def _is_sections(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], BaseModel)
