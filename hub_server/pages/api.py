"""The JSON twin of an owner's page; the twins of the others are routes of the domains that they show."""

from __future__ import annotations

from fastapi import APIRouter

from hub_server.accounts.auth import HubContext, OptionalPrincipal
from hub_server.pages.service import projects_of
from verifiers.hub.schema import OwnerProjects

router = APIRouter(prefix="/api/v1", tags=["packages"])


@router.get("/owners/{owner}/projects")
def owner_projects(owner: str, context: HubContext, principal: OptionalPrincipal) -> OwnerProjects:
    """The projects of an owner that the caller may see, by name."""
    with context.database.read() as session:
        return projects_of(session, owner, principal)
