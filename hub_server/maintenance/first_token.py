"""The first token of an owner, made on the machine of the hub, where nobody can be asked for one."""

from __future__ import annotations

from hub_server.accounts.errors import OwnerTaken
from hub_server.accounts.service import SCOPES, create_owner, create_token
from hub_server.database import Database
from hub_server.maintenance.prepare import opened
from hub_server.settings import Settings


def bootstrap(settings: Settings, slug: str, kind: str = "user", *, site_admin: bool = False) -> str | None:
    """Make an owner with a token for everything that it owns, and return the token. None if the owner is there."""
    with opened(settings) as context:
        return create_first_token(context.database, slug, kind, site_admin=site_admin)


def create_first_token(
    database: Database, slug: str, kind: str = "user", *, site_admin: bool = False
) -> str | None:
    """The same in a database that is open."""
    with database.write() as session:
        try:
            owner = create_owner(session, slug, kind, actor="hub admin", site_admin=site_admin)
        except OwnerTaken:
            return None
        return create_token(session, owner, "first", SCOPES, days=None, actor="hub admin")[1]
