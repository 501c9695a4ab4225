"""What a request needs of its hub: settings, database, storage, inspectors. One a process: `open_context`."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

from hub_server.database import Database
from hub_server.inspector import Inspector
from hub_server.object_storage import ObjectStorage
from hub_server.settings import Settings
from hub_server.storage import FolderStorage, Storage
from verifiers.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that everything shares."""

    settings: Settings
    database: Database
    storage: Storage
    inspector: Inspector = field(default_factory=Inspector)


def open_context(settings: Settings) -> Context:
    """The parts that the settings name. Nothing is asked of a database or a remote storage yet."""
    storage = open_storage(settings)
    database = Database(settings.database, settings.database_connections)
    return Context(settings, database, storage, Inspector(settings.inspectors))


def open_storage(settings: Settings) -> Storage:
    """The folder, or what `storage` names. ConfigError for an address of another kind."""
    if settings.storage is None:
        return FolderStorage(settings.data)
    if settings.storage.startswith("s3://"):
        return ObjectStorage(settings.storage, settings.data)
    raise ConfigError(
        f"{settings.storage} is no blob store that this hub knows",
        hint="s3://bucket/prefix, or leave --storage away: the blobs are then in the data folder.",
    )


def get_context(request: Request) -> Context:
    """The hub that a request came to (a FastAPI dependency)."""
    context: Context = request.app.state.context
    return context
