"""What is asked for: `owner/name` with versions.

    alice/my-env                 any release
    alice/my-env@1.2             exactly this one; `@latest` is any
    alice/my-env>=1.2,<2         a specifier of PEP 440
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from hub_server.resolution.errors import BadRequirement
from verifiers.hub.package.names import check_owner, normal_version, normalise
from verifiers.hub.package.refusal import RefusedError, printable

_FORM = re.compile(r"\s*([^/\s]+)\s*/\s*([A-Za-z0-9._-]+)\s*(?:@\s*(\S+)\s*|([<>=!~].*)?)\Z", re.DOTALL)


@dataclass(frozen=True)
class Requirement:
    """One constraint on one project. `asker` is the id of the release that has it; empty for the request itself."""

    owner: str
    name: str
    specifier: SpecifierSet = field(default_factory=SpecifierSet)
    pin: Version | None = None
    asker: str = ""
    _known: dict[Version, bool] = field(default_factory=dict, compare=False, repr=False)

    @property
    def project(self) -> str:
        """`owner/name`."""
        return f"{self.owner}/{self.name}"

    @property
    def asking(self) -> str:
        """The project that has it; empty for the request."""
        return self.asker.rpartition("@")[0]

    @property
    def exact(self) -> bool:
        """Whether it names one version, so that a withdrawn release is taken on purpose."""
        if self.pin is not None:
            return True
        return any(one.operator in ("==", "===") and not one.version.endswith(".*") for one in self.specifier)

    @property
    def names_prerelease(self) -> bool:
        """Whether it names a pre-release, and so asks for them (PEP 440)."""
        return bool(self.specifier.prereleases) or (self.pin is not None and self.pin.is_prerelease)

    def admits(self, version: Version) -> bool:
        """Whether a version satisfies it, pre-release or not."""
        known = self._known.get(version)
        if known is None:
            pinned = self.pin is not None
            known = version == self.pin if pinned else self.specifier.contains(version, prereleases=True)
            self._known[version] = known
        return known

    def told(self) -> str:
        """Who wants what, for a message."""
        return f"{self.asker} needs {self}" if self.asker else f"{self} is asked for"

    def __str__(self) -> str:
        return f"{self.project}@{self.pin}" if self.pin is not None else f"{self.project}{self.specifier}"


def parse_requirement(text: str, asker: str = "") -> Requirement:
    """Read one. BadRequirement if it is none."""
    form = _FORM.match(text)
    if form is None:
        raise BadRequirement(f"{printable(text)!r} is not owner/name with versions")
    owner, name, pin, specifier = form.groups()
    try:
        exact = Version(normal_version(pin)) if pin not in (None, "latest") else None
        return Requirement(check_owner(owner), normalise(name), SpecifierSet(specifier or ""), exact, asker)
    except (RefusedError, InvalidSpecifier) as error:
        raise BadRequirement(f"{printable(text)!r}: {printable(str(error))}") from None
