"""The route of the indexes and files: one ASGI endpoint, ahead of the framework's own routes.

It uses no dependency injection: an answer from the cache takes less time than resolving dependencies would.
"""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from starlette.routing import BaseRoute, Match, NoMatchFound
from starlette.types import Receive, Scope, Send

from hub_server.context import Context
from hub_server.operations.metrics import DOWNLOADS
from hub_server.simple_index.addresses import FileAddress, IndexAddress, parse
from hub_server.simple_index.downloads import Download
from hub_server.simple_index.indexes import Indexes
from hub_server.simple_index.responses import NO_FILE, NOT_ALLOWED, Asked
from hub_server.simple_index.service import FileRef


@lru_cache(maxsize=16)
def _named(template: str) -> SimpleNamespace:
    """What logs and metrics read the form of an address from (`scope["route"].path`)."""
    return SimpleNamespace(path=template)


class IndexRoute(BaseRoute):
    """Everything that installers read."""

    def __init__(self, context: Context) -> None:
        self._storage = context.storage
        self.indexes = Indexes(context)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """By the path alone: a method other than GET and HEAD is refused, not passed on."""
        if scope["type"] != "http":
            return Match.NONE, {}
        path: str = scope["path"]
        if root := scope.get("root_path"):
            path = path.removeprefix(root)
        address = parse(path)
        if address is None:
            return Match.NONE, {}
        return Match.FULL, {"endpoint": self, "route": _named(address.template), "hub_address": address}

    def url_path_for(self, name: str, /, **path_params: Any) -> Any:
        """No address is made from this route's name."""
        raise NoMatchFound(name, path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        asked = Asked(scope)
        address: IndexAddress | FileAddress = scope["hub_address"]
        if scope["method"] not in ("GET", "HEAD"):
            await NOT_ALLOWED.send(asked, send)
        elif isinstance(address, IndexAddress):
            answer = await self.indexes.page(address, asked)
            await answer.send(asked, send)
        else:
            await self._send_file(address, asked, receive, send)

    async def _send_file(self, address: FileAddress, asked: Asked, receive: Receive, send: Send) -> None:
        file = await self.indexes.file(address, asked)
        if not isinstance(file, FileRef):
            await file.send(asked, send)
        elif not address.sidecar and asked.scope["method"] == "GET" and not await self.indexes.note_download(file):
            await NO_FILE.send(asked, send)
        elif not address.sidecar:
            if asked.scope["method"] == "GET":
                DOWNLOADS.inc()
            await Download(self._storage, file, file.sha256, file.size).answer(asked, receive, send)
        elif file.metadata_sha256 is None:
            await NO_FILE.send(asked, send)
        else:
            size = await self.indexes.size_of(file.metadata_sha256)
            await Download(self._storage, file, file.metadata_sha256, size).answer(asked, receive, send)
