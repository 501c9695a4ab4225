"""The hub packages that a release stands on, and those that they stand on: all exist, and can be installed together.

Each is declared with its owner in `[tool.verifiers.hub] dependencies`. A lock takes the newest release that fits, so
that is what is looked at here: no two packages of one name, and no two with one top-level module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from sqlalchemy import select
from sqlalchemy.orm import Session

from hub_server.accounts.service import Principal
from hub_server.packages.models import Release
from hub_server.packages.service import is_visible, project_of
from hub_server.publishing.service import Place
from verifiers.hub.package.facts import FileFacts
from verifiers.hub.package.project import check_agreement, split_hub_dependency
from verifiers.hub.package.refusal import refuse

MOST = 200
"""Hub packages that a release may stand on, all together."""


@dataclass(slots=True)
class _Closure:
    """What was found so far: owner by distribution name, id by module."""

    session: Session
    principal: Principal
    public: bool
    owners: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)

    def take(self, owner: str, name: str, modules: Sequence[str]) -> None:
        """Add a package. Refuses `hub-dependency` where it clashes with another."""
        if name in self.owners:
            refuse("hub-dependency", f"{owner}/{name} and {self.owners[name]}/{name} can not be installed together")
        self.owners[name] = owner
        for module in modules:
            if (other := self.modules.setdefault(module, f"{owner}/{name}")) != f"{owner}/{name}":
                refuse("hub-dependency", f"{owner}/{name} and {other} both have a module {module!r}")
        if len(self.owners) > MOST:
            refuse("hub-dependency", f"it stands on more than {MOST} hub packages")

    def follow(self, dependencies: Sequence[str]) -> None:
        """Take what is declared, and what that declares in its turn."""
        for text in dependencies:
            owner, requirement = split_hub_dependency(text)
            name = canonicalize_name(requirement.name)
            if self.owners.get(name) == owner:
                continue
            facts = self._facts_of(owner, name, requirement)
            self.take(owner, name, facts.get("import_names") or [])
            self.follow(facts.get("hub_dependencies") or [])

    def _facts_of(self, owner: str, name: str, requirement: Requirement) -> dict[str, Any]:
        """What the newest fitting release says of itself."""
        project = project_of(self.session, owner, name)
        if project is None or not is_visible(self.session, project, self.principal):
            refuse("hub-dependency", f"there is no {owner}/{name} on this hub")
        if self.public and project.visibility != "public":
            refuse("hub-dependency", f"{owner}/{name} is private, and this package is public")
        offered = select(Release.given_version, Release.id).where(
            Release.project_id == project.id, Release.deleted_at.is_(None), Release.yanked_at.is_(None)
        )
        releases = {Version(shown): id for shown, id in self.session.execute(offered)}
        fitting = list(requirement.specifier.filter(releases))
        if not fitting:
            refuse("hub-dependency", f"no release of {owner}/{name} is {requirement.specifier or 'offered'}")
        newest = select(Release.facts).where(Release.id == releases[max(fitting)])
        facts: dict[str, Any] = self.session.execute(newest).scalar_one()
        return facts


def check_closure(session: Session, principal: Principal, place: Place, facts: Sequence[FileFacts]) -> None:
    """Refuse `hub-dependency` where the declared hub packages of these files can not be installed with them."""
    declared = list(dict.fromkeys(text for one in facts for text in one.hub_dependencies))
    requires = max(facts, key=lambda one: one.kind == "wheel").requires_dist
    check_agreement(declared, requires)
    closure = _Closure(session, principal, place.visibility == "public")
    closure.take(place.owner.slug, place.name, [module for one in facts for module in one.import_names])
    closure.follow(declared)
