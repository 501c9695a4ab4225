"""Releases put straight into a hub's database and blobs: what another process of the hub would have written.

    rows = HubRows(hub)
    owner = rows.owner()                                     a fresh owner with a token
    rows.release(owner.slug, "my-env", "0.1.0")              a project with a release of one good wheel
    with rows.change(owner.slug, "my-env") as project:       any change of it, journalled
        project.status = "quarantined"
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import select

from hub_server.accounts.models import Owner, Token
from hub_server.accounts.service import create_token
from hub_server.database import Database, now
from hub_server.journal import record
from hub_server.packages.models import Project
from hub_server.settings import load_settings
from hub_server.storage import FolderStorage
from tests.support.archives import make_wheel, wheel_name
from tests.support.hub import LiveHub, TestOwner
from tests.support.stored import Store

_numbers = itertools.count()


def steady(answer: Any) -> dict[str, str]:
    """The headers of an answer without those that differ for every request."""
    return {key: value for key, value in answer.headers.items() if key not in ("date", "x-request-id")}


class HubRows:
    """The rows and blobs of a running hub. Close it at the end."""

    def __init__(self, hub: LiveHub) -> None:
        settings = load_settings(data=hub.data, database_url=hub.settings.get("HUB_DATABASE_URL"))
        self.database = Database(settings.database, 1)
        self.storage = FolderStorage(hub.data)
        self.store = Store(self.database, self.storage)

    def close(self) -> None:
        self.database.close()

    @staticmethod
    def name(stem: str = "env") -> str:
        """A name that no other test has."""
        return f"{stem}-{os.getpid()}-{next(_numbers)}"

    def owner(self, slug: str | None = None, kind: str = "user") -> TestOwner:
        """An owner, and a token that may do everything with what it owns."""
        made = self.store.owner(slug or self.name("rows"), kind).slug
        return TestOwner(made, self.token(made, ("read", "publish:new", "yank")))

    def token(self, slug: str, scopes: Sequence[str] = ("read",), **more: Any) -> str:
        """Another token of an owner."""
        with self.database.write() as session:
            owner = session.scalars(select(Owner).where(Owner.slug == slug)).one()
            return create_token(session, owner, "test", list(scopes), **more)[1]

    def revoke(self, token: str) -> None:
        """Revoke a token, as another process would."""
        with self.database.write() as session:
            found = session.scalars(select(Token).where(Token.sha256 == hashlib.sha256(token.encode()).hexdigest()))
            found.one().revoked_at = now()
            record(session, "token.revoke")

    def release(
        self, owner: str, name: str, version: str = "0.1.0", *, headers: Any = None, wheel: bytes | None = None,
        **more: Any,
    ) -> str:  # fmt: skip
        """A release of one wheel, see `Store.release`; the address of the wheel."""
        wheel = wheel or make_wheel(name, version, headers=headers)
        self.store.release(f"{owner}/{name}", version, **{"content": wheel, "requires_python": None, **more})
        return f"/files/{owner}/{name}/{hashlib.sha256(wheel).hexdigest()}/{wheel_name(name, version)}"

    @contextmanager
    def change(self, owner: str, name: str) -> Iterator[Project]:
        """A journalled change of a project; `project.releases` are its releases."""
        with self.database.write() as session:
            query = select(Project).join(Owner).where(Owner.slug == owner, Project.name == name)
            project = session.scalars(query).one()
            yield project
            record(session, "test.change", row=project)
