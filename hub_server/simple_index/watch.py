"""What has changed since a cached answer was made, asked of the journal before every answer.

    await watch.catch_up()                    # one cheap query, microseconds on SQLite
    watch.unchanged(("my-env",), as_of)       # no change of a project of that name after serial `as_of`

Every change of what an index shows is a row of the journal, committed with it, in the order of the serials. So one
read of the rows after the last known serial tells which cached answers still hold, also when the change came through
another process: a push, a yank or a revoked token shows in the next answer.

Tags are names: of a project (its normal form, whoever owns it), `/owner` for the list of an owner's projects, ACCOUNTS
for tokens and members.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import psycopg
from sqlalchemy.engine import URL

from hub_server.database import BUSY_MS, Database
from hub_server.problems import Unavailable

ACCOUNTS = "//"
_AT_ONCE = 1000
_REMEMBERED = 50_000
PATIENCE_S = 30
"""How long the database may take to say what is new."""

_NEWS = """SELECT j.serial, j.project_id, p.name, o.slug
FROM journal j LEFT JOIN projects p ON p.id = j.project_id LEFT JOIN owners o ON o.id = p.owner_id
WHERE j.serial > {} ORDER BY j.serial LIMIT {}"""
_SERIAL = "SELECT serial FROM hub_state"


class Change(NamedTuple):
    """One row of the journal. Changes of accounts have no project."""

    serial: int
    project_id: int | None
    name: str | None
    owner: str | None


class JournalWatch:
    """The journal as one process has read it. For the event loop's thread only."""

    def __init__(self, database: Database) -> None:
        self.serial = -1
        self._source: _Sqlite | _Postgresql = (
            _Sqlite(database.engine.url) if database.is_sqlite else _Postgresql(database.engine.url)
        )
        self._floor = 0
        self._changed: dict[str, int] = {}
        self._running: asyncio.Task[None] | None = None
        self._waiting: asyncio.Task[None] | None = None

    def unchanged(self, tags: Iterable[str], as_of: int) -> bool:
        """Whether nothing with one of these tags has changed after serial `as_of`, as far as is known now."""
        return as_of >= self._floor and all(self._changed.get(tag, 0) <= as_of for tag in tags)

    def changed_since(self, as_of: int) -> set[str] | None:
        """The names of projects that have changed after serial `as_of`. None if that is too long ago to say."""
        if as_of < self._floor:
            return None
        return {tag for tag, serial in self._changed.items() if serial > as_of and not tag.startswith("/")}

    async def catch_up(self) -> None:
        """Learn of every change that was committed before this call. Unavailable if the database does not answer."""
        try:
            if isinstance(self._source, _Sqlite):
                self._note(self._source.news(self.serial), self._source.serial)
            else:
                await self._shared()
        except (psycopg.OperationalError, sqlite3.OperationalError, TimeoutError) as error:
            raise Unavailable("the hub's database does not answer", headers={"Retry-After": "10"}) from error

    async def close(self) -> None:
        """Close the connection."""
        await self._source.close()

    async def _shared(self) -> None:
        """One question for all requests that came before it was put. One that is under way may have been answered
        before a commit that this caller knows of, so it is not enough: the next one is."""
        if self._running is None:
            self._running = asyncio.create_task(self._ask(None))
            await asyncio.shield(self._running)
            return
        if self._waiting is None:
            self._waiting = asyncio.create_task(self._ask(self._running))
        await asyncio.shield(self._waiting)

    async def _ask(self, earlier: asyncio.Task[None] | None) -> None:
        assert isinstance(self._source, _Postgresql)
        if earlier is not None:
            await asyncio.wait([earlier])
        try:
            news, serial = await self._source.news(self.serial)
            self._note(news, lambda: serial)
        finally:
            self._running, self._waiting = self._waiting, None

    def _note(self, news: list[Change], serial: Callable[[], int]) -> None:
        if not news:
            return
        if self.serial < 0 or len(news) == _AT_ONCE or len(self._changed) > _REMEMBERED:
            self._changed.clear()  # whatever was cached may be stale; the next read goes on from here
            self._floor = self.serial = max(serial(), news[-1].serial)
            return
        for change in news:
            for tag in _tags(change):
                self._changed[tag] = change.serial
        self.serial = news[-1].serial


def _tags(change: Change) -> tuple[str, ...]:
    if change.project_id is None or change.name is None:
        return (ACCOUNTS,)
    return (change.name, f"/{change.owner}")


class _Sqlite:
    """A connection of the event loop's own: readers wait for nobody in WAL mode."""

    def __init__(self, url: URL) -> None:
        self._path = str(url.database)
        self._connection: sqlite3.Connection | None = None

    def _connect(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, timeout=BUSY_MS / 1000, isolation_level=None)
            self._connection.execute("PRAGMA query_only=ON")
        return self._connection

    def news(self, serial: int) -> list[Change]:
        rows = self._connect().execute(_NEWS.format("?", _AT_ONCE), (serial,)).fetchall()
        return [Change(*row) for row in rows] if rows else []

    def serial(self) -> int:
        return int(self._connect().execute(_SERIAL).fetchone()[0])

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


class _Postgresql:
    """A connection of the event loop's own. One that broke is made anew, once for each question."""

    def __init__(self, url: URL) -> None:
        self._url = url.set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def news(self, serial: int) -> tuple[list[Change], int]:
        """The changes after a serial, and the last serial."""
        try:
            return await self._news(serial)
        except (psycopg.OperationalError, TimeoutError):
            await self.close()
            return await self._news(serial)

    async def _news(self, serial: int) -> tuple[list[Change], int]:
        async with asyncio.timeout(PATIENCE_S):
            if self._connection is None:
                self._connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
                self._connection.prepare_threshold = 0
            rows = await (await self._connection.execute(_NEWS.format("%s", _AT_ONCE), (serial,))).fetchall()
            if not rows:
                return [], serial
            last = await (await self._connection.execute(_SERIAL)).fetchone()
        return [Change(*row) for row in rows], int(last[0]) if last else serial

    async def close(self) -> None:
        """Close it; the next question opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
