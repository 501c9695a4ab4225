"""Who asks an index: looked up once, and kept for as long as no account changes.

A token that is not valid counts as none: an index answers it like anybody, since 403 would stop an installer's
search (astral-sh/uv#12805).
"""

from __future__ import annotations

from hub_server.accounts.auth import token_of
from hub_server.accounts.errors import BadToken
from hub_server.accounts.service import Principal, authenticate
from hub_server.accounts.tokens import note_use
from hub_server.database import Database


def identify(database: Database, authorization: str) -> Principal | None:
    """Who an Authorization header names; None if it names nobody. The use of the token is noted."""
    try:
        text = token_of(authorization)
        if text is None:
            return None
        with database.read() as session:
            principal = authenticate(session, text)
    except BadToken:
        return None
    note_use(database, principal)
    return principal
