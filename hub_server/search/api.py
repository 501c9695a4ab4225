"""The routes that find projects: by words, and by owner."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from hub_server.accounts.auth import HubContext, OptionalPrincipal, client_of
from hub_server.search.service import projects_of, search
from hub_server.security.rates import spend
from verifiers.hub.schema import OwnerProjects, SearchAnswer

router = APIRouter(prefix="/api/v1", tags=["search"])


@router.get("/search")
def find_projects(
    request: Request,
    context: HubContext,
    principal: OptionalPrincipal,
    q: Annotated[str, Query(max_length=200, description="Words, or beginnings of words; all must be there.")] = "",
    limit: Annotated[int, Query(ge=1, le=100, description="Hits a page.")] = 20,
    after: Annotated[str | None, Query(max_length=400, description="`next` of the page before.")] = None,
) -> SearchAnswer:
    """Find projects by words of name, owner, keywords and summary. Without words: all, by name.

    Names come first, then owners, keywords and summaries; private projects are found by who may read them.
    """
    spend(context.database, context.settings, "search", client_of(request))
    with context.database.read() as session:
        return search(session, q, principal, limit, after)


@router.get("/owners/{owner}/projects")
def owner_projects(owner: str, context: HubContext, principal: OptionalPrincipal) -> OwnerProjects:
    """The projects of an owner that the caller may see, by name."""
    with context.database.read() as session:
        return projects_of(session, owner, principal)
