"""What a request needs of its hub: settings, database, storage, inspectors. One a process, made by `create_app`."""

from __future__ import annotations

from dataclasses import dataclass, field

from fastapi import Request

from hub_server.database import Database
from hub_server.inspector import Inspector
from hub_server.settings import Settings
from hub_server.storage import Storage


@dataclass(frozen=True, slots=True)
class Context:
    """The parts that everything shares."""

    settings: Settings
    database: Database
    storage: Storage
    inspector: Inspector = field(default_factory=Inspector)


def get_context(request: Request) -> Context:
    """The hub that a request came to (a FastAPI dependency)."""
    context: Context = request.app.state.context
    return context
