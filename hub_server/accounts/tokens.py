"""Tokens by token: made, listed, revoked, reported as leaked, noted as used."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from hub_server.accounts.errors import TokenTooWide
from hub_server.accounts.models import Owner, Token
from hub_server.accounts.patterns import check_pattern, covers
from hub_server.accounts.service import (
    DEFAULT_DAYS,
    SCOPES,
    Principal,
    check_still_valid,
    create_token,
    require,
)
from hub_server.database import Database, now
from hub_server.journal import record
from hub_server.problems import NotFound
from hub_server.security.tokens import digest, is_token
from verifiers.hub.schema import NewToken

USE_IS_NOTED = dt.timedelta(minutes=1)
"""How exact `last_used_at` is: a token in steady use costs one small transaction in this time."""


def derive_token(session: Session, principal: Principal, owner: Owner, asked: NewToken) -> tuple[Token, str]:
    """A token made with another: it allows nothing that the other does not. TokenTooWide where it would."""
    check_still_valid(session, principal, hold=True)  # else who revokes it with all made with it would miss this one
    require(session, principal, "admin", owner, role="admin")
    scopes = [scope for scope in SCOPES if scope in asked.scopes]
    patterns = [check_pattern(pattern) for pattern in asked.patterns] or list(principal.patterns)
    expires_at = _end_of(principal, asked)
    if wider := what_is_wider(principal, scopes, patterns, expires_at):
        raise TokenTooWide(f"token {principal.token_id} can not make this one: {wider}")
    return create_token(
        session, owner, asked.name, scopes, patterns, None, principal.slug, expires_at=expires_at,
        parent_id=principal.token_id,
    )  # fmt: skip


def _end_of(principal: Principal, asked: NewToken) -> dt.datetime | None:
    """When the new token ends. Only a length that nobody asked for is cut to that of the caller's."""
    if asked.forever:
        return None
    end = now() + dt.timedelta(days=asked.days or DEFAULT_DAYS)
    if asked.days is None and principal.expires_at is not None:
        return min(end, principal.expires_at)
    return end


def what_is_wider(
    principal: Principal, scopes: Sequence[str], patterns: Sequence[str], expires_at: dt.datetime | None
) -> str | None:
    """How a new token would allow more than the caller's, in words; None if it does not."""
    if missing := [scope for scope in scopes if not principal.allows(scope)]:
        return f"it is not for {', '.join(missing)}"
    if principal.patterns:
        if not patterns:
            return f"it is for {', '.join(principal.patterns)} only"
        for pattern in patterns:
            if not any(covers(own, pattern) for own in principal.patterns):
                return f"{pattern} is not within {', '.join(principal.patterns)}"
    if principal.expires_at is not None and (expires_at is None or expires_at > principal.expires_at):
        return f"it ends on {principal.expires_at:%Y-%m-%d}, and the new one must end before"
    return None


def tokens_of(session: Session, principal: Principal, owner: Owner) -> list[Token]:
    """The tokens of an owner, newest first, revoked ones too."""
    require(session, principal, "admin", owner, role="admin")
    query = select(Token).where(Token.owner_id == owner.id).order_by(Token.created_at.desc(), Token.id)
    return list(session.scalars(query))


def revoke_token(session: Session, principal: Principal, token_id: str, with_derived: bool = False) -> list[Token]:
    """Revoke a token, and those made with it if asked. Any token may revoke itself. Those that were still valid."""
    token = session.get(Token, token_id)
    if token is None:
        raise NotFound(f"there is no token {token_id}", hint="hub token list shows the ids.")
    if token.id != principal.token_id or with_derived:
        require(session, principal, "admin", token.owner, role="admin")
    return revoke_tokens(session, [token_id], with_derived, actor=principal.slug, by=principal.token_id)


def revoke_leaked(session: Session, texts: Sequence[str]) -> int:
    """Revoke what of these are valid tokens, with all made with them: who had one may have made more. How many."""
    digests = [digest(text) for text in texts if is_token(text)]
    found = session.scalars(select(Token.id).where(Token.sha256.in_(digests), Token.revoked_at.is_(None))).all()
    return len(revoke_tokens(session, found, with_derived=True, action="token.leaked"))


def revoke_tokens(
    session: Session, ids: Sequence[str], with_derived: bool, *, action: str = "token.revoke",
    actor: str | None = None, by: str | None = None,
) -> list[Token]:  # fmt: skip
    """Revoke what is valid of these, row by row: of two at once, one does it. An event for each. Asks for no rights.

    by: the id of the token that does it.
    """
    revoked: list[Token] = []
    seen: set[str] = set()
    while ids:
        seen.update(ids)
        step = update(Token).where(Token.id.in_(ids), Token.revoked_at.is_(None)).values(revoked_at=now())
        revoked += session.scalars(step.returning(Token)).all()
        derived = select(Token.id).where(Token.parent_id.in_(ids), Token.id.not_in(seen))
        ids = session.scalars(derived).all() if with_derived else []
    for one in revoked:
        data = {"token": one.id, "name": one.name}
        record(session, action, actor=actor, token_id=by, owner=one.owner.slug, data=data)
    return revoked


def note_use(database: Database, principal: Principal) -> None:
    """Write down that a token is used, if that was not done within the last minute."""
    at = now()
    if principal.last_used_at is not None and at - principal.last_used_at < USE_IS_NOTED:
        return
    stale = or_(Token.last_used_at.is_(None), Token.last_used_at < at - USE_IS_NOTED)
    with database.write() as session:
        session.execute(update(Token).where(Token.id == principal.token_id, stale).values(last_used_at=at))
