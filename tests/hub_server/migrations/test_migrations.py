"""The migrations make what the models say, and can be undone."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError

from hub_server.database import Base, Database
from hub_server.journal import record
from hub_server.migrations.upgrade import downgrade, upgrade


@pytest.fixture
def database(database_url):
    database = Database(database_url)
    yield database
    database.close()


def test_from_empty_the_migrations_make_what_the_models_say(database):
    """Nothing differs between the migrated schema and the models."""
    upgrade(database)
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []


def test_down_and_up_again(database):
    """Undoing leaves no table, and the way up works a second time."""
    upgrade(database)
    downgrade(database, "base")
    assert set(inspect(database.engine).get_table_names()) <= {"alembic_version"}
    upgrade(database)
    with database.write() as session:
        assert record(session, "test") == 1


@pytest.mark.parametrize("statement", ["UPDATE journal SET action = 'other'", "DELETE FROM journal"])
def test_the_journal_is_append_only(database, statement):
    """The database itself refuses to change what has happened."""
    upgrade(database)
    with database.write() as session:
        record(session, "test")
    with pytest.raises(DBAPIError), database.write() as session:
        session.execute(text(statement))
    with database.read() as session:
        assert session.execute(text("SELECT action FROM journal")).scalar_one() == "test"
