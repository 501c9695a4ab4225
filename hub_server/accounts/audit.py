"""The journal as the audit log: who may read which part of it."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from hub_server.accounts.members import require_site_admin
from hub_server.accounts.service import Principal, find_owner, require
from hub_server.journal import JournalEvent
from verifiers.hub.schema import AuditEvent, AuditPage


def events(
    session: Session, principal: Principal, *, owner: str | None, project: str | None, action: str | None,
    after: int, limit: int,
) -> AuditPage:  # fmt: skip
    """The events after a serial, at most `limit`. Of one owner for its admins, of all for those who run the hub."""
    query = select(JournalEvent).where(JournalEvent.serial > after)
    if owner is None:
        require_site_admin(principal)
    else:
        require(session, principal, "admin", find_owner(session, owner), project, role="admin")
        query = query.where(JournalEvent.owner == owner)
    if project is not None:
        query = query.where(JournalEvent.project == project)
    if action is not None:
        query = query.where(JournalEvent.action == action)
    found = session.scalars(query.order_by(JournalEvent.serial).limit(limit + 1)).all()
    told = [AuditEvent.model_validate(event, from_attributes=True) for event in found[:limit]]
    return AuditPage(events=told, next=told[-1].serial if len(found) > limit else None)
