"""The hub as of a serial: which releases there were, and which of them may be taken.

What was published, yanked and deleted comes from the files' serials and the journal, so that it is the same for ever; a
release's facts are fixed once it has a wheel, and without one it is not taken. Whether the caller may see a project,
and whether it is in quarantine, is asked of today: rights decide whether there is an answer, never which one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from hub_server.accounts.models import Owner
from hub_server.accounts.service import Principal
from hub_server.journal import JournalEvent
from hub_server.packages.events import DELETE, UNYANK, YANK
from hub_server.packages.models import File, Project, Release
from hub_server.packages.records import is_offered
from hub_server.packages.service import is_visible, no_project
from hub_server.resolution.errors import Quarantined
from hub_server.resolution.requirements import Requirement, parse_requirement
from hub_server.resolution.search import Candidate
from verifiers.hub.package.names import canonical_version
from verifiers.hub.schema import Yank


@dataclass
class Row:
    """A release as of the serial. `deleted` is the event that has deleted it since, if one has."""

    project: Project
    version: str
    shown: str
    requires_python: str | None
    facts: dict[str, Any]
    files: list[File] = field(default_factory=list)
    yank: Yank | None = None
    deleted: JournalEvent | None = None


@dataclass
class _Loaded:
    """One project: what may be taken, highest first, and why the rest may not."""

    project: Project
    candidates: list[Candidate]
    passed_over: list[str]


class HubUniverse:
    """What a hub offers one caller as of a serial."""

    def __init__(
        self, session: Session, serial: int, principal: Principal | None, wanted: Sequence[Requirement],
        python: Version | None = None, prereleases: bool = False,
    ) -> None:  # fmt: skip
        self._session = session
        self._serial = serial
        self._principal = principal
        self._python = python
        self._prereleases = prereleases
        self._asked: dict[str, list[Requirement]] = defaultdict(list)
        for one in wanted:
            self._asked[one.project].append(one)
        self._loaded: dict[str, _Loaded | None] = {}
        self._load(sorted(self._asked))

    def offer(self, project: str, asker: str) -> Sequence[Candidate]:
        """The releases that may be taken, highest first. NotFound, Quarantined."""
        if project not in self._loaded:
            self._load([project])
        found = self._loaded[project]
        if found is None:
            owner, name = project.split("/")
            raise no_project(self._session, owner, name, self._principal, asker)
        if not is_offered(found.project):
            reason = found.project.status_reason or "no reason was given"
            raise Quarantined(f"{project} is in quarantine: {reason}")
        return found.candidates

    def passed_over(self, project: str) -> Sequence[str]:
        """Why its other releases may not be taken."""
        found = self._loaded.get(project)
        return found.passed_over if found else []

    # --- loading ----------------------------------------------------------------------------------------------

    def _load(self, ids: Sequence[str]) -> None:
        pairs = [tuple(id.split("/")) for id in ids]
        query = select(Project).join(Owner, Project.owner_id == Owner.id)
        found = self._session.scalars(query.where(tuple_(Owner.slug, Project.name).in_(pairs))).all()
        visible = {
            project.id: project for project in found if is_visible(self._session, project, self._principal)
        }
        rows = self._rows(visible)
        self._loaded.update(dict.fromkeys(ids))
        for project in visible.values():
            # One that had no release yet was not there, whatever it has now.
            if rows[project.id]:
                id = f"{project.owner.slug}/{project.name}"
                self._loaded[id] = self._choose(id, project, rows[project.id])

    def _rows(self, projects: dict[int, Project]) -> dict[int, list[Row]]:
        """The releases that were there, in any order, with their files and what has happened to them."""
        columns = (
            Release.id, Release.project_id, Release.version, Release.given_version, Release.requires_python,
            Release.facts,
        )  # fmt: skip
        query = select(*columns).where(Release.project_id.in_(projects))
        by_id: dict[int, Row] = {}
        by_version: dict[tuple[int, str], Row] = {}
        for release in self._session.execute(query):
            row = Row(
                projects[release.project_id], release.version, release.given_version, release.requires_python,
                release.facts,
            )  # fmt: skip
            by_id[release.id] = by_version[release.project_id, release.version] = row
        files = select(File).where(File.project_id.in_(projects), File.serial <= self._serial)
        for file in self._session.scalars(files.order_by(File.filename)):
            if (row_of_file := by_id.get(file.release_id)) is not None:
                row_of_file.files.append(file)
        for event in self._events(projects):
            happened_to = by_version.get((event.project_id or 0, canonical_version(event.version or "0")))
            if happened_to is not None:
                self._apply(happened_to, event)
        grouped: dict[int, list[Row]] = {id: [] for id in projects}
        for row in by_id.values():
            if row.files:  # otherwise it came later
                grouped[row.project.id].append(row)
        return grouped

    def _events(self, projects: Iterable[int]) -> Sequence[JournalEvent]:
        mine = JournalEvent.project_id.in_(projects)
        query = select(JournalEvent).where(mine, JournalEvent.action.in_((YANK, UNYANK, DELETE)))
        return self._session.scalars(query.order_by(JournalEvent.serial)).all()

    def _apply(self, row: Row, event: JournalEvent) -> None:
        if event.action == DELETE:
            row.deleted = event
        elif event.serial <= self._serial:
            row.yank = None if event.action == UNYANK else _yank(event)

    # --- choosing ---------------------------------------------------------------------------------------------

    def _choose(self, id: str, project: Project, rows: list[Row]) -> _Loaded:
        """Which releases may be taken. It depends on the request alone, so it is the same at each step of a search."""
        wanted = self._asked.get(id, [])
        loaded = _Loaded(project, [], [])
        fitting: list[tuple[Version, Row]] = []
        for version, row in sorted(((Version(row.shown), row) for row in rows), key=lambda pair: pair[0], reverse=True):
            reason = self._why_not(version, row, wanted)
            if reason is None:
                fitting.append((version, row))
            else:
                loaded.passed_over.append(f"{row.shown} {reason}")
        admitted = [version for version, _ in fitting if all(one.admits(version) for one in wanted)]
        # PEP 440: pre-releases are for who names one, or where nothing else would do.
        prereleases = (
            self._prereleases
            or any(one.names_prerelease for one in wanted)
            or not any(not version.is_prerelease for version in admitted)
        )
        for version, row in fitting:
            if version.is_prerelease and not prereleases:
                loaded.passed_over.append(f"{row.shown} is a pre-release")
            else:
                loaded.candidates.append(_candidate(id, version, row))
        return loaded

    def _why_not(self, version: Version, row: Row, wanted: Sequence[Requirement]) -> str | None:
        """Why a release may not be taken whatever else is; None if it may."""
        if row.deleted is not None and row.deleted.serial <= self._serial:
            return f"was deleted on {row.deleted.at:%Y-%m-%d}"
        if not any(file.kind == "wheel" for file in row.files):
            return "has no wheel"
        if self._python is not None and not _fits_python(row.requires_python, self._python):
            return f"needs Python {row.requires_python}"
        if row.yank is not None and not any(one.exact and one.admits(version) for one in wanted):
            return f"is yanked ({row.yank.reason}): only a request for exactly this version takes it"
        return None


def _candidate(id: str, version: Version, row: Row) -> Candidate:
    asker = f"{id}@{row.shown}"
    needs = tuple(parse_requirement(text, asker) for text in sorted(row.facts.get("hub_dependencies") or []))
    return Candidate(id, version, row.shown, needs, row)


def _yank(event: JournalEvent) -> Yank:
    return Yank(reason=event.data.get("reason") or "yanked", cause=event.data.get("class") or "other", at=event.at)


def _fits_python(specifier: str | None, python: Version) -> bool:
    try:
        return SpecifierSet(specifier or "").contains(python, prereleases=True)
    except InvalidSpecifier:
        return True
