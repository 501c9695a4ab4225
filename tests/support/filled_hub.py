"""A hub's parts with a little of everything in it, in this process: for what looks after a hub."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import select

from hub_server.accounts.models import Owner
from hub_server.accounts.service import Principal
from hub_server.context import Context
from hub_server.maintenance.first_token import create_first_token
from hub_server.maintenance.prepare import opened
from hub_server.publishing.pipeline import Publication, publish
from hub_server.publishing.receive import Upload
from hub_server.settings import load_settings
from tests.support.archives import write_sdist, write_wheel


@contextmanager
def hub_parts(**settings: Any) -> Iterator[Context]:
    """An open hub."""
    with opened(load_settings(**settings)) as context:
        try:
            yield context
        finally:
            context.inspector.close()


def owner_of(context: Context, slug: str) -> Principal:
    """An owner, made if need be, as one who may do everything with it."""
    create_first_token(context.database, slug)
    with context.database.read() as session:
        owner = session.scalars(select(Owner).where(Owner.slug == slug)).one()
    return Principal(owner.id, slug, "", frozenset(("admin",)), ())


def publish_files(context: Context, slug: str, *files: Path, **more: Any) -> Publication:
    """Publish files for an owner, as an upload would."""
    uploads = []
    for path in files:
        copy = context.storage.incoming / f"test-{path.name}"
        shutil.copyfile(path, copy)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        uploads.append(Upload(copy, path.name, path.stat().st_size, digest))
    return publish(Publication(context, owner_of(context, slug), slug, uploads, **more))


def fill(context: Context, folder: Path) -> None:
    """Two owners; a project of two releases with a source archive, a private one, and one of the same name."""
    publish_files(context, "alice", write_wheel(folder), write_sdist(folder))
    publish_files(context, "alice", write_wheel(folder, version="0.2.0"))
    publish_files(context, "alice", write_wheel(folder, name="hidden-env"), visibility="private")
    publish_files(context, "bob", write_wheel(folder, description="# Bob's\n"))
