"""Bring a database to the schema of this version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import text

from hub_server.database import Database

LOCK = 7_366_271
"""Key of the advisory lock that keeps two servers of one PostgreSQL database from migrating at once."""


def config() -> Config:
    """Alembic's configuration, without a file."""
    settings = Config()
    settings.set_main_option("script_location", str(Path(__file__).parent))
    return settings


def upgrade(database: Database, revision: str = "head") -> None:
    """Run the migrations that are missing, one process at a time."""
    _run(database, lambda settings: command.upgrade(settings, revision))


def downgrade(database: Database, revision: str) -> None:
    """Undo migrations down to a revision, `base` for all."""
    _run(database, lambda settings: command.downgrade(settings, revision))


def _run(database: Database, step: Callable[[Config], None]) -> None:
    settings = config()
    # One writing transaction: on SQLite it holds the file's lock.
    with database.engine.execution_options(writing=True).begin() as connection:
        if not database.is_sqlite:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
        settings.attributes["connection"] = connection
        step(settings)
