"""An SQLite database that another process holds: writers are told so in time, and readers wait for nobody."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError, TimeoutError as NoTurnError

from hub_server import database as module
from hub_server.database import Database


@pytest.fixture
def locked(tmp_path, monkeypatch):
    """A database whose writers wait for a tenth of a second, and a connection that holds it."""
    monkeypatch.setattr(module, "BUSY_MS", 100)
    path = tmp_path / "hub.sqlite3"
    database = Database(f"sqlite:///{path}")
    with database.write() as session:
        session.execute(text("CREATE TABLE t (x)"))
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    yield database, other
    other.close()
    database.close()


def test_writers_give_up_and_readers_do_not_wait(locked):
    """Each writer of a crowd ends with an error that the hub answers as a 503; afterwards writing works."""
    database, other = locked

    def write(_number):
        with database.write() as session:
            session.execute(text("INSERT INTO t VALUES (1)"))

    def failure(number):
        try:
            write(number)
        except (OperationalError, NoTurnError) as error:
            return type(error)
        return None

    with ThreadPoolExecutor(9) as pool:
        failures = list(pool.map(failure, range(9)))
        with database.read() as session:
            assert session.execute(text("SELECT count(*) FROM t")).scalar() == 0
    assert None not in failures
    assert NoTurnError in failures, "nobody waited for a turn"
    other.execute("ROLLBACK")
    write(0)
    with database.read() as session:
        assert session.execute(text("SELECT count(*) FROM t")).scalar() == 1
