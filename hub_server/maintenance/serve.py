"""Run the server until it is told to stop."""

from __future__ import annotations

import socket
import sys

import uvicorn

from hub_server.app import create_app
from hub_server.maintenance.first_token import bootstrap
from hub_server.settings import Settings
from hub_server.simple_index.sendfile import ZeroCopyProtocol


def serve(settings: Settings, bootstrap_owner: str | None = None) -> None:
    """Listen, say where on stderr, and serve. A token for `bootstrap_owner` goes to stdout, alone, once."""
    settings.data.mkdir(parents=True, exist_ok=True)
    if bootstrap_owner is not None and (token := bootstrap(settings, bootstrap_owner)) is not None:
        sys.stdout.write(token + "\n")
        sys.stdout.flush()
    listening = socket.create_server((settings.host, settings.port), backlog=512)
    host, port = listening.getsockname()[:2]
    sys.stderr.write(f"the hub listens on http://{host}:{port}\n")
    sys.stderr.flush()
    config = uvicorn.Config(create_app(settings), http=ZeroCopyProtocol, log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    server.run(sockets=[listening])
