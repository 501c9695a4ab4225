"""`pylock.toml` (PEP 751) as `hub lock` writes it: read, checked, and written so that equal locks are equal bytes.

A package of a hub is an `archive` entry, one address with its digest: installers note such an address with what they
install (PEP 610), so that a record of an evaluation names the hub's release whoever installed it. The table
`[tool.verifiers]` says which hub, which releases, and what was asked for; installers pass over it.

    lock = read_lock(Path("pylock.toml"))
    lock.packages[0].id, lock.packages[0].sha256
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from verifiers.errors import ConfigError
from verifiers.settings import read_toml, table_at

SCHEMA_VERSION = 1
HEADER = "# Written by `hub lock`. Install it with: hub install -r pylock.toml (or uv pip sync, pip install -r).\n"
_FORM = "Write it anew: hub lock OWNER/NAME@VERSION -o pylock.toml"


@dataclass(frozen=True, slots=True)
class Locked:
    """A package of the hub in a lock. `id` is `owner/name@version`; for the SDK it is `verifiers@version`."""

    id: str
    name: str
    version: str
    url: str
    size: int
    sha256: str

    @property
    def filename(self) -> str:
        """The name of the wheel."""
        return unquote(urlsplit(self.url).path.rpartition("/")[2])

    @property
    def owner(self) -> str | None:
        """Whose it is; None for the SDK."""
        return self.id.partition("/")[0] if "/" in self.id else None


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock: `document` is all of it, `packages` what comes from the hub, the SDK included. `python` is as in 3.11."""

    path: Path
    document: Mapping[str, Any]
    hub: str
    serial: int
    python: str
    packages: tuple[Locked, ...]

    @property
    def sdk(self) -> Locked | None:
        """The wheel of `verifiers`, if the lock has it."""
        return next((one for one in self.packages if one.owner is None), None)


def read_lock(path: Path) -> Lock:
    """Read a lock. ConfigError if it is none of `hub lock`, or contradicts itself."""
    document = read_toml(path)
    table = table_at(document, "tool", "verifiers", where=str(path))
    if not table:
        raise ConfigError(f"{path} was not written by hub lock: it has no [tool.verifiers]", hint=_FORM)
    if table.get("schema-version") != SCHEMA_VERSION:
        raise ConfigError(f"{path} has the form of another release of this package", hint=_FORM)
    try:
        entries = {entry["name"]: entry for entry in document["packages"]}
        packages = tuple(_locked(told, entries[told["name"]]) for told in table["packages"])
        if not table["hub"].startswith(("https://", "http://")):
            raise ValueError(f"{table['hub']} is no hub's URL")
        lock = Lock(path, document, table["hub"], table["serial"], table["python"], packages)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is no sound lock: {error}", hint=_FORM, cause=error) from error
    return lock


def _locked(told: Mapping[str, Any], entry: Mapping[str, Any]) -> Locked:
    archive = entry["archive"]
    if archive["hashes"]["sha256"] != told["sha256"] or f"/{told['sha256']}/" not in archive["url"]:
        raise ValueError(f"several digests are given for {told['id']}")
    return Locked(told["id"], told["name"], entry["version"], archive["url"], archive["size"], told["sha256"])


# --- writing ------------------------------------------------------------------------------------------------------


def to_text(document: Mapping[str, Any]) -> str:
    """A lock as text: the same document gives the same bytes."""
    head = {key: value for key, value in document.items() if key not in ("packages", "tool")}
    parts = [HEADER + _lines(head)]
    parts += ["[[packages]]\n" + _lines(package) for package in document["packages"]]
    for name, table in document.get("tool", {}).items():
        parts += _table(f"tool.{name}", table)
    return "\n".join(parts)


def _table(name: str, table: Mapping[str, Any]) -> list[str]:
    """A table, and after it the tables and lists of tables in it."""
    nested = {key: value for key, value in table.items() if _is_table(value)}
    plain = {key: value for key, value in table.items() if key not in nested}
    parts = [f"[{name}]\n{_lines(plain)}"]
    for key, value in nested.items():
        if isinstance(value, Mapping):
            parts += _table(f"{name}.{key}", value)
        else:
            parts += [f"[[{name}.{key}]]\n{_lines(entry)}" for entry in value]
    return parts


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and all(isinstance(entry, Mapping) for entry in value)
    )


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items() if value is not None)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None).isoformat() + "Z"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(key)} = {_value(one)}" for key, one in value.items() if one is not None)
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) > 1 and isinstance(value[0], Mapping):
            return "[\n" + "".join(f"    {_value(one)},\n" for one in value) + "]"
        return f"[{', '.join(map(_value, value))}]"
    # json writes a string as TOML's basic strings are written, but for one character.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else _value(key)
