"""Projects and releases as the caller may see them: the one place that decides visibility."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from packaging.version import Version
from sqlalchemy import ColumnElement, and_, false, or_, select, true
from sqlalchemy.orm import Session, defer, lazyload, selectinload

from hub_server.accounts.models import Membership, Owner
from hub_server.accounts.service import Principal, may
from hub_server.packages.models import Project, Release
from hub_server.problems import NotFound
from verifiers.hub.package.names import MAX_NAME, canonical_version, normalise
from verifiers.hub.package.refusal import RefusedError

NEAR = 3
"""Near misses that a message names."""
COMPARED = 300
"""Names of an owner that are looked through for them."""


def project_of(session: Session, owner: str, name: str, *, lock: bool = False) -> Project | None:
    """The project, whoever asks. `name` is the normal form. `lock` holds its row until the transaction ends."""
    query = select(Project).join(Owner, Project.owner_id == Owner.id).where(Owner.slug == owner, Project.name == name)
    return session.scalar(query.with_for_update(of=Project) if lock else query)


def is_visible(session: Session, project: Project, principal: Principal | None) -> bool:
    """Whether the caller may know of it: it is public, or the caller's token may read it."""
    return project.visibility == "public" or may(session, principal, "read", project.owner, project.name)


def visible_project(session: Session, owner: str, name: str, principal: Principal | None) -> Project:
    """The project, if the caller may know of it. NotFound alike for one that is absent and one that is hidden."""
    try:
        project = project_of(session, owner, normalise(name))
    except RefusedError:
        project = None
    if project is None or not is_visible(session, project, principal):
        raise no_project(session, owner, name, principal)
    return project


def no_project(session: Session, owner: str, name: str, principal: Principal | None, needed_by: str = "") -> NotFound:
    """The refusal of a project that is not there, with what may have been meant. needed_by: the id of a release."""
    near = near_projects(session, owner, name, principal)
    hint = f"Did you mean {' or '.join(near)}?" if near else None
    needed = f"{needed_by} needs {owner}/{name}, and " if needed_by else ""
    return NotFound(f"{needed}there is no project {owner}/{name}", hint=hint)


def visible_where(session: Session, principal: Principal | None) -> ColumnElement[bool]:
    """The same as a condition of a query on Project."""
    if principal is None or not principal.allows("read"):
        return Project.visibility == "public"
    mine: ColumnElement[bool] = true()
    if not principal.site_admin:
        joined = select(Membership.organisation_id).where(Membership.user_id == principal.owner_id)
        mine = or_(Project.owner_id == principal.owner_id, Project.owner_id.in_(joined))
    if principal.patterns:
        private = select(Project.id, Owner.slug, Project.name).join(Owner, Project.owner_id == Owner.id)
        rows = session.execute(private.where(Project.visibility == "private", mine))
        ids = [id for id, slug, name in rows if principal.allows("read", slug, name)]
        mine = Project.id.in_(ids) if ids else false()
    return or_(Project.visibility == "public", and_(Project.visibility == "private", mine))


def near_projects(session: Session, owner: str, name: str, principal: Principal | None) -> list[str]:
    """Ids that may have been meant: others' projects of the name, and what the owner has with a similar one."""
    seen = visible_where(session, principal)
    query = select(Owner.slug, Project.name).join(Owner, Project.owner_id == Owner.id).where(seen)
    same = session.execute(query.where(Project.name == name, Owner.slug != owner).order_by(Owner.slug).limit(NEAR))
    theirs = session.execute(query.where(Owner.slug == owner).order_by(Project.name).limit(COMPARED))
    similar = get_close_matches(name[:MAX_NAME], [row.name for row in theirs], n=NEAR)
    return [*(f"{owner}/{one}" for one in similar), *(f"{row.slug}/{row.name}" for row in same)][:NEAR]


def release_of(session: Session, project: Project, version: str) -> Release:
    """A release that is not deleted, by any spelling of its version. NotFound if there is none."""
    try:
        key = canonical_version(version)
    except RefusedError:
        key = ""
    query = select(Release).where(Release.project_id == project.id, Release.version == key)
    release = session.scalar(query.options(selectinload(Release.files)))
    if release is None or release.deleted_at is not None:
        raise NotFound(f"{project.owner.slug}/{project.name} has no release {version}", hint=_versions_hint(project))
    return release


def _versions_hint(project: Project) -> str:
    return f"hub versions {project.owner.slug}/{project.name} lists them."


def releases_of(session: Session, project: Project) -> list[Release]:
    """The releases that are not deleted, with their files, newest first (PEP 440).

    What is long is read when it is asked for, while the session is open: a project may have thousands of releases.
    """
    query = select(Release).where(Release.project_id == project.id, Release.deleted_at.is_(None))
    long = (Release.facts, Release.readme, Release.warnings, Release.check_report)
    later = [lazyload(Release.project), *(defer(column) for column in long)]
    found = session.scalars(query.options(selectinload(Release.files), *later))
    return sorted(found, key=lambda release: Version(release.shown), reverse=True)


def latest_of(releases: Iterable[Release]) -> Release | None:
    """What an unpinned id means: the highest final release that is not yanked, else the highest pre-release."""
    offered = [release for release in releases if release.yanked_at is None and release.deleted_at is None]
    return max(offered, key=lambda release: rank(release.shown), default=None)


def rank(shown: str) -> tuple[bool, Version]:
    """How high a version stands for an unpinned id: final releases before pre-releases."""
    version = Version(shown)
    return not version.is_prerelease, version
