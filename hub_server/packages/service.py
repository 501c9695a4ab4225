"""Projects and releases as the caller may see them: the one place that decides visibility."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from hub_server.accounts.models import Owner
from hub_server.accounts.service import Principal, may
from hub_server.packages.models import Project, Release
from hub_server.problems import NotFound


def project_of(session: Session, owner: str, name: str, *, lock: bool = False) -> Project | None:
    """The project, whoever asks. `name` is the normal form. `lock` holds its row until the transaction ends."""
    query = select(Project).join(Owner, Project.owner_id == Owner.id).where(Owner.slug == owner, Project.name == name)
    return session.scalar(query.with_for_update(of=Project) if lock else query)


def is_visible(session: Session, project: Project, principal: Principal | None) -> bool:
    """Whether the caller may know of it: it is public, or the caller's token may read it."""
    return project.visibility == "public" or may(session, principal, "read", project.owner, project.name)


def visible_project(session: Session, owner: str, name: str, principal: Principal | None) -> Project:
    """The project, if the caller may know of it. NotFound alike for one that is absent and one that is hidden."""
    project = project_of(session, owner, name)
    if project is None or not is_visible(session, project, principal):
        raise NotFound(f"there is no project {owner}/{name}")
    return project


def release_of(session: Session, project: Project, version: str) -> Release:
    """A release that is not deleted, by its canonical version. NotFound if there is none."""
    query = select(Release).where(Release.project_id == project.id, Release.version == version)
    release = session.scalar(query)
    if release is None or release.deleted_at is not None:
        raise NotFound(f"{project.owner.slug}/{project.name} has no release {version}")
    return release
