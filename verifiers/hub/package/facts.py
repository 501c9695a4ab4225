"""What a file says about itself, and the policy under which it is inspected. Plain records that travel as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from verifiers.hub.package.paths import Limits


@dataclass(frozen=True, slots=True)
class Policy:
    """What differs from one hub, project or caller to the next; everything else is the same everywhere.

    limits: how large a file, and what is in it, may be.
    strict_record: refuse where the content of RECORD is not that of the wheel, instead of only saying so.
    environment: the package is an environment: it binds `load_environment` and takes no reserved name. The wheel of
        `verifiers` itself is the one that is not (`hub admin add-sdk`).
    private: the package is private, so it may have a local version.
    name, version: what a form or a session says that the file is; empty for what nobody said.
    """

    limits: Limits = field(default_factory=Limits)
    strict_record: bool = True
    environment: bool = True
    private: bool = False
    name: str = ""
    version: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> Policy:
        """From what `to_dict` made in another process."""
        return cls(**{**told, "limits": Limits(**told["limits"])})


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that is allowed and worth knowing. `code` is one of the rules that warn."""

    code: str
    message: str
    member: str | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """What an environment needs where it is played (`[tool.verifiers.needs]`); secrets are names of variables."""

    secrets: tuple[str, ...] = ()
    network: bool = False
    sandbox: bool = False
    gpu: bool = False


@dataclass(slots=True)
class FileFacts:
    """What is known of a wheel or a source archive once no rule refuses it.

    name: normal form; display_name: as the author spells it. version: as in the file name. size: bytes.
    requires_dist: as given; direct_urls: those of them that name an address instead of an index's package.
    import_names: top-level modules of a wheel; empty for a source archive.
    metadata_text: METADATA or PKG-INFO, exactly. needs: None where the file says nothing of needs.
    hub_dependencies: `owner/name` with a specifier, from `[tool.verifiers.hub]`.
    """

    filename: str
    kind: Literal["wheel", "sdist"]
    name: str = ""
    display_name: str = ""
    version: str = ""
    size: int = 0
    sha256: str = ""
    blake2b_256: str = ""
    metadata_text: str = ""
    metadata_version: str = ""
    requires_python: str | None = None
    summary: str | None = None
    requires_dist: list[str] = field(default_factory=list)
    direct_urls: list[str] = field(default_factory=list)
    extras: list[str] = field(default_factory=list)
    license: str | None = None
    keywords: list[str] = field(default_factory=list)
    classifiers: list[str] = field(default_factory=list)
    project_urls: dict[str, str] = field(default_factory=dict)
    author: str | None = None
    readme: str | None = None
    readme_type: str | None = None
    tags: list[str] = field(default_factory=list)
    build: str = ""
    import_names: list[str] = field(default_factory=list)
    entry_points: dict[str, dict[str, str]] = field(default_factory=dict)
    needs: Needs | None = None
    hub_dependencies: list[str] = field(default_factory=list)
    warnings: list[Remark] = field(default_factory=list)

    @property
    def metadata(self) -> bytes:
        """METADATA or PKG-INFO, byte for byte: what the index serves beside the wheel."""
        return self.metadata_text.encode()

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        told = {name: getattr(self, name) for name in _FIELDS}
        told["needs"] = None if self.needs is None else dataclasses.asdict(self.needs)
        told["warnings"] = [dataclasses.asdict(remark) for remark in self.warnings]
        return told

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> FileFacts:
        """From what `to_dict` made, perhaps in another process."""
        needs = told["needs"]
        given = {**told, "warnings": [Remark(**remark) for remark in told["warnings"]]}
        given["needs"] = None if needs is None else Needs(**{**needs, "secrets": tuple(needs["secrets"])})
        return cls(**given)


_FIELDS = tuple(one.name for one in dataclasses.fields(FileFacts))
