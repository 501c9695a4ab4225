"""Owners and their tokens, for whoever is on the machine of the hub."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, or_, select

from hub_server.accounts.models import Owner, Token
from hub_server.accounts.service import SCOPES, create_token, find_owner
from hub_server.accounts.tokens import revoke_tokens
from hub_server.context import Context
from hub_server.database import now
from hub_server.packages.models import Project
from hub_server.problems import NotFound
from verifiers.errors import ConfigError

ACTOR = "hub admin"


def owners(context: Context) -> list[dict[str, Any]]:
    """Every owner by name, with the number of its projects and of its tokens that work."""
    works = Token.revoked_at.is_(None) & or_(Token.expires_at.is_(None), Token.expires_at > now())
    projects = select(func.count()).where(Project.owner_id == Owner.id).scalar_subquery()
    tokens_ = select(func.count()).where(Token.owner_id == Owner.id, works).scalar_subquery()
    with context.database.read() as session:
        rows = session.execute(select(Owner, projects, tokens_).order_by(Owner.slug))
        return [
            {
                "owner": owner.slug, "kind": owner.kind, "site_admin": owner.site_admin, "projects": held,
                "tokens": working, "created_at": owner.created_at.isoformat(),
            }
            for owner, held, working in rows
        ]  # fmt: skip


def new_token(
    context: Context, slug: str, name: str, scopes: Sequence[str], patterns: Sequence[str], days: int | None
) -> str:
    """Another token of an owner. ConfigError for a scope that there is not, NotFound for an owner."""
    if wrong := sorted(set(scopes) - set(SCOPES)):
        raise ConfigError(f"there is no scope {wrong[0]}", hint=f"One of {', '.join(SCOPES)}.")
    with context.database.write() as session:
        owner = find_owner(session, slug)
        return create_token(session, owner, name, scopes or SCOPES, patterns, days, actor=ACTOR)[1]


def tokens(context: Context, slug: str) -> list[dict[str, Any]]:
    """The tokens of an owner, newest first."""
    with context.database.read() as session:
        owner = find_owner(session, slug)
        found = session.scalars(select(Token).where(Token.owner_id == owner.id).order_by(Token.created_at.desc()))
        return [
            {
                "id": token.id, "name": token.name, "state": state_of(token), "scopes": sorted(token.scopes),
                "patterns": list(token.patterns), "created_at": token.created_at.isoformat(),
                "expires_at": _iso(token.expires_at), "last_used_at": _iso(token.last_used_at),
            }
            for token in found
        ]  # fmt: skip


def state_of(token: Token) -> str:
    """`works`, `revoked` or `expired`."""
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= now() else "works"


def revoke(context: Context, token_id: str) -> list[str]:
    """Revoke a token and those that were made with it. Returns the ids. NotFound if there is no such token."""
    with context.database.write() as session:
        if session.get(Token, token_id) is None:
            raise NotFound(f"there is no token {token_id}", hint="hub admin token list OWNER shows the ids.")
        return [one.id for one in revoke_tokens(session, [token_id], with_derived=True, actor=ACTOR)]


def _iso(moment: dt.datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")
