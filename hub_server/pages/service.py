"""What the start page and an owner's page list."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session, lazyload, load_only, selectinload

from hub_server.accounts.service import Principal, find_owner
from hub_server.packages.models import Project, Release
from hub_server.packages.service import visible_where
from hub_server.search.service import OF_HIT, hit_of
from verifiers.hub.schema import OwnerProjects


def newest_releases(session: Session, principal: Principal | None, limit: int) -> list[Release]:
    """The releases that were published last, of the projects that the caller may see, the newest first."""
    query = select(Release).join(Project, Release.project_id == Project.id).options(selectinload(Release.files))
    offered = (visible_where(session, principal), Release.deleted_at.is_(None), Project.status != "quarantined")
    # By id: a yank gives a release another serial, and does not make it new.
    return list(session.scalars(query.where(*offered).order_by(Release.id.desc()).limit(limit)))


def projects_of(session: Session, slug: str, principal: Principal | None) -> OwnerProjects:
    """An owner and what the caller may see of its projects, by name. NotFound if there is no such owner."""
    owner = find_owner(session, slug)
    query = select(Project).where(Project.owner_id == owner.id, visible_where(session, principal))
    releases = selectinload(Project.releases).options(load_only(*OF_HIT), lazyload(Release.project))
    found = session.scalars(query.options(releases).order_by(Project.name))
    hits = [hit_of(project, project.releases) for project in found]
    return OwnerProjects(owner=owner.slug, kind=owner.kind, created_at=owner.created_at, projects=hits)
