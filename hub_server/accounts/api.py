"""Routes of accounts."""

from __future__ import annotations

from fastapi import APIRouter
from sqlalchemy import select

from hub_server.accounts.auth import HubContext, RequiredPrincipal
from hub_server.accounts.models import Token
from verifiers.hub.schema import Whoami

router = APIRouter(prefix="/api/v1", tags=["accounts"])


@router.get("/whoami")
def whoami(principal: RequiredPrincipal, context: HubContext) -> Whoami:
    """Who the token acts as, and what it allows."""
    with context.database.read() as session:
        token = session.scalars(select(Token).where(Token.id == principal.token_id)).one()
    return Whoami(
        owner=principal.slug, token_id=token.id, token_name=token.name, scopes=sorted(principal.scopes),
        patterns=list(principal.patterns), expires_at=token.expires_at,
    )  # fmt: skip
