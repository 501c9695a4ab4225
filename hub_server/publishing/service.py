"""Projects, releases and files as publishing changes them: who may, what is there, and the one transaction.

The project's row is locked first, the journal's last; between them nothing waits for anything else.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from hub_server.accounts.models import Owner, Token
from hub_server.accounts.service import Principal, require
from hub_server.context import Context
from hub_server.database import now
from hub_server.fault_points import reach
from hub_server.journal import record
from hub_server.packages.models import File, Project, Release
from hub_server.problems import Denied, NotLoggedIn
from hub_server.publishing.errors import (
    Closed,
    Disagreement,
    FileExists,
    ProjectArchived,
    ProjectFull,
    Tombstone,
)
from verifiers.hub.package.facts import FileFacts
from verifiers.hub.package.names import canonical_version, has_local_part
from verifiers.hub.package.refusal import refuse

OPEN_DAYS = 14
"""For how long a release takes more files: a stolen token can not add a wheel to an old version."""

Visibility = Literal["public", "private"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file goes: the owner, and the project if there is one. `private` is what the project is or will be."""

    owner: Owner
    project_id: int | None
    private: bool


def find_owner_for(session: Session, principal: Principal | None, slug: str) -> Owner:
    """The owner to publish for, if the caller may publish anything there. 401, 403; an absent owner is 403, too."""
    if principal is None:
        raise NotLoggedIn()
    owner = session.scalar(select(Owner).where(Owner.slug == slug))
    if owner is None:
        raise Denied(f"there is no owner {slug[:80]!r} that {principal.slug} may publish for")
    require(session, principal, "publish", owner)
    return owner


def find_place(
    session: Session, principal: Principal | None, slug: str, name: str, visibility: Visibility
) -> Place:
    """Where the caller's file goes. Refused if the caller may not, or the project takes none."""
    if principal is None:
        raise NotLoggedIn()
    found = session.execute(
        select(Owner, Project)
        .outerjoin(Project, (Project.owner_id == Owner.id) & (Project.name == name))
        .where(Owner.slug == slug)
    ).first()
    if found is None:
        raise Denied(f"there is no owner {slug[:80]!r} that {principal.slug} may publish for")
    owner: Owner = found[0]
    project: Project | None = found[1]
    _admit(session, principal, owner, name, project)
    private = visibility == "private" if project is None else project.visibility == "private"
    return Place(owner, None if project is None else project.id, private)


def _admit(session: Session, principal: Principal, owner: Owner, name: str, project: Project | None) -> None:
    """May the caller publish this name, and does it take uploads?"""
    require(session, principal, "publish:new" if project is None else "publish", owner, name)
    if project is not None and project.status in ("archived", "quarantined"):
        raise ProjectArchived(f"{owner.slug}/{name} is {project.status} and takes no uploads")


def known_files(session: Session, project_id: int | None, filenames: Sequence[str]) -> dict[str, File]:
    """Those of the names that the project has or had."""
    if project_id is None:
        return {}
    found = session.scalars(select(File).where(File.project_id == project_id, File.filename.in_(filenames)))
    return {file.filename: file for file in found}


def is_known(file: File | None, filename: str, sha256: str) -> bool:
    """Whether the very bytes are there. FileExists if others are, Tombstone if they were."""
    if file is None:
        return False
    if file.deleted_at is not None:
        raise Tombstone(f"{filename} was published and deleted; the name stays taken")
    if not hmac.compare_digest(file.sha256, sha256):
        raise FileExists(f"File already exists: {filename} is published with other bytes (sha256 {file.sha256})")
    return True


def commit_files(
    context: Context, principal: Principal | None, slug: str, name: str, facts: Sequence[FileFacts],
    visibility: Visibility,
) -> bool:  # fmt: skip
    """The transaction: all checks again under the project's lock, then the rows, then the journal.

    Returns whether anything was new: False if another publisher brought the same bytes meanwhile.
    """
    if principal is None:
        raise NotLoggedIn()
    with context.database.write() as session:
        owner = session.scalars(select(Owner).where(Owner.slug == slug)).one()
        _check_token(session, principal)
        project = _locked_project(session, owner.id, name)
        _admit(session, principal, owner, name, project)
        if project is None:
            project = _make_project(session, owner, name, facts[0], visibility)
        known = known_files(session, project.id, [one.filename for one in facts])
        new = [one for one in facts if not is_known(known.get(one.filename), one.filename, one.sha256)]
        if not new:
            return False
        release = _open_release(session, project, new)
        _check_room(session, project, new, context.settings.max_project_size)
        _add(session, principal, owner, project, release, new)
        reach("before-commit")
    return True


def _check_token(session: Session, principal: Principal) -> None:
    """The token was not revoked while the file came in. A principal without one is the machine's operator."""
    if principal.token_id and session.scalar(select(Token.revoked_at).where(Token.id == principal.token_id)):
        raise Denied(f"the token {principal.token_id} was revoked meanwhile")


def _locked_project(session: Session, owner_id: int, name: str) -> Project | None:
    query = select(Project).where(Project.owner_id == owner_id, Project.name == name)
    return session.scalar(query.with_for_update(of=Project))


def _make_project(
    session: Session, owner: Owner, name: str, facts: FileFacts, visibility: Visibility
) -> Project:
    """The project, made by this transaction or by one that was faster.

    The plain name goes to the first public project of that name; a private one never takes it.
    """
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    taken = select(Project.id).where(Project.plain_name == name)
    plain = name if visibility == "public" and session.scalar(taken) is None else None
    for plain_name in dict.fromkeys((plain, None)):  # the second try: somebody took the plain name just now
        row: dict[str, Any] = {
            "owner_id": owner.id, "name": name, "display_name": facts.display_name or name,
            "plain_name": plain_name, "visibility": visibility, "status": "active", "created_at": now(),
            "serial": 0,
        }  # fmt: skip
        made = insert(Project).values(row).on_conflict_do_nothing().returning(Project)
        if (project := session.scalar(made) or _locked_project(session, owner.id, name)) is not None:
            return project
    raise AssertionError("a project without a plain name conflicts with one of its own owner only")


def _open_release(session: Session, project: Project, new: Sequence[FileFacts]) -> Release:
    """The release that the files join: new, or one that still takes files."""
    first = new[0]
    if project.visibility == "public" and has_local_part(first.version):
        refuse("local-version", f"{first.version!r} is a local version")
    version = canonical_version(first.version)
    release = session.scalar(select(Release).where(Release.project_id == project.id, Release.version == version))
    if release is None:
        return Release(project_id=project.id, version=version, given_version=first.version, created_at=now(), facts={})
    what = f"{project.name} {release.given_version}"
    if release.deleted_at is not None:
        raise Tombstone(f"{what} was published and deleted; its number stays taken")
    if release.yanked_at is not None:
        raise Closed(f"{what} is yanked and takes no more files")
    if now() - release.created_at > dt.timedelta(days=OPEN_DAYS):
        raise Closed(f"{what} is older than {OPEN_DAYS} days and takes no more files")
    if release.given_version != first.version:
        raise Disagreement(f"{what} is the same version as {first.version}, spelt otherwise")
    if any(one.kind == "sdist" for one in new):
        other = select(File.filename).where(File.release_id == release.id, File.kind == "sdist")
        if (filename := session.scalar(other)) is not None:
            raise Closed(f"{what} has its one source archive: {filename}")
    return release


def _check_room(session: Session, project: Project, new: Sequence[FileFacts], limit: int) -> None:
    """All files of the project together stay below the limit."""
    used = session.scalar(select(func.coalesce(func.sum(File.size), 0)).where(File.project_id == project.id)) or 0
    total = used + sum(one.size for one in new)
    if total > limit:
        raise ProjectFull(f"the files of {project.name} would have {total:,} bytes, more than {limit:,}")


def _add(
    session: Session, principal: Principal, owner: Owner, project: Project, release: Release,
    new: Sequence[FileFacts],
) -> None:  # fmt: skip
    """The journal's event and the rows. From here to the commit every other change of the hub waits."""
    at = now()
    files = [{"filename": one.filename, "sha256": one.sha256, "size": one.size} for one in new]
    serial = record(
        session, "release.publish", actor=principal.slug, token_id=principal.token_id or None, owner=owner.slug,
        project=project.name, row=project, version=release.given_version, filename=new[0].filename,
        data={"files": files},
    )  # fmt: skip
    describe(release, new)
    release.serial = serial
    session.add(release)
    for one in new:
        metadata_sha256 = hashlib.sha256(one.metadata).hexdigest() if one.kind == "wheel" else None
        release.files.append(
            File(
                project_id=project.id, filename=one.filename, kind=one.kind, size=one.size, sha256=one.sha256,
                blake2b_256=one.blake2b_256, requires_python=one.requires_python,
                metadata_sha256=metadata_sha256, uploaded_at=at, uploaded_by=principal.slug, serial=serial,
            )
        )  # fmt: skip


def describe(release: Release, new: Sequence[FileFacts]) -> None:
    """What the release says of itself: what its first wheel says, and of needs and hub packages its source archive."""
    told = dict(release.facts)
    warnings = list(release.warnings or [])
    for one in sorted(new, key=lambda facts: facts.kind != "wheel"):
        mine = one.to_dict()
        if not told or (one.kind == "wheel" and told.get("kind") == "sdist"):
            kept = {name: told[name] for name in _OF_SOURCE if told.get(name)}
            told = {name: value for name, value in mine.items() if name not in _ELSEWHERE} | kept
            release.summary, release.requires_python = one.summary, one.requires_python
            release.readme, release.readme_type = one.readme, one.readme_type
        elif one.kind == "sdist":
            told |= {name: mine[name] for name in _OF_SOURCE if mine[name]}
        warnings += [f"{remark.code}: {remark.message}" for remark in one.warnings]
    release.facts, release.warnings = told, list(dict.fromkeys(warnings))


_OF_SOURCE = ("needs", "hub_dependencies")
_ELSEWHERE = ("metadata_text", "readme", "readme_type", "summary", "requires_python", "warnings")
"""What has a column, or a blob, of its own."""
