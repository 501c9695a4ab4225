"""The SDK's own wheel: the project `sdk/verifiers`, which every package's index shows beside the package."""

from __future__ import annotations

import hashlib
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from sqlalchemy import select

from hub_server.accounts.errors import OwnerTaken
from hub_server.accounts.models import Owner
from hub_server.accounts.service import Principal, create_owner
from hub_server.context import Context
from hub_server.packages.models import File
from hub_server.packages.service import project_of
from hub_server.publishing.pipeline import Publication, publish
from hub_server.publishing.receive import Upload
from hub_server.simple_index.service import SDK_NAME, SDK_OWNER
from verifiers.errors import ConfigError
from verifiers.hub.package.names import WheelName, parse_wheel_name

ACTOR = "hub admin"


def add(context: Context, wheel: Path) -> str:
    """Publish the wheel through the pipeline of every upload, without the load contract. Returns what was done.

    ConfigError if it is no file or of another package; RefusedError and Problem as for any upload.
    """
    if not wheel.is_file():
        raise ConfigError(f"there is no file {wheel}", hint="Build it: uv build --wheel, in a checkout of verifiers.")
    named: WheelName = parse_wheel_name(wheel.name)
    if named.name != SDK_NAME:
        what = f"{wheel.name} is a wheel of {named.name}, not of {SDK_NAME}"
        raise ConfigError(what, hint="hub push publishes environments.")
    owner_id = _owner(context)
    everything = frozenset(("admin",))
    principal = Principal(owner_id, SDK_OWNER, "", everything, ())
    copy = context.storage.incoming / f"sdk-{secrets.token_hex(8)}"
    try:
        shutil.copyfile(wheel, copy)
        with copy.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        upload = Upload(copy, wheel.name, copy.stat().st_size, digest)
        done = publish(Publication(context, principal, SDK_OWNER, [upload], environment=False))
    finally:
        copy.unlink(missing_ok=True)
        context.inspector.close()
    state = "is there now" if done.created else "was there already"
    return f"{SDK_OWNER}/{SDK_NAME}@{done.version} {state}"


def is_there(context: Context) -> bool:
    """Whether the hub has a wheel of the SDK."""
    with context.database.read() as session:
        project = project_of(session, SDK_OWNER, SDK_NAME)
        if project is None:
            return False
        files = select(File.id).where(File.project_id == project.id, File.kind == "wheel", File.deleted_at.is_(None))
        return session.execute(files.limit(1)).first() is not None


def _owner(context: Context) -> int:
    """The id of the reserved owner, which is made the first time. Nobody has a token of it."""
    with context.database.write() as session:
        find = select(Owner.id).where(Owner.slug == SDK_OWNER)
        if (owner_id := session.scalar(find)) is not None:
            return owner_id
        with suppress(OwnerTaken):  # it was made in this moment
            create_owner(session, SDK_OWNER, "organisation", actor=ACTOR)
        return session.execute(find).scalar_one()
