"""Projects, releases and files as publishing changes them: who may, what is there, and the one transaction.

The project's row is locked first, the journal's last; between them nothing waits for anything else.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import hmac
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from hub_server.accounts.models import Owner
from hub_server.accounts.service import Principal, check_still_valid, require, require_role
from hub_server.context import Context
from hub_server.database import now, table_of
from hub_server.fault_points import reach
from hub_server.journal import Stamps, record
from hub_server.packages.models import File, Project, Release
from hub_server.packages.terms import add_release, terms_of
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

NO_SERIAL = 0
"""Of rows whose transaction has yet to take its serial."""

Visibility = Literal["public", "private"]


OWNERS, PROJECTS, RELEASES, FILES = (table_of(model) for model in (Owner, Project, Release, File))
_STAMPS = Stamps(
    (PROJECTS, PROJECTS.c.id == bindparam("of_project")),
    (RELEASES, RELEASES.c.id == bindparam("of_release")),
    (FILES, (FILES.c.release_id == bindparam("of_release")) & (FILES.c.serial == NO_SERIAL)),
)
_OF_PROJECT = (PROJECTS.c.id, PROJECTS.c.visibility, PROJECTS.c.status)


@dataclass(frozen=True, slots=True)
class Place:
    """Where files go: the owner, and the project if there is one. `visibility` is what the project has or will have."""

    owner: Owner
    name: str
    project_id: int | None
    visibility: Visibility
    status: str | None = None


class Known(NamedTuple):
    """A file name that is taken."""

    filename: str
    sha256: str
    deleted: bool


def find_owner_for(session: Session, principal: Principal | None, slug: str) -> Owner:
    """The owner to publish for, if the caller may publish anything there. 401, 403; an absent owner is 403, too."""
    if principal is None:
        raise NotLoggedIn()
    owner = session.scalar(select(Owner).where(Owner.slug == slug))
    if owner is None:
        raise Denied(f"there is no owner {slug[:80]!r} that {principal.slug} may publish for")
    require_role(session, principal, "publish", owner)
    return owner


def find_place(
    session: Session, principal: Principal, slug: str, name: str, filenames: Sequence[str],
    visibility: Visibility,
) -> tuple[Place, dict[str, Known]]:  # fmt: skip
    """Where the caller's files go, and those of their names that are taken there. Refused if the caller may not."""
    joined = OWNERS.outerjoin(PROJECTS, (PROJECTS.c.owner_id == OWNERS.c.id) & (PROJECTS.c.name == name))
    query = select(OWNERS.c.id, *_OF_PROJECT).select_from(joined).where(OWNERS.c.slug == slug)
    found = session.connection().execute(query).first()
    if found is None:
        raise Denied(f"there is no owner {slug[:80]!r} that {principal.slug} may publish for")
    owner_id, project_id, visible, status = found
    owner = Owner(id=owner_id, slug=slug)
    place = Place(owner, name, project_id, visibility if project_id is None else visible, status)
    admit(session, principal, place)
    return place, known_files(session, project_id, filenames)


def admit(session: Session, principal: Principal, place: Place) -> None:
    """May the caller publish this name, and does it take uploads?

    Both rights are asked for in one order: a refusal tells nobody whether a private project is there.
    """
    require(session, principal, "publish", place.owner, place.name)
    if place.project_id is None:
        require(session, principal, "publish:new", place.owner, place.name)
    if place.status in ("archived", "quarantined"):
        raise ProjectArchived(f"{place.owner.slug}/{place.name} is {place.status} and takes no uploads")


def known_files(session: Session, project_id: int | None, filenames: Sequence[str]) -> dict[str, Known]:
    """Those of the names that the project has or had."""
    if project_id is None:
        return {}
    query = select(FILES.c.filename, FILES.c.sha256, FILES.c.deleted_at.is_not(None)).where(
        FILES.c.project_id == project_id, FILES.c.filename.in_(filenames)
    )
    return {row.filename: Known(*row) for row in session.connection().execute(query)}


def is_known(known: Known | None, filename: str, sha256: str) -> bool:
    """Whether the very bytes are there. FileExists if others are, Tombstone if they were."""
    if known is None:
        return False
    if known.deleted:
        raise Tombstone(f"{filename} was published and deleted; the name stays taken")
    if not hmac.compare_digest(known.sha256, sha256):
        raise FileExists(f"File already exists: {filename} is published with other bytes (sha256 {known.sha256})")
    return True


def commit_files(
    context: Context, principal: Principal, place: Place, facts: Sequence[FileFacts],
    report: dict[str, Any] | None = None, also: Callable[[Session], None] | None = None,
) -> bool:  # fmt: skip
    """The transaction: all checks again under the project's lock, then the journal and the rows.

    report: the author's check report on the wheel. also: what else belongs to the transaction.
    Returns whether anything was new: False if another publisher brought the same bytes meanwhile.
    """
    with context.database.write() as session:
        check_still_valid(session, principal)
        project_id, fresh = _lock_project(session, principal, place, facts[0])
        new = list(facts)
        release = None
        if not fresh:
            known = known_files(session, project_id, [one.filename for one in facts])
            new = [one for one in facts if not is_known(known.get(one.filename), one.filename, one.sha256)]
            if not new:
                return False
            release = open_release(session, project_id, place.name, new[0].version, {one.kind for one in new})
        _check_room(session, None if fresh else project_id, new, context.settings.max_project_size)
        if release is None:
            said = min(new, key=lambda one: one.kind != "wheel")
            terms = terms_of(place.owner.slug, place.name, said.summary, said.keywords)
            add_release(session.connection(), project_id, said.version, terms, is_first=fresh)
        if also is not None:
            also(session)
        _add(session, principal, place, project_id, release, new, report)
        reach("before-commit")
    return True


def _lock_project(
    session: Session, principal: Principal, place: Place, facts: FileFacts
) -> tuple[int, bool]:
    """The id of the project, locked until the commit, and whether this transaction made it. All is as it was looked up,
    or is checked again.

    The plain name goes to the first public project of that name; a private one never takes it.
    """
    connection = session.connection()
    lock = (
        select(*_OF_PROJECT)
        .where(PROJECTS.c.owner_id == place.owner.id, PROJECTS.c.name == place.name)
        .with_for_update()
    )
    insert_or_not = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    found = connection.execute(lock).first()
    public = place.visibility == "public"
    for plain_name in (place.name if public else None, None):  # again: somebody else has the plain name
        if found is not None:
            break
        admit(session, principal, dataclasses.replace(place, project_id=None))
        row = {
            "owner_id": place.owner.id, "name": place.name, "display_name": facts.display_name or place.name,
            "plain_name": plain_name, "visibility": place.visibility, "status": "active", "created_at": now(),
            "serial": 0,
        }  # fmt: skip
        make = insert_or_not(PROJECTS).on_conflict_do_nothing().returning(PROJECTS.c.id)
        if (made := connection.execute(make, row).scalar()) is not None:
            return made, True
        found = connection.execute(lock).first()
    assert found is not None, "a project without a plain name conflicts with one of its own owner only"
    project_id, visibility, status = found
    admit(session, principal, Place(place.owner, place.name, project_id, visibility, status))
    if visibility == "public" and has_local_part(facts.version):
        refuse("local-version", f"{facts.version!r} is a local version")
    return int(project_id), False


def open_release(
    session: Session, project_id: int, name: str, version: str, kinds: Collection[str]
) -> Release | None:
    """The release that files of these kinds join, if there is one: it still takes them."""
    key = canonical_version(version)
    release = session.scalar(select(Release).where(Release.project_id == project_id, Release.version == key))
    if release is None:
        return None
    what = f"{name} {release.given_version}"
    if release.deleted_at is not None:
        raise Tombstone(f"{what} was published and deleted; its number stays taken")
    if release.yanked_at is not None:
        raise Closed(f"{what} is yanked and takes no more files")
    if now() - release.created_at > dt.timedelta(days=OPEN_DAYS):
        raise Closed(f"{what} is older than {OPEN_DAYS} days and takes no more files")
    if release.given_version != version:
        raise Disagreement(f"{what} is the same version as {version}, spelt otherwise")
    if "sdist" in kinds:
        other = select(File.filename).where(File.release_id == release.id, File.kind == "sdist")
        if (filename := session.scalar(other)) is not None:
            raise Closed(f"{what} has its one source archive: {filename}")
    return release


def _check_room(session: Session, project_id: int | None, new: Sequence[FileFacts], limit: int) -> None:
    """All files of the project that are not deleted stay below the limit, together."""
    total = sum(one.size for one in new)
    if project_id is not None:
        there = (FILES.c.project_id == project_id) & FILES.c.deleted_at.is_(None)
        total += session.scalar(select(func.sum(FILES.c.size)).where(there)) or 0
    if total > limit:
        raise ProjectFull(f"the files of {new[0].name} would have {total:,} bytes, more than {limit:,}")


def _add(
    session: Session, principal: Principal, place: Place, project_id: int, release: Release | None,
    new: Sequence[FileFacts], report: dict[str, Any] | None,
) -> None:  # fmt: skip
    """The rows, and last the journal's event, which gives them their serial."""
    connection = session.connection()
    version, at = new[0].version, now()
    described = describe({} if release is None else release.facts, [] if release is None else release.warnings, new)
    if report is not None:
        described["check_report"] = report
    if release is None:
        row = {
            "project_id": project_id, "version": canonical_version(version), "given_version": version,
            "created_at": at, "serial": NO_SERIAL, **described,
        }  # fmt: skip
        release_id = connection.execute(insert(RELEASES).returning(RELEASES.c.id), row).scalar_one()
    else:
        release_id = release.id
        connection.execute(update(RELEASES).where(RELEASES.c.id == release_id).values(**described))
    files = [
        {
            "project_id": project_id, "release_id": release_id, "filename": one.filename, "kind": one.kind,
            "size": one.size, "sha256": one.sha256, "blake2b_256": one.blake2b_256,
            "requires_python": one.requires_python, "uploaded_at": at, "uploaded_by": principal.slug,
            "serial": NO_SERIAL, "metadata_sha256": sha256_hex(one.metadata) if one.kind == "wheel" else None,
        }
        for one in new
    ]  # fmt: skip
    connection.execute(insert(FILES), files)
    record(
        session, "release.publish", actor=principal.slug, token_id=principal.token_id or None, owner=place.owner.slug,
        project=place.name, project_id=project_id, version=version, filename=new[0].filename,
        data={"files": [{"filename": one.filename, "sha256": one.sha256, "size": one.size} for one in new]},
        stamps=_STAMPS, stamped={"of_project": project_id, "of_release": release_id},
    )  # fmt: skip


def sha256_hex(data: bytes) -> str:
    """The digest under which the bytes are a blob."""
    return hashlib.sha256(data).hexdigest()


def describe(told: dict[str, Any], warnings: Sequence[str], new: Sequence[FileFacts]) -> dict[str, Any]:
    """What a release says of itself, as columns: what its first wheel says, and of needs and hub packages its source
    archive. `told` and `warnings` are what it said before. A release that had its wheel before needs the same hub
    packages for ever: resolution as of an older serial stands on that."""
    columns: dict[str, Any] = {}
    of_source = ("needs",) if told.get("kind") == "wheel" else _OF_SOURCE
    remarks = list(warnings)
    for one in sorted(new, key=lambda facts: facts.kind != "wheel"):
        mine = one.to_dict()
        if not told or (one.kind == "wheel" and told["kind"] == "sdist"):
            kept = {name: told[name] for name in _OF_SOURCE if told.get(name)}
            told = {name: value for name, value in mine.items() if name not in _ELSEWHERE} | kept
            columns = {name: mine[name] for name in ("summary", "requires_python", "readme", "readme_type")}
        elif one.kind == "sdist":
            told = told | {name: mine[name] for name in of_source if mine[name]}
        remarks += [f"{remark.code}: {remark.message}" for remark in one.warnings]
    return {**columns, "facts": told, "warnings": list(dict.fromkeys(remarks))}


_OF_SOURCE = ("needs", "hub_dependencies")
_ELSEWHERE = ("metadata_text", "readme", "readme_type", "summary", "requires_python", "warnings")
"""What has a column, or a blob, of its own."""


def warnings_of(session: Session, owner_id: int, name: str, version: str) -> list[str]:
    """What the hub remarked on a release, by its key."""
    query = select(RELEASES.c.warnings).join(PROJECTS, RELEASES.c.project_id == PROJECTS.c.id)
    mine = (PROJECTS.c.owner_id == owner_id) & (PROJECTS.c.name == name) & (RELEASES.c.version == version)
    return session.connection().execute(query.where(mine)).scalar() or []
