"""Names, versions and file names: the forms of PEP 503, 440, 427 and 625, and the hub's own rules for them.

    normalise("My.Env")                                      'my-env'
    normal_version("v1.0.0")                                 '1.0.0'   as it is shown and stands in file names
    canonical_version("v1.0.0")                              '1'       equal for equal versions: the key
    parse_wheel_name("my_env-1.0.0-py3-none-any.whl")        WheelName(...)
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

from packaging.tags import Tag
from packaging.utils import (
    InvalidName,
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from verifiers.hub.package.protected import owner_of
from verifiers.hub.package.refusal import printable, refuse

ROUTE_WORDS = frozenset(
    "simple legacy full files api static docs login logout account search admin new healthz readyz metrics".split()
)
"""First parts of the hub's addresses: no owner and no package is called so."""

API_WORDS = frozenset("owners tokens whoami audit resolve".split())
"""What stands after /api/v1/ where other addresses have an owner: no owner is called so."""

MAX_NAME = 100
"""Characters of a name. File names must fit in 255 bytes with version and tags."""

_OWNER = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,37}[a-z0-9])\Z")
_FILE = re.compile(r"[A-Za-z0-9_.+!-]{1,200}\Z")
MAX_TAGS = 100
"""That one file name may stand for."""
LONG_NUMBER = re.compile(r"[0-9]{19}")
"""What does not fit into the 64 bits that installers have for a part of a version."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\Z")


@dataclass(frozen=True, slots=True)
class WheelName:
    """The parts of a wheel's file name. `name` is the normal form, `tags` the expanded set."""

    name: str
    version: str
    build: str
    tags: frozenset[Tag]


@dataclass(frozen=True, slots=True)
class SdistName:
    """The parts of a source archive's file name. `top` is the one folder that it holds."""

    name: str
    version: str

    @property
    def top(self) -> str:
        """`name-version`, the folder inside and the stem of the file name."""
        return f"{module_of(self.name)}-{self.version}"


# --- names and versions -----------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def normalise(name: str) -> str:
    """The normal form of a project's name (PEP 503): the key in addresses and indexes. Refuses `project-name`."""
    if len(name) > MAX_NAME or _NAME.match(name) is None:
        refuse("project-name", f"{printable(name)!r} is no name of a package")
    return str(canonicalize_name(name))


def module_of(name: str) -> str:
    """The module that a package's environment is in, and its name in file names: the normal form with underscores."""
    return normalise(name).replace("-", "_")


@lru_cache(maxsize=4096)
def normal_version(version: str) -> str:
    """The version as it is shown and stands in file names: `v1.0.0` is `1.0.0`. Refuses `version`."""
    return str(_version(version))


@lru_cache(maxsize=4096)
def canonical_version(version: str) -> str:
    """One text for all spellings of equal versions: `1.0`, `1.0.0` and `v1` are `1`. Refuses `version`.

    It is a key, to look a release up and to keep it unique, not what is shown.
    """
    return canonicalize_version(_version(version))


def _version(version: str) -> Version:
    if LONG_NUMBER.search(version):
        refuse("version", f"{printable(version)!r} has a number of more than 18 digits")
    try:
        return Version(version)
    except InvalidVersion:
        refuse("version", f"{printable(version)!r} is no version")


def has_local_part(version: str) -> bool:
    """Whether a version is a local one, such as `1.0+mine`. Refuses `version`."""
    return _version(version).local is not None


def check_owner(slug: str) -> str:
    """The slug of an owner, as it is. Refuses `owner-name`."""
    if _OWNER.match(slug) is None or "--" in slug:
        refuse("owner-name", f"{printable(slug)!r} is no name for an owner")
    if slug in ROUTE_WORDS | API_WORDS:
        refuse("owner-name", f"{slug!r} is a word of the hub's addresses")
    return slug


def check_project(name: str) -> str:
    """The normal form of a name under which a package may be published. Refuses `project-name`, `reserved-name`."""
    normal = normalise(name)
    if normal in ROUTE_WORDS:
        refuse("reserved-name", f"{normal!r} is a word of the hub's addresses")
    owner = owner_of(normal.replace("-", "_"))
    if owner is not None:
        refuse("reserved-name", f"{normal!r} is the name of a module of {owner}")
    return normal


# --- file names -------------------------------------------------------------------------------------------------


def parse_wheel_name(filename: str) -> WheelName:
    """The parts of a wheel's file name, which must be spelt in the one normal form. Refuses `file-name`."""
    _check_characters(filename)
    parts = filename.removesuffix(".whl").split("-")
    if math.prod(part.count(".") + 1 for part in parts[-3:]) > MAX_TAGS:
        refuse("file-name", f"{filename!r} names more than {MAX_TAGS} tags")
    try:
        name, version, build, tags = parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion, InvalidName) as error:
        refuse("file-name", f"{filename!r} is no file name of a wheel: {printable(str(error))}")
    normal_version(str(version))
    right = "-".join([module_of(name), str(version), *parts[2:-3], *(part.lower() for part in parts[-3:])]) + ".whl"
    _only(filename, right)
    return WheelName(str(name), str(version), "".join(map(str, build)), tags)


def parse_sdist_name(filename: str) -> SdistName:
    """The parts of a source archive's file name (PEP 625), spelt in the one normal form. Refuses `file-name`."""
    _check_characters(filename)
    if not filename.endswith(".tar.gz"):
        refuse("file-name", f"{filename!r} is no source archive: those end in .tar.gz")
    try:
        name, version = parse_sdist_filename(filename)
    except (InvalidSdistFilename, InvalidVersion, InvalidName) as error:
        refuse("file-name", f"{filename!r} is no file name of a source archive: {printable(str(error))}")
    normal_version(str(version))
    _only(filename, f"{module_of(name)}-{version}.tar.gz")
    return SdistName(str(name), str(version))


def _check_characters(filename: str) -> None:
    if _FILE.match(filename) is None:
        refuse(
            "file-name", f"{printable(filename)!r} holds other characters than a file name may, or more than 200"
        )


def _only(filename: str, right: str) -> None:
    if filename != right:
        refuse("file-name", f"{filename!r} must be called {right!r}")
