"""Run the server until it is told to stop.

One process serves by itself. Several have uvicorn's manager above them: it listens, starts them, replaces one that dies
or hangs, and passes SIGTERM on. A process whose manager is gone stops too.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import tempfile
from functools import partial
from typing import Any

import structlog
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from hub_server.app import create_app
from hub_server.context import Context
from hub_server.maintenance import sdk
from hub_server.maintenance.first_token import create_first_token
from hub_server.maintenance.prepare import opened
from hub_server.maintenance.worker import create_worker
from hub_server.operations import logs
from hub_server.operations.metrics import FOLDER, forget_process
from hub_server.settings import Settings, unknown_variables
from hub_server.simple_index.sendfile import ZeroCopyProtocol
from verifiers.errors import Error, ExitCode

KEEP_ALIVE = 65
"""Seconds that an idle connection stays open: longer than proxies keep theirs, so that they never send into a closed
one (nginx: keepalive_timeout of an upstream is 60 s)."""

HUNG = 30
"""Seconds without an answer to the manager, after which a process is replaced."""

START_SECONDS = 120

BACKLOG = 2048


class ListenError(Error):
    """The address can not be listened on."""

    hint = "Choose another --host and --port; --port 0 takes a free one."


def serve(settings: Settings, bootstrap_owner: str | None = None) -> int:
    """Upgrade the schema, listen, say where on stderr, and serve. A token for `bootstrap_owner` goes to stdout.

    Returns the exit code. Errors: ListenError, StorageError, DatabaseError, ConfigError.
    """
    logs.configure(settings)
    log = structlog.get_logger()
    with opened(settings, write=not settings.read_only) as context:
        _greet(context, bootstrap_owner)
    listening = _listen(settings)
    code = _serve_many(settings, listening) if settings.workers > 1 else _serve_alone(settings, listening)
    log.info("the hub has stopped")
    return code


def _greet(context: Context, bootstrap_owner: str | None) -> None:
    """The first token, and what an operator should know."""
    log = structlog.get_logger()
    if bootstrap_owner is not None and (token := create_first_token(context.database, bootstrap_owner)) is not None:
        sys.stdout.write(token + "\n")
        sys.stdout.flush()
    if not sdk.is_there(context):
        log.warning(
            "this hub has no wheel of verifiers: environments get whatever the public index calls so",
            hint="hub admin add-sdk WHEEL",
        )
    for sentence in unknown_variables():
        log.warning(sentence)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as error:
        reason = "another process listens there" if getattr(error, "errno", 0) == errno.EADDRINUSE else str(error)
        raise ListenError(f"can not listen on {settings.host}:{settings.port}: {reason}") from error


def _announce(settings: Settings, listening: socket.socket) -> None:
    """Say where, once a signal to stop is understood: whoever reads this may send one."""
    host, port = listening.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    where = {"workers": settings.workers, "data": str(settings.data.absolute())}
    structlog.get_logger().info(f"the hub listens on http://{host}:{port}", **where)


def _config(settings: Settings, app: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app, factory=True, workers=settings.workers, loop="uvloop", http=ZeroCopyProtocol, ws="none", lifespan="on",
        log_config=None, access_log=False, server_header=False, backlog=BACKLOG, timeout_keep_alive=KEEP_ALIVE,
        proxy_headers=True, forwarded_allow_ips=settings.forwarded_allow_ips,
        timeout_graceful_shutdown=settings.shutdown_seconds, timeout_worker_healthcheck=HUNG,
    )  # fmt: skip


def _serve_alone(settings: Settings, listening: socket.socket) -> int:
    config = _config(settings, partial(create_app, settings))
    config.load()
    server = uvicorn.Server(config)

    def stop(*_: object) -> None:
        server.should_exit = True

    # For a signal before uvicorn's own handlers, and for the one that it raises again once it has stopped: to stop
    # when told to is a success.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    _announce(settings, listening)
    server.run(sockets=[listening])
    return ExitCode.OK if server.started else ExitCode.FAILED


# --- several processes ------------------------------------------------------------------------------------------


def _serve_many(settings: Settings, listening: socket.socket) -> int:
    with tempfile.TemporaryDirectory(prefix="hub-metrics-") as folder:
        os.environ[FOLDER] = folder
        manager = _Manager(settings, listening)
        manager.run()
        failed = any(process.exitcode == STARTUP_FAILURE for process in manager.processes)
    return ExitCode.FAILED if failed else ExitCode.OK


class _Manager(Multiprocess):
    """Announces the address once it is answered, and says when a process was replaced."""

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        super().__init__(_config(settings, partial(create_worker, settings)), [listening])
        self.settings = settings

    def init_processes(self) -> None:
        """Start them, and wait until they serve."""
        super().init_processes()
        if all(process.wait_until_ready(START_SECONDS) for process in self.processes):
            _announce(self.settings, self.sockets[0])

    def keep_subprocess_alive(self) -> None:
        """Replace what has died or hangs, and forget what it said of the present."""
        before: dict[int, Process] = dict(enumerate(self.processes))
        super().keep_subprocess_alive()
        for index, old in before.items():
            new = self.processes[index]
            if new is not old:
                forget_process(old.pid or 0)
                structlog.get_logger().error("a server process died and was replaced", old=old.pid, new=new.pid)
