"""The packages that are installed beside this one, of which some may be broken.

An interrupted uninstallation leaves a folder of metadata behind that tells neither name nor version. What the standard
library does with it depends on Python's version, and on whether any package imported the backport `importlib_metadata`,
whose finder then takes the place of the standard library's: a missing field is None or a KeyError, a missing file an
empty message or an error. Here such a folder is no package.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from email.message import Message
from importlib import metadata
from typing import cast


def told_by(distribution: metadata.Distribution, field: str) -> str | None:
    """A field of a distribution's METADATA; None if it, or the whole file, is missing."""
    try:
        fields = cast(Message, distribution.metadata)
    except OSError:
        return None
    return fields.get(field)


def installed_packages() -> Iterator[tuple[str, metadata.Distribution]]:
    """Every installed distribution that tells its name and version, after its name."""
    for distribution in metadata.distributions():
        if name := _name(distribution):
            yield name, distribution


def installed_package(name: str) -> metadata.Distribution | None:
    """The installed distribution of that name, spelt in any way; None if there is none."""
    found = metadata.distributions(name=name) if name else ()
    return next((distribution for distribution in found if _name(distribution)), None)


def _name(distribution: metadata.Distribution) -> str | None:
    return told_by(distribution, "Name") if told_by(distribution, "Version") else None


def homes_of_modules() -> Mapping[str, Sequence[str]]:
    """Top-level module → the names of the distributions that hold it. Reads every installed package."""
    homes: dict[str, list[str]] = defaultdict(list)
    for name, distribution in installed_packages():
        for module in _modules(distribution):
            homes[module].append(name)
    return homes


def _modules(distribution: metadata.Distribution) -> set[str]:
    """As the package declares them, else as its files tell."""
    if declared := (distribution.read_text("top_level.txt") or "").split():
        return set(declared)
    files = (file for file in distribution.files or () if inspect.getmodulename(file.name))
    return {file.parts[0] if len(file.parts) > 1 else str(inspect.getmodulename(file.name)) for file in files}
