"""What the indexes hold, as plain rows: one or two statements a question, no objects of the ORM.

`name` is always the normal form (PEP 503).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from typing import NamedTuple

from sqlalchemy import Select, case, func, select
from sqlalchemy.orm import Session

from hub_server.accounts.models import Owner
from hub_server.accounts.service import Principal, may
from hub_server.packages.models import File, Project, Release
from hub_server.simple_index.render import FileRow, ProjectFacts, in_order
from verifiers.hub.package.names import normalise
from verifiers.hub.package.project import split_hub_dependency

SDK_OWNER = "sdk"
SDK_NAME = "verifiers"
"""The project that `hub admin add-sdk` fills: every package's index has it."""


class ProjectRef(NamedTuple):
    """Which project a name means in an index, and what decides who may see it."""

    id: int
    owner: str
    name: str
    public: bool
    offers_files: bool


class FileRef(NamedTuple):
    """The bytes behind an address."""

    project: ProjectRef
    sha256: str
    size: int
    metadata_sha256: str | None
    id: int
    uploaded_at: dt.datetime


_PROJECT = select(Project.id, Owner.slug, Project.name, Project.visibility, Project.status).join(
    Owner, Project.owner_id == Owner.id
)


def find_plain(session: Session, name: str) -> ProjectRef | None:
    """The project that has a name in the whole-hub index."""
    return _ref(session, _PROJECT.where(Project.plain_name == name, Project.visibility == "public"))


def find_owned(session: Session, owner: str, name: str) -> ProjectRef | None:
    """The project of an owner."""
    return _ref(session, _PROJECT.where(Owner.slug == owner, Project.name == name))


def _ref(session: Session, query: Select[int, str, str, str, str]) -> ProjectRef | None:
    row = session.execute(query).first()
    if row is None:
        return None
    id, owner, name, visibility, status = row
    return ProjectRef(id, owner, name, visibility == "public", status != "quarantined")


def may_read(session: Session, principal: Principal, owner: str, name: str) -> bool:
    """Whether a token may read a private project of that name, be there one or not."""
    row = session.scalar(select(Owner).where(Owner.slug == owner))
    return row is not None and may(session, principal, "read", row, name)


_YANKED = case(
    (Release.yanked_at.is_(None), None), else_=func.coalesce(Release.yank_reason, Release.yank_class, "")
)


# --- pages --------------------------------------------------------------------------------------------------------


def project_page(session: Session, ref: ProjectRef) -> tuple[ProjectFacts, list[FileRow]]:
    """What the page of a project says: its files, in order, without those of deleted releases."""
    state = select(Project.status, Project.status_reason, Project.serial).where(Project.id == ref.id)
    status, reason, serial = session.execute(state).one()
    project = ProjectFacts(ref.owner, ref.name, status, reason, serial)
    if status == "quarantined":
        return project, []
    query = (
        select(
            Release.given_version, File.filename, File.size, File.sha256, File.requires_python,
            File.metadata_sha256, File.uploaded_at, _YANKED,
        )
        .join(Release, File.release_id == Release.id)
        .where(File.project_id == ref.id, File.deleted_at.is_(None), Release.deleted_at.is_(None))
    )  # fmt: skip
    return project, in_order(FileRow(*row) for row in session.execute(query))


def plain_names(session: Session, among: Collection[str] | None = None) -> set[str]:
    """The names of the whole-hub index; only those of `among`, if given."""
    query = select(Project.plain_name).where(Project.plain_name.is_not(None), Project.visibility == "public")
    if among is not None:
        query = query.where(Project.plain_name.in_(among))
    return {name for name in session.scalars(query) if name is not None}


def owned_names(session: Session, owner: str, principal: Principal | None) -> list[str] | None:
    """The projects of an owner that the caller may see, sorted. None if there is no such owner."""
    row = session.scalar(select(Owner).where(Owner.slug == owner))
    if row is None:
        return None
    query = select(Project.name, Project.visibility).where(Project.owner_id == row.id)
    return sorted(
        name
        for name, visibility in session.execute(query)
        if visibility == "public" or may(session, principal, "read", row, name)
    )


# --- the package's own index --------------------------------------------------------------------------------------


def scope_of(session: Session, ref: ProjectRef) -> dict[str, tuple[str, str]]:
    """The names of a package's index, each with its owner and name: the package, the hub packages that its releases
    declare and those that these declare, and the SDK. The nearer declaration wins; the package itself always does."""
    found = {SDK_NAME: (SDK_OWNER, SDK_NAME), ref.name: (ref.owner, ref.name)}
    level = [ref]
    while level:
        following = []
        for project in level:
            for owner, name in _declared(session, project):
                if name not in found:
                    found[name] = (owner, name)
                    if (dependency := find_owned(session, owner, name)) is not None:
                        following.append(dependency)
        level = following
    return found


def _declared(session: Session, project: ProjectRef) -> Iterator[tuple[str, str]]:
    query = select(Release.facts["hub_dependencies"]).where(
        Release.project_id == project.id, Release.deleted_at.is_(None)
    )
    declared = {text for texts in session.scalars(query) for text in texts or ()}
    for text in sorted(declared):
        owner, requirement = split_hub_dependency(text)
        yield owner, normalise(requirement.name)


# --- files --------------------------------------------------------------------------------------------------------


def find_file(session: Session, ref: ProjectRef, sha256: str, filename: str) -> FileRef | None:
    """A file that is offered: not deleted, and its project not in quarantine."""
    query = (
        select(File.sha256, File.size, File.metadata_sha256, File.id, File.uploaded_at)
        .join(Release, File.release_id == Release.id)
        .where(
            File.project_id == ref.id, File.filename == filename, File.sha256 == sha256,
            File.deleted_at.is_(None), Release.deleted_at.is_(None),
        )
    )  # fmt: skip
    row = session.execute(query).first() if ref.offers_files else None
    return None if row is None else FileRef(ref, *row)
