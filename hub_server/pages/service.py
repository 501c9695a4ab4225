"""What the start page lists."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from hub_server.accounts.service import Principal
from hub_server.packages.models import Project, Release
from hub_server.packages.service import visible_where


def newest_releases(session: Session, principal: Principal | None, limit: int) -> list[Release]:
    """The releases that were published last, of the projects that the caller may see, the newest first."""
    query = select(Release).join(Project, Release.project_id == Project.id).options(selectinload(Release.files))
    offered = (visible_where(session, principal), Release.deleted_at.is_(None), Project.status != "quarantined")
    # By id: a yank gives a release another serial, and does not make it new.
    return list(session.scalars(query.where(*offered).order_by(Release.id.desc()).limit(limit)))
