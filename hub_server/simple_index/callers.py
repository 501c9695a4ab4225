"""Who asks, and what they may read: from the cache for as long as no account changes.

A token that is not valid counts as none: an index answers it like anybody, since 403 would stop an installer's
search (astral-sh/uv#12805).
"""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple

from sqlalchemy import select

from hub_server.accounts.auth import token_of
from hub_server.accounts.errors import BadToken
from hub_server.accounts.models import Token
from hub_server.accounts.service import Principal, authenticate
from hub_server.accounts.tokens import note_use
from hub_server.database import Database, now


class Caller(NamedTuple):
    """A valid token, and until when it is."""

    principal: Principal
    expires_at: dt.datetime | None

    @property
    def is_valid(self) -> bool:
        """Whether it still is."""
        return self.expires_at is None or self.expires_at > now()


def identify(database: Database, authorization: str) -> Caller | None:
    """Who an Authorization header names; None if it names nobody. The use of the token is noted."""
    try:
        text = token_of(authorization)
        if text is None:
            return None
        with database.read() as session:
            principal = authenticate(session, text)
            expires_at = session.scalar(select(Token.expires_at).where(Token.id == principal.token_id))
    except BadToken:
        return None
    note_use(database, principal)
    return Caller(principal, expires_at)
