"""Owners, roles and tokens: what the routes and the admin commands call."""

from __future__ import annotations

import datetime as dt
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from hub_server.accounts.errors import BadToken, OwnerTaken
from hub_server.accounts.models import ROLES, Membership, Owner, Token
from hub_server.accounts.patterns import check_pattern, matches
from hub_server.database import now, table_of
from hub_server.journal import record
from hub_server.problems import Denied, NotFound, NotLoggedIn
from hub_server.security.tokens import digest, is_token, new_token
from verifiers.hub.package.names import check_owner

SCOPES = ("read", "publish", "publish:new", "yank", "results", "admin")
"""What a token may be for. `publish:new` may also make projects; `admin` is all of it and looking after the rest:
tokens, members, visibility, deletion. A scope narrows what the account may do and never widens it."""

DEFAULT_DAYS = 90


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: the owner that a token acts as, and what the token allows. `last_used_at` is before this request."""

    owner_id: int
    slug: str
    token_id: str
    scopes: frozenset[str]
    patterns: tuple[str, ...]
    expires_at: dt.datetime | None = None
    last_used_at: dt.datetime | None = None
    site_admin: bool = False

    def allows(self, scope: str, owner: str | None = None, name: str | None = None) -> bool:
        """Whether the token is for this: anywhere, on an owner with all its projects, or on one project."""
        if "admin" in self.scopes:
            scoped = True
        elif scope == "read":  # whoever may change a project may see it
            scoped = bool(self.scopes)
        else:
            scoped = scope in self.scopes or (scope == "publish" and "publish:new" in self.scopes)
        if not scoped or owner is None or not self.patterns:
            return scoped
        return any(matches(pattern, f"{owner}/{name or '*'}") for pattern in self.patterns)

    def runs_the_hub(self) -> bool:
        """Whether it may do what concerns the hub as a whole: a site admin's token for everything."""
        return self.site_admin and "admin" in self.scopes and not self.patterns


def create_owner(
    session: Session, slug: str, kind: str = "user", actor: str | None = None, *, site_admin: bool = False,
    token_id: str | None = None,
) -> Owner:  # fmt: skip
    """A new owner. RefusedError for what is no slug, OwnerTaken if there is one of that name."""
    check_owner(slug)
    owner = Owner(slug=slug, kind=kind, created_at=now(), site_admin=site_admin)
    try:
        with session.begin_nested():
            session.add(owner)
    except IntegrityError:  # also of one that is made at this moment
        raise OwnerTaken(f"there is an owner {slug}") from None
    made = {"kind": kind, "site_admin": site_admin}
    record(session, "owner.create", actor=actor, token_id=token_id, owner=slug, data=made)
    return owner


def find_owner(session: Session, slug: str, *, lock: bool = False) -> Owner:
    """The owner of that name. NotFound if there is none. `lock` holds its row until the transaction ends."""
    query = select(Owner).where(Owner.slug == slug)
    owner = session.scalar(query.with_for_update() if lock else query)
    if owner is None:
        raise NotFound(f"there is no owner {slug}", hint="Check its name; hub owner list shows yours.")
    return owner


def create_token(
    session: Session, owner: Owner, name: str, scopes: Sequence[str], patterns: Sequence[str] = (),
    days: int | None = DEFAULT_DAYS, actor: str | None = None, *, expires_at: dt.datetime | None = None,
    parent_id: str | None = None,
) -> tuple[Token, str]:  # fmt: skip
    """A new token and its text, which is shown this once. It ends after `days` (None: never) or at `expires_at`."""
    patterns = [check_pattern(pattern) for pattern in patterns]
    text = new_token()
    made = now()
    if expires_at is None and days is not None:
        expires_at = made + dt.timedelta(days=days)
    token = Token(
        id=secrets.token_hex(6), owner=owner, parent_id=parent_id, name=name, sha256=digest(text),
        scopes=list(scopes), patterns=list(patterns), created_at=made, expires_at=expires_at,
    )  # fmt: skip
    session.add(token)
    made_of = {"token": token.id, "name": name, "scopes": list(scopes), "patterns": list(patterns)}
    record(
        session, "token.create", actor=actor or owner.slug, token_id=parent_id, owner=owner.slug,
        data={**made_of, "expires_at": expires_at.isoformat() if expires_at else None},
    )  # fmt: skip
    return token, text


_TOKENS, _OWNERS = table_of(Token), table_of(Owner)
_FOUND = (
    select(
        _TOKENS.c.id, _TOKENS.c.sha256, _TOKENS.c.owner_id, _OWNERS.c.slug, _OWNERS.c.site_admin, _TOKENS.c.scopes,
        _TOKENS.c.patterns, _TOKENS.c.expires_at, _TOKENS.c.last_used_at, _TOKENS.c.revoked_at,
    )
    .join(_OWNERS, _TOKENS.c.owner_id == _OWNERS.c.id)
    .where(_TOKENS.c.sha256 == bindparam("sha256"))
)  # fmt: skip
"""Made once, without the mapper: it runs for every request that brings a token."""


def authenticate(session: Session, text: str) -> Principal:
    """Who a token acts as. BadToken if it is none of ours, expired or revoked."""
    sha256 = digest(text)
    found = session.connection().execute(_FOUND, {"sha256": sha256}) if is_token(text) else None
    token = None if found is None else found.one_or_none()
    if token is None or not secrets.compare_digest(token.sha256, sha256):
        raise BadToken("this token is not valid here")
    if token.revoked_at is not None:
        raise BadToken(f"token {token.id} was revoked")
    if token.expires_at is not None and token.expires_at <= now():
        raise BadToken(f"token {token.id} expired on {token.expires_at:%Y-%m-%d}")
    return Principal(
        token.owner_id, token.slug, token.id, frozenset(token.scopes), tuple(token.patterns),
        token.expires_at, token.last_used_at, token.site_admin,
    )  # fmt: skip


def check_still_valid(session: Session, principal: Principal, *, hold: bool = False) -> None:
    """BadToken if the caller's token was revoked, or has expired, since the request began: an upload may take long.

    hold: it stays valid until the commit. Before the journal is written to, which who revokes does last.
    """
    ends = select(Token.revoked_at, Token.expires_at).where(Token.id == principal.token_id)
    # none for what the hub itself publishes
    token = session.execute(ends.with_for_update() if hold else ends).one_or_none()
    if token is not None and (token.revoked_at or (token.expires_at is not None and token.expires_at <= now())):
        raise BadToken(f"token {principal.token_id} was revoked, or expired, meanwhile")


def role_of(session: Session, principal: Principal | None, owner_id: int) -> str | None:
    """The caller's role with an owner: `admin` with itself and for the hub's admins, else as a member."""
    if principal is None:
        return None
    if principal.owner_id == owner_id or principal.site_admin:
        return "admin"
    return session.scalar(
        select(Membership.role).where(Membership.organisation_id == owner_id, Membership.user_id == principal.owner_id)
    )


def may(
    session: Session, principal: Principal | None, scope: str, owner: Owner, name: str | None = None,
    role: str = "reader",
) -> bool:  # fmt: skip
    """Whether the caller may do this: its token is for it, and its role with the owner is at least `role`.

    Without a name it is about the owner with everything it has.
    """
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
        if principal.allows(scope, owner.slug, name):
            raise no_role(session, principal, owner, role)
        what = f"{owner.slug}/{name}" if name else owner.slug
        raise Denied(f"{principal.slug}'s token {principal.token_id} does not allow {scope} on {what}")
    return principal


def no_role(session: Session, principal: Principal, owner: Owner, role: str) -> Denied:
    """The refusal where the token would do, and its owner may not: another token would not help."""
    if owner.kind == "user":
        hint = "A project of several people belongs to an organisation: hub owner list shows yours."
        return Denied(f"only {owner.slug} may do this, and you are {principal.slug}", hint=hint)
    held = role_of(session, principal, owner.id)
    has = f"is {held} of {owner.slug}" if held else f"has no role in {owner.slug}"
    hint = f"Ask an admin of {owner.slug}: hub owner add {owner.slug} {principal.slug} --role {role}"
    return Denied(f"{principal.slug} {has}, and this takes the role {role}", hint=hint)


def require_role(
    session: Session, principal: Principal, scope: str, owner: Owner, role: str = "publisher"
) -> None:
    """Denied unless the caller may do this to some project of the owner; to which, `require` decides."""
    held = role_of(session, principal, owner.id)
    if principal.allows(scope) and (held is None or ROLES.index(held) < ROLES.index(role)):
        raise no_role(session, principal, owner, role)
    if not principal.allows(scope):
        raise Denied(f"{principal.slug}'s token {principal.token_id} does not allow {scope} for {owner.slug}")
