"""Settings with their origins, keys from the environment, and the package's log.

The order is the same for every command: flag > `VF_*` variable > entry of a TOML file > globals of that file >
`[tool.verifiers.…]` of the project, then of the environment > the user's file > default. Commands collect one mapping
for each of these and `layered` picks, so that every value can be shown with where it came from.

Importing this module configures no logging: the package's logger has a null handler, and only `setup_logging`, which
the commands call, makes it visible.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from verifiers.errors import ConfigError, MissingKeyError

# --- values with origins --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and, in words, where it came from."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one source, such as the flags or one file."""

    origin: str
    values: Mapping[str, Any]


def layered(layers: Iterable[Layer]) -> dict[str, Setting]:
    """The settings of all layers; for each name the first layer that has it (not None) wins. Lists are replaced."""
    settings: dict[str, Setting] = {}
    for layer in layers:
        for name, value in layer.values.items():
            if value is not None:
                settings.setdefault(name, Setting(value, layer.origin))
    return settings


def variables(names: Iterable[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The values of the variables `VF_<NAME>` that are set and not empty, by setting name."""
    environ = os.environ if environ is None else environ
    return {name: value for name in names if (value := environ.get(f"VF_{name.upper()}"))}


HUB_TOKEN = "VF_HUB_TOKEN"  # noqa: S105 - the name of a variable
"""The variable of the user's token for a hub."""


def environ_of_others() -> dict[str, str]:
    """This process's variables for a program that may run other people's code, such as uv, which builds what has no
    wheel: without the user's token for a hub."""
    return {name: value for name, value in os.environ.items() if name != HUB_TOKEN}


def near_misses(word: str, known: Iterable[str]) -> str:
    """A sentence like `Did you mean 'model'?`, or an empty one if nothing is near."""
    close = get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f"Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""


def refuse_unknown(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise ConfigError for the first name that is not known, with its near misses."""
    known = sorted(known)
    for name in names:
        if name not in known:
            hint = near_misses(name, known) or f"Known settings: {', '.join(known)}."
            raise ConfigError(f"unknown setting {name!r} in {where}", hint=hint)


# --- files ----------------------------------------------------------------------------------------------------


def user_file() -> Path:
    """The user's own settings: `$VF_CONFIG`, otherwise `verifiers/config.toml` in the user's configuration folder."""
    if path := os.environ.get("VF_CONFIG"):
        return Path(path)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "verifiers" / "config.toml"


def project_file(start: Path | None = None) -> Path | None:
    """The nearest `pyproject.toml` in `start` (the working directory by default) or above it."""
    folder = (start or Path.cwd()).resolve()
    return next(
        (path for base in (folder, *folder.parents) if (path := base / "pyproject.toml").is_file()), None
    )


def read_toml(path: Path) -> dict[str, Any]:
    """The contents of a TOML file. ConfigError, with line and column, if it can not be read."""
    import tomllib

    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(
            f"can not read {path}: {error.strerror}", hint="Check the path.", cause=error
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is no valid TOML: {error}", hint="Correct the file at that place.", cause=error
        ) from error


def table_at(document: Mapping[str, Any], *keys: str, where: str) -> dict[str, Any]:
    """The table at `keys` of a TOML document, empty if absent. ConfigError if something else is there."""
    found: Any = document
    for key in keys:
        found = found.get(key, {})
        if not isinstance(found, Mapping):
            raise ConfigError(f"[{'.'.join(keys)}] in {where} must be a table")
    return dict(found)


# --- keys -----------------------------------------------------------------------------------------------------


def ensure_keys(keys: list[str]) -> None:
    """Raise MissingKeyError, which lists them all, if any of these environment variables is unset or empty.

    For `load_environment` of environments that need a judge or a service: better told before the first rollout.
    """
    missing = [key for key in keys if not os.environ.get(key)]
    if missing:
        raise MissingKeyError(missing)


# --- logging --------------------------------------------------------------------------------------------------

LOGGER = logging.getLogger("verifiers")
"""The package's logger; each module logs below it."""

LOGGER.addHandler(logging.NullHandler())

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def setup_logging(
    level: str | int | None = None, log_format: str | None = None, date_format: str | None = None
) -> None:
    """Show the package's log on stderr. Calling it again replaces the level and the format.

    `level` is a name or number; the default is `$VF_LOG_LEVEL`, otherwise INFO. Other loggers are left alone.
    """
    wanted = _level(level if level is not None else os.environ.get("VF_LOG_LEVEL") or "INFO")
    for handler in [handler for handler in LOGGER.handlers if handler.get_name() == "setup_logging"]:
        LOGGER.removeHandler(handler)
    shown = logging.StreamHandler(sys.stderr)
    shown.set_name("setup_logging")
    shown.setFormatter(logging.Formatter(log_format or LOG_FORMAT, date_format or "%H:%M:%S"))
    LOGGER.addHandler(shown)
    LOGGER.setLevel(wanted)


@contextmanager
def log_level(level: str | int) -> Iterator[None]:
    """The package's log at another level for a while."""
    before = LOGGER.level
    LOGGER.setLevel(_level(level))
    try:
        yield
    finally:
        LOGGER.setLevel(before)


def quiet_verifiers() -> AbstractContextManager[None]:
    """Only warnings and errors of the package for a while: `with quiet_verifiers(): …`."""
    return log_level(logging.WARNING)


def _level(level: str | int) -> int:
    if isinstance(level, int):
        return level
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"{level!r} is no log level", hint="Use DEBUG, INFO, WARNING or ERROR.")
    return number
