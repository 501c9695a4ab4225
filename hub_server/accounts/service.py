"""Owners, roles and tokens: what the routes and the admin commands call."""

from __future__ import annotations

import datetime as dt
import fnmatch
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from hub_server.accounts.errors import BadToken, OwnerTaken
from hub_server.accounts.models import ROLES, Membership, Owner, Token
from hub_server.database import now
from hub_server.journal import record
from hub_server.problems import Denied, NotFound, NotLoggedIn
from hub_server.security.tokens import digest, is_token, new_token

SCOPES = ("read", "publish", "publish:new", "yank", "results", "admin")
"""What a token may be for. `publish:new` may also make projects; `admin` is everything, and the hub itself."""

DEFAULT_DAYS = 90


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the owner that a token acts as, and what the token allows."""

    owner_id: int
    slug: str
    token_id: str
    scopes: frozenset[str]
    patterns: tuple[str, ...]

    def allows(self, scope: str, owner: str | None = None, name: str | None = None) -> bool:
        """Whether the token is for this, on this project."""
        if "admin" in self.scopes:
            scoped = True
        elif scope == "read":  # whoever may change a project may see it
            scoped = bool(self.scopes)
        else:
            scoped = scope in self.scopes or (scope == "publish" and "publish:new" in self.scopes)
        if not scoped or owner is None or not self.patterns:
            return scoped
        return any(fnmatch.fnmatchcase(f"{owner}/{name or '*'}", pattern) for pattern in self.patterns)


def create_owner(session: Session, slug: str, kind: str = "user", actor: str | None = None) -> Owner:
    """A new owner. OwnerTaken if there is one."""
    if session.scalar(select(Owner).where(Owner.slug == slug)) is not None:
        raise OwnerTaken(f"there is an owner {slug}")
    owner = Owner(slug=slug, kind=kind, created_at=now())
    session.add(owner)
    record(session, "owner.create", actor=actor, owner=slug, data={"kind": kind})
    return owner


def find_owner(session: Session, slug: str) -> Owner:
    """The owner of that name. NotFound if there is none."""
    owner = session.scalar(select(Owner).where(Owner.slug == slug))
    if owner is None:
        raise NotFound(f"there is no owner {slug}")
    return owner


def create_token(
    session: Session, owner: Owner, name: str, scopes: Sequence[str], patterns: Sequence[str] = (),
    days: int | None = DEFAULT_DAYS, actor: str | None = None,
) -> tuple[Token, str]:  # fmt: skip
    """A new token and its text, which is shown this once."""
    text = new_token()
    made = now()
    token = Token(
        id=secrets.token_hex(6), owner=owner, name=name, sha256=digest(text),
        scopes=list(scopes), patterns=list(patterns), created_at=made,
        expires_at=None if days is None else made + dt.timedelta(days=days),
    )  # fmt: skip
    session.add(token)
    made_of = {"token": token.id, "scopes": list(scopes), "patterns": list(patterns)}
    record(session, "token.create", actor=actor or owner.slug, owner=owner.slug, data=made_of)
    return token, text


def authenticate(session: Session, text: str) -> Principal:
    """Who a token acts as. BadToken if it is none of ours, expired or revoked."""
    token = session.scalar(select(Token).where(Token.sha256 == digest(text))) if is_token(text) else None
    if token is None or token.revoked_at is not None:
        raise BadToken("this token is not valid here")
    if token.expires_at is not None and token.expires_at <= now():
        raise BadToken(f"this token expired on {token.expires_at:%Y-%m-%d}")
    return Principal(token.owner_id, token.owner.slug, token.id, frozenset(token.scopes), tuple(token.patterns))


def role_of(session: Session, principal: Principal | None, owner_id: int) -> str | None:
    """The caller's role with an owner: `admin` with itself and for tokens of the hub's admins, else as a member."""
    if principal is None:
        return None
    if principal.owner_id == owner_id or "admin" in principal.scopes:
        return "admin"
    return session.scalar(
        select(Membership.role).where(Membership.organisation_id == owner_id, Membership.user_id == principal.owner_id)
    )


def may(
    session: Session, principal: Principal | None, scope: str, owner: Owner, name: str | None = None,
    role: str = "reader",
) -> bool:  # fmt: skip
    """Whether the caller may do this: its token is for it, and its role with the owner is at least `role`."""
    if principal is None or not principal.allows(scope, owner.slug, name):
        return False
    held = role_of(session, principal, owner.id)
    return held is not None and ROLES.index(held) >= ROLES.index(role)


def require(
    session: Session, principal: Principal | None, scope: str, owner: Owner, name: str | None = None,
    role: str = "publisher",
) -> Principal:  # fmt: skip
    """The caller, if it may do this. NotLoggedIn (401) without a token, Denied (403) with one that is not for it."""
    if principal is None:
        raise NotLoggedIn()
    if not may(session, principal, scope, owner, name, role):
        what = f"{owner.slug}/{name}" if name else owner.slug
        raise Denied(f"{principal.slug}'s token {principal.token_id} does not allow {scope} on {what}")
    return principal
