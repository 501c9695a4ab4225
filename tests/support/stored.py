"""Projects and releases put into a hub's database directly, for tests of what reads them.

    store = Store(database, storage)
    store.owner("alice")
    store.release("alice/my-env", "1.2", needs=["bob/base>=1"])      # wheel in the storage, rows, a journal event
    store.yank("alice/my-env", "1.2", "wrong reward")

What goes through the upload routes is tested with these; here every state can be had at once.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import select

from hub_server.accounts.models import Membership, Owner
from hub_server.accounts.service import Principal, create_owner
from hub_server.database import Database, now
from hub_server.journal import record
from hub_server.migrations.upgrade import upgrade
from hub_server.packages.events import DELETE, PUBLISH, STATUS, UNYANK, VISIBILITY, YANK
from hub_server.packages.models import File, Project, Release
from hub_server.packages.service import project_of
from hub_server.packages.terms import add_release, refresh, terms_of
from hub_server.storage import FolderStorage, Storage
from tests.support.archives import make_sdist, make_wheel, module_name, sdist_name, wheel_name
from tests.support.hub import LiveHub
from verifiers.hub.package.names import canonical_version, normal_version


def principal(
    owner: Owner, *scopes: str, patterns: tuple[str, ...] = (), site_admin: bool = False
) -> Principal:
    """Who asks, with a token of these scopes (`read` if none is named)."""
    return Principal(owner.id, owner.slug, "token", frozenset(scopes or ("read",)), patterns, site_admin=site_admin)


@contextmanager
def stored(hub: LiveHub) -> Iterator[Store]:
    """What writes into the database and the storage of a running hub."""
    url = hub.settings.get("HUB_DATABASE_URL") or f"sqlite:///{hub.data / 'hub.sqlite3'}"
    database = Database(url, 1)
    try:
        yield Store(database, FolderStorage(hub.data))
    finally:
        database.close()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Database]:
    """A function that opens a fresh database, for laws with many examples: copied, since migrating takes longer."""
    folder = tmp_path_factory.mktemp("empty")
    first = Database(f"sqlite:///{folder / 'empty.sqlite3'}")
    upgrade(first)
    with first.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    first.close()
    made = itertools.count()

    def database() -> Database:
        path = folder / f"{next(made)}.sqlite3"
        shutil.copy(folder / "empty.sqlite3", path)
        return Database(f"sqlite:///{path}", 1)

    return database


def metadata_of(wheel: bytes) -> bytes:
    """The METADATA of a wheel."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name)


class Store:
    """Writes to one database, and to a storage where one is given."""

    def __init__(self, database: Database, storage: Storage | None = None) -> None:
        self.database = database
        self.storage = storage

    def owner(self, slug: str, kind: str = "user") -> Owner:
        """The owner, made if need be."""
        with self.database.write() as session:
            found = session.scalar(select(Owner).where(Owner.slug == slug))
            return found or create_owner(session, slug, kind)

    def member(self, organisation: str, user: str, role: str = "reader") -> None:
        """Make a user a member."""
        made = {"organisation_id": self.owner(organisation).id, "user_id": self.owner(user).id}
        with self.database.write() as session:
            session.add(Membership(**made, role=role, created_at=now()))

    def release(
        self, id: str, version: str = "1.0", *, needs: list[str] | None = None, visibility: str = "public",
        kind: str = "wheel", files: dict[str, bytes | str] | None = None, summary: str | None = "An environment",
        requires_python: str | None = ">=3.11", requires_dist: list[str] | None = None,
        direct_urls: list[str] | None = None, keywords: list[str] | None = None,
        import_names: list[str] | None = None, facts: dict[str, Any] | None = None, sdist: bool = False,
        content: bytes | None = None, **wheel: Any,
    ) -> int:  # fmt: skip
        """Publish one release and return its serial. `facts` are more of them, `wheel` goes to `make_wheel`.

        content: the wheel, if it is made already. sdist: add a source archive.
        """
        slug, name = id.split("/")
        owner = self.owner(slug)
        content = content or make_wheel(name, version, files, **wheel)
        if kind == "wheel":
            made_files = [self._file(wheel_name(name, version), kind, content, metadata_of(content))]
        else:
            made_files = [self._file(sdist_name(name, version), kind, content)]
        if sdist:
            made_files.append(self._file(sdist_name(name, version), "sdist", make_sdist(name, version)))
        told = {
            "requires_dist": requires_dist or [], "direct_urls": direct_urls or [], "hub_dependencies": needs or [],
            "keywords": keywords or [], "needs": None,
            "import_names": [module_name(name)] if import_names is None else import_names, **(facts or {}),
        }  # fmt: skip
        made = now()
        with self.database.write() as session:
            project = project_of(session, slug, name, lock=True)
            is_first = project is None
            if project is None:
                taken = session.scalar(select(Project.id).where(Project.plain_name == name)) is not None
                project = Project(
                    owner_id=owner.id, name=name, display_name=name, visibility=visibility, created_at=made,
                    plain_name=name if visibility == "public" and not taken else None,
                )  # fmt: skip
                session.add(project)
                session.flush()
            terms = terms_of(slug, name, summary, keywords or [])
            add_release(session.connection(), project.id, version, terms, is_first=is_first)
            row = Release(
                project_id=project.id, version=canonical_version(version), given_version=normal_version(version),
                summary=summary, requires_python=requires_python, facts=told, created_at=made, serial=0,
                readme="# Read me\n", readme_type="text/markdown",
            )  # fmt: skip
            session.add(row)
            for file in made_files:
                file.project_id, file.requires_python = project.id, requires_python
                row.files.append(file)
            session.flush()
            row.serial = self._record(session, PUBLISH, project, row.shown)
            for file in made_files:
                file.serial = row.serial
            return row.serial

    def _file(self, filename: str, kind: str, content: bytes, metadata: bytes | None = None) -> File:
        if self.storage is not None:
            for blob in filter(None, (content, metadata)):
                self.storage.put_bytes(blob, hashlib.sha256(blob).hexdigest())
        return File(
            filename=filename, kind=kind, size=len(content), sha256=hashlib.sha256(content).hexdigest(),
            blake2b_256=hashlib.blake2b(content, digest_size=32).hexdigest(), uploaded_at=now(), serial=0,
            metadata_sha256=None if metadata is None else hashlib.sha256(metadata).hexdigest(),
        )  # fmt: skip

    def yank(self, id: str, version: str, reason: str = "broken", cause: str = "other") -> int:
        """Yank one."""
        with self.database.write() as session:
            project, release = self._find(session, id, version)
            release.yanked_at, release.yank_reason, release.yank_class = now(), reason, cause
            refresh(session, project)
            return self._record(session, YANK, project, release.shown, {"reason": reason, "class": cause})

    def unyank(self, id: str, version: str) -> int:
        """Take it back."""
        with self.database.write() as session:
            project, release = self._find(session, id, version)
            release.yanked_at = release.yank_reason = release.yank_class = None
            refresh(session, project)
            return self._record(session, UNYANK, project, release.shown)

    def delete(self, id: str, version: str) -> int:
        """Delete one, which leaves a tombstone."""
        with self.database.write() as session:
            project, release = self._find(session, id, version)
            release.deleted_at = now()
            for file in session.scalars(select(File).where(File.release_id == release.id)):
                file.deleted_at = release.deleted_at
            refresh(session, project)
            return self._record(session, DELETE, project, release.shown)

    def change(self, id: str, **values: Any) -> int:
        """Set a project's visibility or status."""
        action = VISIBILITY if "visibility" in values else STATUS
        with self.database.write() as session:
            project = project_of(session, *id.split("/"))
            assert project is not None
            for name, value in values.items():
                setattr(project, name, value)
            return self._record(session, action, project, None, values)

    def _find(self, session: Any, id: str, version: str) -> tuple[Project, Release]:
        project = project_of(session, *id.split("/"))
        assert project is not None
        key = canonical_version(version)
        return project, session.scalars(
            select(Release).where(Release.project_id == project.id, Release.version == key)
        ).one()

    def _record(self, session: Any, action: str, project: Project, version: str | None, data: Any = None) -> int:
        owner = session.get(Owner, project.owner_id)
        return record(
            session, action, actor=owner.slug, owner=owner.slug, project=project.name, row=project,
            version=version, data=data,
        )  # fmt: skip
