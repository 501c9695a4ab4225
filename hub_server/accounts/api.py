"""Routes of accounts: who one is, tokens, owners and their members, the audit log, rates of one's own."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from hub_server.accounts import audit, members, tokens
from hub_server.accounts.auth import HubContext, RequiredPrincipal, client_of
from hub_server.accounts.models import Membership, Owner, Token
from hub_server.accounts.service import find_owner, role_of
from hub_server.journal import record
from hub_server.problems import NotFound
from hub_server.security.rates import RATES, Rate, allow, spend
from verifiers.hub.schema import (
    AuditPage,
    CreatedOwner,
    CreatedToken,
    LeakedTokens,
    Member,
    MemberList,
    NewOwner,
    NewRole,
    NewToken,
    OwnerInfo,
    OwnerList,
    RateOverride,
    Received,
    TokenInfo,
    TokenList,
    Whoami,
)

router = APIRouter(prefix="/api/v1", tags=["accounts"])

NEVER_KEPT = {"Cache-Control": "no-store"}
"""For answers that hold a secret."""


@router.get("/whoami")
def whoami(principal: RequiredPrincipal, context: HubContext) -> Whoami:
    """Who the token acts as, and what it allows."""
    with context.database.read() as session:
        token = session.get_one(Token, principal.token_id)
    return Whoami(
        owner=principal.slug, token_id=token.id, token_name=token.name, scopes=sorted(principal.scopes),
        patterns=list(principal.patterns), expires_at=token.expires_at, site_admin=principal.runs_the_hub(),
    )  # fmt: skip


# --- tokens -----------------------------------------------------------------------------------------------------


@router.get("/tokens")
def list_tokens(principal: RequiredPrincipal, context: HubContext, owner: str | None = None) -> TokenList:
    """The tokens of an owner: the caller by default. Never their texts, which the hub does not have."""
    with context.database.read() as session:
        found = tokens.tokens_of(session, principal, find_owner(session, owner or principal.slug))
        return TokenList(tokens=[_token_info(token) for token in found])


@router.post("/tokens", status_code=201)
def create_token(
    asked: NewToken, principal: RequiredPrincipal, context: HubContext, response: Response
) -> CreatedToken:
    """A new token, which allows nothing that the caller's does not. Its text is in this answer only."""
    response.headers.update(NEVER_KEPT)
    with context.database.write() as session:
        owner = find_owner(session, asked.owner or principal.slug)
        token, text = tokens.derive_token(session, principal, owner, asked)
        return CreatedToken(**_token_info(token).model_dump(), token=text)


@router.delete("/tokens/{token_id}")
def revoke_token(
    token_id: str, principal: RequiredPrincipal, context: HubContext, derived: bool = False
) -> TokenList:
    """Revoke a token, with `derived` all that were made with it. Answers those that were valid until now."""
    with context.database.write() as session:
        revoked = tokens.revoke_token(session, principal, token_id, derived)
        return TokenList(tokens=[_token_info(token) for token in revoked])


@router.post("/tokens/leaked")
def report_leaked(found: LeakedTokens, request: Request, context: HubContext) -> Received:
    """Report tokens that were found in public, by anyone: those that are valid are revoked."""
    spend(context.database, context.settings, "login", client_of(request))
    with context.database.write() as session:
        tokens.revoke_leaked(session, found.tokens)
    return Received(received=len(found.tokens))


def _token_info(token: Token) -> TokenInfo:
    return TokenInfo(
        id=token.id, owner=token.owner.slug, name=token.name, scopes=token.scopes, patterns=token.patterns,
        parent_id=token.parent_id, created_at=token.created_at, expires_at=token.expires_at,
        last_used_at=token.last_used_at, revoked_at=token.revoked_at,
    )  # fmt: skip


# --- owners and members -----------------------------------------------------------------------------------------


@router.get("/owners")
def list_owners(principal: RequiredPrincipal, context: HubContext) -> OwnerList:
    """The owners that the caller has a role with; for an admin of the hub, all."""
    with context.database.read() as session:
        found = members.owners_of(session, principal)
        return OwnerList(owners=[_owner_info(owner, role) for owner, role in found])


@router.post("/owners", status_code=201)
def create_owner(
    asked: NewOwner, principal: RequiredPrincipal, context: HubContext, response: Response
) -> CreatedOwner:
    """A new user, with a first token, or a new organisation, with a first admin. For admins of the hub."""
    response.headers.update(NEVER_KEPT)
    with context.database.write() as session:
        owner, text = members.add_owner(session, principal, asked.owner, asked.kind, asked.admin)
        role = role_of(session, principal, owner.id)
        return CreatedOwner(**_owner_info(owner, role or "reader").model_dump(), token=text)


@router.get("/owners/{owner}/members")
def list_members(owner: str, principal: RequiredPrincipal, context: HubContext) -> MemberList:
    """The members of an organisation, for its members."""
    with context.database.read() as session:
        return _member_list(owner, members.members_of(session, principal, find_owner(session, owner)))


@router.put("/owners/{owner}/members/{user}")
def set_member(
    owner: str, user: str, asked: NewRole, principal: RequiredPrincipal, context: HubContext
) -> MemberList:
    """Add a member, or change its role."""
    with context.database.write() as session:
        members.set_member(session, principal, owner, user, asked.role)
        return _member_list(owner, members.members_of(session, principal, find_owner(session, owner)))


@router.delete("/owners/{owner}/members/{user}", status_code=204)
def remove_member(owner: str, user: str, principal: RequiredPrincipal, context: HubContext) -> None:
    """Remove a member. Members may remove themselves."""
    with context.database.write() as session:
        members.remove_member(session, principal, owner, user)


def _owner_info(owner: Owner, role: str) -> OwnerInfo:
    return OwnerInfo.model_validate(
        {"owner": owner.slug, "kind": owner.kind, "role": role, "created_at": owner.created_at}
    )


def _member_list(owner: str, found: list[tuple[Owner, Membership]]) -> MemberList:
    rows = [{"user": user.slug, "role": held.role, "since": held.created_at} for user, held in found]
    return MemberList(owner=owner, members=[Member.model_validate(row) for row in rows])


# --- the audit log ----------------------------------------------------------------------------------------------


@router.get("/audit")
def read_audit(
    principal: RequiredPrincipal, context: HubContext, owner: str | None = None, project: str | None = None,
    action: str | None = None, after: Annotated[int, Query(ge=0, lt=2**63)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> AuditPage:  # fmt: skip
    """What has happened, by serial: to an owner's projects, tokens and members, for its admins; all of it, for
    admins of the hub."""
    with context.database.read() as session:
        return audit.events(
            session, principal, owner=owner, project=project, action=action, after=after, limit=limit
        )


# --- rates ------------------------------------------------------------------------------------------------------


@router.put("/owners/{owner}/rates/{action}", status_code=204)
def set_rate(
    owner: str, action: str, asked: RateOverride, principal: RequiredPrincipal, context: HubContext
) -> None:
    """Give an account a rate of its own for some days. For admins of the hub."""
    _change_rate(context, principal, owner, action, asked)


@router.delete("/owners/{owner}/rates/{action}", status_code=204)
def remove_rate(owner: str, action: str, principal: RequiredPrincipal, context: HubContext) -> None:
    """Give an account the ordinary rate again. For admins of the hub."""
    _change_rate(context, principal, owner, action, None)


def _change_rate(
    context: HubContext, principal: RequiredPrincipal, slug: str, action: str, asked: RateOverride | None
) -> None:
    members.require_site_admin(principal)
    if action not in RATES:
        raise NotFound(f"there is no rate limit {action!r}", hint=f"Those are {', '.join(RATES)}.")
    with context.database.write() as session:
        owner = find_owner(session, slug)
        own = Rate(asked.interval, asked.burst) if asked else None
        allow(session, action, owner.slug, own, time.time() + (asked.days if asked else 0) * 86400)
        data = {"action": action, "rate": asked.model_dump() if asked else None}
        record(
            session, "rate.set", actor=principal.slug, token_id=principal.token_id, owner=owner.slug, data=data
        )
