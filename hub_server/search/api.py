"""The route of search."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from hub_server.accounts.auth import HubContext, OptionalPrincipal
from hub_server.search.service import search
from verifiers.hub.schema import SearchAnswer

router = APIRouter(prefix="/api/v1", tags=["search"])


@router.get("/search")
def find_projects(
    context: HubContext,
    principal: OptionalPrincipal,
    q: Annotated[str, Query(max_length=200, description="Words, or beginnings of words; all must be there.")] = "",
    limit: Annotated[int, Query(ge=1, le=100, description="Hits a page.")] = 20,
    after: Annotated[str | None, Query(max_length=400, description="`next` of the page before.")] = None,
) -> SearchAnswer:
    """Find projects by words of name, owner, keywords and summary. Without words: all, by name.

    Names come first, then owners, keywords and summaries; private projects are found by who may read them.
    """
    with context.database.read() as session:
        return search(session, q, principal, limit, after)
