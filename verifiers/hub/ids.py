"""Ids of environments on a hub, as commands take them.

    parse_id("alice/demo")          HubId("alice", "demo", "")             what `latest` means there
    parse_id("alice/demo@0.1.0")    HubId("alice", "demo", "==0.1.0")      pinned
    parse_id("alice/demo>=0.1,<1")  HubId("alice", "demo", "<1,>=0.1")
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from verifiers.errors import ConfigError

_ID = re.compile(r"(?P<owner>[^/@<>=!~,\s]+)/(?P<name>[^/@<>=!~,\s]+)\s*(?P<rest>[@<>=!~].*)?\Z")
_FORM = "An id is OWNER/NAME, OWNER/NAME@VERSION or OWNER/NAME with bounds, as in 'alice/demo>=1,<2'."


@dataclass(frozen=True, slots=True)
class HubId:
    """`owner/name` and which versions of it; none given is `latest`. `name` is the normal form."""

    owner: str
    name: str
    specifier: str = ""

    @property
    def project(self) -> str:
        """`owner/name`."""
        return f"{self.owner}/{self.name}"

    @property
    def version(self) -> str | None:
        """The one version that is pinned, if it is."""
        exact = self.specifier.startswith("==") and "," not in self.specifier and not self.specifier.endswith("*")
        return self.specifier.removeprefix("==") if exact else None

    def __str__(self) -> str:
        return f"{self.project}@{self.version}" if self.version else f"{self.project}{self.specifier}"


def is_hub_id(text: str) -> bool:
    """Whether a command's argument names a package of a hub, and no folder."""
    return "/" in text and not text.startswith((".", "/", "~")) and _ID.match(text.strip()) is not None


def parse_id(text: str) -> HubId:
    """Read an id. ConfigError says what is wrong with it."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version

    match = _ID.match(text.strip())
    if match is None:
        raise ConfigError(f"{text!r} is no id of a hub", hint=_FORM)
    owner, name, rest = match["owner"], canonicalize_name(match["name"]), (match["rest"] or "").strip()
    if rest in ("", "@latest"):
        return HubId(owner, name)
    try:
        if rest.startswith("@"):
            return HubId(owner, name, f"=={Version(rest[1:])}")
        return HubId(owner, name, str(SpecifierSet(rest)))
    except (InvalidVersion, InvalidSpecifier) as error:
        raise ConfigError(f"{text!r} names no version: {error}", hint=_FORM, cause=error) from error
