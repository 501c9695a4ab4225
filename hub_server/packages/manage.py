"""Looking after projects: yank, visibility, status, deletion, the plain name. Each is one journalled change.

Each function locks the project's row first, so that two changes of a project, or a change and an upload, take turns.
With `dry_run` it makes all checks and tells what it would change. What is so already is left so, and no event.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from hub_server.accounts.service import Principal, require
from hub_server.database import Database, now
from hub_server.journal import record
from hub_server.packages.errors import LocalVersions, NoReason, NotPlain, OnlyTheHub, TooLateToDelete
from hub_server.packages.events import DELETE, STATUS, TRANSFER, UNYANK, VISIBILITY, YANK
from hub_server.packages.models import File, Project, Release
from hub_server.packages.service import is_visible, project_of, release_of
from hub_server.packages.terms import refresh
from hub_server.problems import NotFound
from verifiers.hub.package.names import has_local_part, normalise
from verifiers.hub.package.refusal import RefusedError
from verifiers.hub.schema import ProjectChange, ProjectSettings, ReleaseChange, Status, Visibility, Yank

GRACE = dt.timedelta(minutes=15)
"""For how long after its upload a release that nobody has downloaded may be deleted by its owner."""

SET_ASIDE = ("archived", "deprecated", "quarantined")


# --- releases ---------------------------------------------------------------------------------------------------


def yank(
    session: Session, principal: Principal, owner: str, name: str, version: str, why: Yank, dry_run: bool = False
) -> ReleaseChange:
    """Withdraw a release: installers pass it over unless it is pinned. Another reason replaces the one before."""
    project, release = _held_release(session, principal, owner, name, version, "yank", "publisher")
    changed = (release.yank_reason, release.yank_class) != (why.reason, why.cause)
    if changed and not dry_run:
        release.yanked_at, release.yank_reason, release.yank_class = now(), why.reason, why.cause
        data = {"reason": why.reason, "class": why.cause}
        refresh(session, project)
        release.serial = _record(session, principal, YANK, project, release, data)
    return _release_change(session, project, release, changed)


def unyank(
    session: Session, principal: Principal, owner: str, name: str, version: str, dry_run: bool = False
) -> ReleaseChange:
    """Offer a yanked release again."""
    project, release = _held_release(session, principal, owner, name, version, "yank", "publisher")
    changed = release.yanked_at is not None
    if changed and not dry_run:
        release.yanked_at = release.yank_reason = release.yank_class = None
        refresh(session, project)
        release.serial = _record(session, principal, UNYANK, project, release)
    return _release_change(session, project, release, changed)


def delete_release(
    session: Session, principal: Principal, owner: str, name: str, version: str, dry_run: bool = False
) -> ReleaseChange:
    """Take a release away. Its number and its file names stay taken. TooLateToDelete but for the hub's admins."""
    project, release = _held_release(session, principal, owner, name, version, "admin", "admin")
    query = select(File).where(File.release_id == release.id, File.deleted_at.is_(None))
    # Read anew with the lock: what the session holds of them may be older than a download.
    files = session.scalars(query.with_for_update().execution_options(populate_existing=True)).all()
    if not principal.runs_the_hub():
        _refuse_late(release, [file.filename for file in files if file.downloaded_at is not None])
    told = _release_change(session, project, release, True)
    if not dry_run:
        release.deleted_at = now()
        for file in files:
            file.deleted_at = release.deleted_at
        data = {"files": told.files}
        refresh(session, project)
        told.serial = release.serial = _record(session, principal, DELETE, project, release, data)
    return told


def _refuse_late(release: Release, downloaded: list[str]) -> None:
    if now() - release.created_at > GRACE:
        minutes = int(GRACE.total_seconds() // 60)
        raise TooLateToDelete(f"{release.given_version} was published more than {minutes} minutes ago")
    if downloaded:
        raise TooLateToDelete(f"{', '.join(sorted(downloaded))} was downloaded already")


def note_download(database: Database, file_id: int) -> bool:
    """Note that somebody has a file, so that it can no longer be deleted. False if it was deleted meanwhile.

    Only files younger than GRACE need it: afterwards the answer decides nothing.
    """
    mine = (File.id == file_id, File.deleted_at.is_(None))
    first = update(File).where(*mine, File.downloaded_at.is_(None)).values(downloaded_at=now())
    with database.write() as session:
        if session.execute(first.returning(File.id)).first() is not None:
            return True
        return session.scalar(select(File.id).where(*mine)) is not None


# --- projects ---------------------------------------------------------------------------------------------------


def change_project(
    session: Session, principal: Principal, owner: str, name: str, asked: ProjectSettings, dry_run: bool = False
) -> ProjectChange:
    """Visibility and status, both or one of them."""
    project = _held(session, principal, owner, name)
    told = _project_change(project, False)
    if asked.visibility is not None:
        told = set_visibility(session, principal, owner, name, asked.visibility, dry_run)
    if asked.status is not None:
        before = told.changed
        told = set_status(session, principal, owner, name, asked.status, asked.status_reason, dry_run)
        told.changed |= before
    return told


def set_visibility(
    session: Session, principal: Principal, owner: str, name: str, visibility: Visibility, dry_run: bool = False
) -> ProjectChange:
    """Show a project to everybody, or to the owner's members only.

    The first time that it is public it gets the plain name, if no other owner's project has it. It keeps it when it
    becomes private again: otherwise another owner could take the name, and everybody who installs by it would get that
    owner's code. The whole-hub index shows public projects only.
    """
    project = _held(session, principal, owner, name)
    changed = project.visibility != visibility
    if changed and visibility == "public":
        _refuse_local_versions(session, project)
    if changed and not dry_run:
        project.visibility = visibility
        if visibility == "public" and project.plain_name is None:
            _take_plain_name(session, project)
        data = {"visibility": visibility, "plain_name": project.plain_name}
        _record(session, principal, VISIBILITY, project, None, data)
    return _project_change(project, changed)


def _refuse_local_versions(session: Session, project: Project) -> None:
    query = select(Release.given_version).where(Release.project_id == project.id, Release.deleted_at.is_(None))
    if local := sorted(version for version in session.scalars(query) if has_local_part(version)):
        raise LocalVersions(f"{', '.join(local)} is a local version, which no public project has")


def _take_plain_name(session: Session, project: Project) -> None:
    """Have the plain name, unless another project has it: also one that takes it at this moment."""
    with contextlib.suppress(IntegrityError), session.begin_nested():
        project.plain_name = project.name


def set_status(
    session: Session, principal: Principal, owner: str, name: str, status: Status, reason: str | None,
    dry_run: bool = False,
) -> ProjectChange:  # fmt: skip
    """Mark a project (PEP 792): archived takes no uploads, deprecated warns, quarantined offers no files at all."""
    project = _held(session, principal, owner, name)
    if "quarantined" in (status, project.status) and status != project.status and not principal.runs_the_hub():
        raise OnlyTheHub("a project is put into quarantine, and taken out of it, by the admins of the hub")
    if status in SET_ASIDE and not reason:
        raise NoReason(f"{owner}/{project.name} can not be {status} without a reason")
    kept = reason if status in SET_ASIDE else None
    changed = (project.status, project.status_reason) != (status, kept)
    if changed and not dry_run:
        project.status, project.status_reason = status, kept
        _record(session, principal, STATUS, project, None, {"status": status, "reason": kept})
    return _project_change(project, changed)


def transfer_name(
    session: Session, principal: Principal, owner: str, name: str, to: str, dry_run: bool = False
) -> ProjectChange:
    """Give the plain name of the whole-hub index to another owner's public project of the same name.

    Both projects get an event, since what both show changes.
    """
    for slug in sorted({owner, to}):  # always in one order, so that two transfers do not wait for each other
        project_of(session, slug, _normal(name), lock=True)
    project = _held(session, principal, owner, name)
    taker = project_of(session, to, project.name)
    if taker is None or taker.visibility != "public" or taker.id == project.id:
        raise NotPlain(f"there is no other public project {to}/{project.name}")
    if project.plain_name is None:
        raise NotPlain(f"{owner}/{project.name} does not have the name {project.name} in the whole-hub index")
    if not dry_run:
        project.plain_name = None
        session.flush()  # before the other has it: no two may have one name
        taker.plain_name = taker.name
        data = {"from": f"{owner}/{project.name}", "to": f"{to}/{taker.name}"}
        for one in (project, taker):
            _record(session, principal, TRANSFER, one, None, data)
    return _project_change(project, True)


# --- what they share --------------------------------------------------------------------------------------------


def _held(
    session: Session, principal: Principal, owner: str, name: str, scope: str = "admin", role: str = "admin"
) -> Project:
    """The project, its row locked until the commit, if the caller may do this to it.

    NotFound for one that it may not even see.
    """
    project = project_of(session, owner, _normal(name), lock=True)
    if project is None or not is_visible(session, project, principal):
        raise NotFound(f"there is no project {owner}/{name}")
    require(session, principal, scope, project.owner, project.name, role)
    return project


def _held_release(
    session: Session, principal: Principal, owner: str, name: str, version: str, scope: str, role: str
) -> tuple[Project, Release]:
    project = _held(session, principal, owner, name, scope, role)
    return project, release_of(session, project, version)


def _normal(name: str) -> str:
    """The normal form; what has none is as it is, and is nothing's name."""
    try:
        return normalise(name)
    except RefusedError:
        return name


def _record(
    session: Session, principal: Principal, action: str, project: Project, release: Release | None,
    data: dict[str, Any] | None = None,
) -> int:  # fmt: skip
    return record(
        session, action, actor=principal.slug, token_id=principal.token_id, owner=project.owner.slug,
        project=project.name, row=project, version=release.given_version if release else None, data=data,
    )  # fmt: skip


def _release_change(session: Session, project: Project, release: Release, changed: bool) -> ReleaseChange:
    query = select(File.filename).where(File.release_id == release.id, File.deleted_at.is_(None))
    yanked = None
    if release.yanked_at is not None:
        why = {"reason": release.yank_reason, "cause": release.yank_class, "at": release.yanked_at}
        yanked = Yank.model_validate(why)
    return ReleaseChange(
        id=f"{project.owner.slug}/{project.name}@{release.given_version}", changed=changed, serial=project.serial,
        yanked=yanked, files=sorted(session.scalars(query)),
    )  # fmt: skip


def _project_change(project: Project, changed: bool) -> ProjectChange:
    return ProjectChange.model_validate(
        {
            "id": f"{project.owner.slug}/{project.name}", "changed": changed, "serial": project.serial,
            "visibility": project.visibility, "status": project.status, "status_reason": project.status_reason,
            "plain_name": project.plain_name is not None,
        }
    )  # fmt: skip
