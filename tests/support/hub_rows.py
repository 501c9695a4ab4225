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
from hub_server.packages.models import File, Project, Release
from hub_server.settings import load_settings
from hub_server.storage import FolderStorage
from tests.support.archives import make_sdist, make_wheel, metadata_bytes, sdist_name, wheel_name
from tests.support.hub import LiveHub, TestOwner
from verifiers.hub.package.names import canonical_version

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

    def close(self) -> None:
        self.database.close()

    @staticmethod
    def name(stem: str = "env") -> str:
        """A name that no other test has."""
        return f"{stem}-{os.getpid()}-{next(_numbers)}"

    def owner(self, slug: str | None = None, kind: str = "user") -> TestOwner:
        """An owner, and a token that may do everything with what it owns."""
        with self.database.write() as session:
            owner = self._owner(session, slug or self.name("rows"), kind)
            return TestOwner(owner.slug, create_token(session, owner, "test", ["read", "publish:new", "yank"])[1])

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
        self, owner: str, name: str, version: str = "0.1.0", *, visibility: str = "public", sdist: bool = False,
        facts: dict[str, Any] | None = None, headers: Any = None, wheel: bytes | None = None, requires_python: str = "",
    ) -> str:  # fmt: skip
        """A release of one wheel (and a source archive); the address of the wheel."""
        wheel = wheel or make_wheel(name, version, headers=headers)
        metadata = metadata_bytes(name, version, headers, "# An environment for tests\n")
        with self.database.write() as session:
            project = self._project(session, self._owner(session, owner), name, visibility)
            release = Release(
                project_id=project.id, version=canonical_version(version), given_version=version,
                facts=facts or {}, serial=0,
                created_at=now(), warnings=[],
            )  # fmt: skip
            session.add(release)
            files = [self._file(wheel_name(name, version), "wheel", wheel, metadata)]
            if sdist:
                files.append(self._file(sdist_name(name, version), "sdist", make_sdist(name, version), None))
            for file in files:
                file.project_id = project.id
                file.requires_python = requires_python or None
                release.files.append(file)
            serial = record(session, "release.publish", row=project)
            release.serial = serial
            for file in files:
                file.serial = serial
            return f"/files/{owner}/{name}/{files[0].sha256}/{files[0].filename}"

    @contextmanager
    def change(self, owner: str, name: str) -> Iterator[Project]:
        """A journalled change of a project; `project.releases` are its releases."""
        with self.database.write() as session:
            query = select(Project).join(Owner).where(Owner.slug == owner, Project.name == name)
            project = session.scalars(query).one()
            yield project
            record(session, "test.change", row=project)

    def _owner(self, session: Any, slug: str, kind: str = "user") -> Owner:
        owner = session.scalar(select(Owner).where(Owner.slug == slug))
        if owner is None:
            owner = Owner(slug=slug, kind=kind, created_at=now())
            session.add(owner)
            session.flush()
        return owner

    def _project(self, session: Any, owner: Owner, name: str, visibility: str) -> Project:
        query = select(Project).where(Project.owner_id == owner.id, Project.name == name)
        project = session.scalar(query)
        if project is None:
            taken = session.scalar(select(Project).where(Project.plain_name == name))
            plain = name if visibility == "public" and taken is None else None
            project = Project(
                owner_id=owner.id, name=name, display_name=name, plain_name=plain, visibility=visibility,
                created_at=now(),
            )  # fmt: skip
            session.add(project)
            session.flush()
        return project

    def _file(self, filename: str, kind: str, content: bytes, metadata: bytes | None) -> File:
        for blob in filter(None, (content, metadata)):
            self.storage.put_bytes(blob, hashlib.sha256(blob).hexdigest())
        return File(
            filename=filename, kind=kind, size=len(content), sha256=hashlib.sha256(content).hexdigest(),
            blake2b_256=hashlib.blake2b(content, digest_size=32).hexdigest(), uploaded_at=now(), serial=0,
            metadata_sha256=None if metadata is None else hashlib.sha256(metadata).hexdigest(),
        )  # fmt: skip
