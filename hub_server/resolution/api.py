"""The route of resolution."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from hub_server.accounts.auth import HubContext, OptionalPrincipal
from hub_server.packages.urls import base_url
from hub_server.resolution.service import canonical, resolve
from verifiers.hub.schema import ResolveAnswer, ResolveRequest

router = APIRouter(prefix="/api/v1", tags=["resolution"])


@router.post("/resolve", response_model=ResolveAnswer)
def resolve_ids(
    asked: ResolveRequest, request: Request, context: HubContext, principal: OptionalPrincipal
) -> Response:
    """Pin ids: every hub release that they need, with URLs, sizes, digests, upload times and yanks.

    The same request as of the same serial has the same answer, byte for byte. Rights, a deletion or a quarantine
    since may withhold it, and never change it.
    """
    with context.database.read() as session:
        answer = resolve(session, asked, principal, base_url(request, context.settings))
    return Response(canonical(answer), media_type="application/json")
