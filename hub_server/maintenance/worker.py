"""One of several server processes: what the manager starts. It loads no more than it runs."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.connection import wait

from fastapi import FastAPI

from hub_server.app import create_app
from hub_server.operations import logs
from hub_server.settings import Settings


def create_worker(settings: Settings) -> FastAPI:
    """The application in a process of its own (spawned: nothing is set up yet)."""
    logs.configure(settings)
    threading.Thread(target=_stop_with_manager, name="manager-watch", daemon=True).start()
    return create_app(settings)


def _stop_with_manager() -> None:
    """The manager was killed: stop as if it had asked to, instead of holding the port for ever."""
    manager = parent_process()
    if manager is not None:
        wait([manager.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
