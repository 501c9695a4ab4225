"""The database: one engine, sessions for reading and for writing, on SQLite and PostgreSQL alike.

    with database.write() as session:      # one transaction; committed at the end of the block, else rolled back
        ...

On SQLite a writing session begins with BEGIN IMMEDIATE: it waits for the writer before it, instead of failing when it
first writes after others have (SQLite, "Isolation In SQLite").
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

from sqlalchemy import JSON, Connection, DateTime, Dialect, MetaData, String, Table, create_engine, event
from sqlalchemy.exc import TimeoutError as NoTurnError
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.types import TypeDecorator

BUSY_MS = 30_000
"""How long an SQLite writer waits for the one before it."""


class UtcDateTime(TypeDecorator[dt.datetime]):
    """A moment in UTC, to the microsecond. SQLite stores none of the zone, so it is put back here."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: dt.datetime | None, dialect: Dialect) -> dt.datetime | None:
        """To the database."""
        return None if value is None else value.astimezone(dt.UTC)

    def process_result_value(self, value: dt.datetime | None, dialect: Dialect) -> dt.datetime | None:
        """From the database."""
        return None if value is None else value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value


class Base(DeclarativeBase):
    """Root of all models. Constraints have names of one form, so that a migration can change them anywhere."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dt.datetime: UtcDateTime,
        str: String(),
        dict[str, Any]: JSON,
        list[str]: JSON,
        list[dict[str, Any]]: JSON,
    }


def table_of(model: type[Base]) -> Table:
    """The table of a mapped class, for statements on hot paths: those skip the work of the mapper."""
    assert isinstance(model.__table__, Table)
    return model.__table__


def now() -> dt.datetime:
    """This moment, in UTC."""
    return dt.datetime.now(dt.UTC)


class _Turn:
    """A lock that nobody waits for longer than for SQLite's own: a database that another process holds must not take
    all threads, one after another, from those who only read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=BUSY_MS / 1000):
            raise NoTurnError("the writers before this one have not come to an end")

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Database:
    """The engine and its sessions. Made once a process; usable from all its threads."""

    def __init__(self, url: str, connections: int = 10) -> None:
        self.is_sqlite = url.startswith("sqlite")
        self.engine = create_engine(url, pool_size=connections, max_overflow=0, pool_pre_ping=not self.is_sqlite)
        self._writing = self.engine.execution_options(writing=True)
        # On PostgreSQL a statement sees what is committed when it begins, in a transaction (READ COMMITTED) or not.
        # Without one it saves BEGIN and ROLLBACK; and psycopg forgets its prepared statements at a ROLLBACK.
        reading = {} if self.is_sqlite else {"isolation_level": "AUTOCOMMIT"}
        self._reading = self.engine.execution_options(**reading)
        self._snapshots = self.engine.execution_options(
            **({} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"})
        )
        # SQLite's own waiting asks again after ever longer pauses, up to a tenth of a second, and serves nobody in
        # turn: the threads of one process wait here instead.
        self._turn: AbstractContextManager[object] = _Turn() if self.is_sqlite else nullcontext()
        if self.is_sqlite:
            event.listen(self.engine, "connect", _prepare_sqlite)
            event.listen(self.engine, "begin", _begin_sqlite)

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that changes nothing.

        On SQLite it sees one state of the database, on PostgreSQL each statement sees what was committed when it
        began: what must be of one moment is read by one statement, or checked against the serial.
        """
        with Session(self._reading, autoflush=False, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def snapshot(self) -> Iterator[Session]:
        """A session that changes nothing and sees one state of the database, with all its statements."""
        with Session(self._snapshots, autoflush=False, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """One writing transaction, committed at the end of the block."""
        with self._turn, Session(self._writing, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Close the connections that are not in use."""
        self.engine.dispose()


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver begins no transaction by itself: `_begin_sqlite` does
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",  # a commit that was answered survives a power cut
        "foreign_keys=ON",
        f"busy_timeout={BUSY_MS}",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
