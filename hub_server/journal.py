"""The journal: one append-only table that is the audit log and gives every change its serial.

`record` is called last in a writing transaction. It takes the lock of the one row of `hub_state` and holds it until
the commit, so serials become visible in their order and without gaps: whoever sees serial N sees all before it. That
is what makes an answer "as of serial N" the same for ever (docs/reference/hub-api.md, resolve).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, Protocol

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ColumnElement,
    Integer,
    Table,
    bindparam,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Mapped, Session, mapped_column

from hub_server.database import Base, now, table_of

Serial = BigInteger().with_variant(Integer, "sqlite")


class HubState(Base):
    """One row: the serial of the last change."""

    __tablename__ = "hub_state"
    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: Mapped[int] = mapped_column(primary_key=True, default=1)
    serial: Mapped[int] = mapped_column(Serial, default=0)


class JournalEvent(Base):
    """One change: who did what to which project. Never updated, never deleted."""

    __tablename__ = "journal"

    serial: Mapped[int] = mapped_column(Serial, primary_key=True, autoincrement=False)
    at: Mapped[dt.datetime] = mapped_column(index=True)
    action: Mapped[str] = mapped_column(index=True)
    actor: Mapped[str | None]
    token_id: Mapped[str | None]
    owner: Mapped[str | None] = mapped_column(index=True)
    project: Mapped[str | None]
    project_id: Mapped[int | None] = mapped_column(index=True)
    version: Mapped[str | None]
    filename: Mapped[str | None]
    data: Mapped[dict[str, Any]] = mapped_column(default=dict)


APPEND_ONLY = {
    "sqlite": [
        f"CREATE TRIGGER journal_no_{verb} BEFORE {verb} ON journal "
        "BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END"
        for verb in ("update", "delete")
    ],
    "postgresql": [
        """CREATE FUNCTION journal_append_only() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'the journal is append-only'; END $$""",
        """CREATE TRIGGER journal_no_change BEFORE UPDATE OR DELETE ON journal
        FOR EACH ROW EXECUTE FUNCTION journal_append_only()""",
    ],
}
"""What makes the database itself refuse, by dialect: the first migration runs these statements."""


class HasSerial(Protocol):
    """A project: what it shows changed last at this serial."""

    id: Mapped[int]
    serial: Mapped[int]


_STATE, _EVENTS = table_of(HubState), table_of(JournalEvent)
_STEP = update(_STATE).values(serial=_STATE.c.serial + 1).returning(_STATE.c.serial)
_GIVEN = [column for column in _EVENTS.c if column.name not in ("serial", "at")]


class Stamps:
    """Rows that get an event's serial in their column `serial`: tables, each with a condition on bind parameters.

    Made once for each kind of change. `at_once` is all of `record` in one statement, for PostgreSQL: other writers wait
    from its begin until the commit. The moment is taken once the lock is held, so later serials have later moments.
    """

    def __init__(self, *rows: tuple[Table, ColumnElement[bool]]) -> None:
        self.rows = rows
        step = _STEP.cte("step")
        values = [bindparam(f"new_{column.name}", type_=column.type) for column in _GIVEN]
        source = select(step.c.serial, func.clock_timestamp(), *values)
        names = ["serial", "at", *(column.name for column in _GIVEN)]
        statement = insert(_EVENTS).from_select(names, source)
        for number, (table, which) in enumerate(rows):
            stamped = update(table).where(which).values(serial=select(step.c.serial).scalar_subquery())
            statement = statement.add_cte(stamped.cte(f"stamp_{number}"))
        self.at_once = statement.returning(_EVENTS.c.serial)


_NO_STAMPS = Stamps()


def record(
    session: Session, action: str, *, actor: str | None = None, token_id: str | None = None, owner: str | None = None,
    project: str | None = None, row: Any = None, version: str | None = None, filename: str | None = None,
    data: dict[str, Any] | None = None, project_id: int | None = None, stamps: Stamps = _NO_STAMPS,
    stamped: Mapping[str, int] | None = None,
) -> int:  # fmt: skip
    """Append one event and return its serial. Last in the transaction: others wait for it until the commit.

    row: the project's row, if what its index shows changed; its `serial` is set. project_id: instead of `row`, where
    `stamps` name all rows that get the serial; `stamped` are the values of its parameters.
    """
    session.flush()  # what may wait for another lock does so before the journal's is taken
    event = {
        "action": action, "actor": actor, "token_id": token_id, "owner": owner, "project": project,
        "project_id": project_id if row is None else row.id, "version": version, "filename": filename,
        "data": data or {},
    }  # fmt: skip
    connection = session.connection()  # tables instead of mapped classes: a third of the time, while others wait
    if connection.dialect.name == "postgresql":
        values = {f"new_{name}": value for name, value in event.items()}
        serial: int = connection.execute(stamps.at_once, {**values, **(stamped or {})}).scalar_one()
    else:
        serial = connection.execute(_STEP).scalar_one()
        connection.execute(insert(_EVENTS), {"serial": serial, "at": now(), **event})
        for table, which in stamps.rows:
            connection.execute(update(table).where(which).values(serial=serial), stamped)
    if row is not None:
        row.serial = serial
    return serial


def serial_before(session: Session, moment: dt.datetime) -> int:
    """The serial of the last change before a moment; 0 if there was none."""
    return session.scalar(select(func.max(JournalEvent.serial)).where(JournalEvent.at < moment)) or 0


def current_serial(session: Session) -> int:
    """The serial of the last change that this session sees."""
    return session.execute(select(HubState.serial)).scalar_one()
