"""What comes before anything that touches a hub's data: the folder, the schema, the storage, or a clear refusal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError

from hub_server.context import Context, open_context
from hub_server.migrations.upgrade import config, upgrade
from hub_server.settings import Settings
from hub_server.storage import StorageError
from verifiers.errors import ConfigError, Error, ExitCode


class DatabaseError(Error):
    """The database can not be used."""

    exit_code = ExitCode.UNAVAILABLE
    hint = "Check --database-url, that the server runs, and that its user may make tables."


@contextmanager
def opened(settings: Settings, *, write: bool = True) -> Iterator[Context]:
    """The hub's parts for a command: its schema is that of this version, its storage answers.

    With `write` a hub that is not there is made, and an older schema brought up to date; else either is refused.
    """
    if write:
        make_folder(settings)
    elif not settings.data.is_dir():
        raise ConfigError(f"there is no hub in {settings.data}", hint="Name its folder: --data DIR, or HUB_DATA.")
    with database_errors(settings):
        context = open_context(settings)
        try:
            if write:
                upgrade(context.database)
            else:
                check_schema(context)
            context.storage.check(write=write)
            yield context
        finally:
            context.database.close()


def make_folder(settings: Settings) -> None:
    """The data folder. StorageError if it can not be made."""
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"can not make the folder {settings.data}: {error.strerror}",
            hint="Name a folder that this user may write: --data DIR, or HUB_DATA.",
        ) from error


def check_schema(context: Context) -> None:
    """ConfigError unless the database has the schema of this version."""
    with context.database.engine.connect() as connection:
        found = MigrationContext.configure(connection).get_current_revision()
    head = ScriptDirectory.from_config(config()).get_current_head()
    if found is None:
        raise ConfigError("there is no hub in this database", hint="Check --data and --database-url.")
    if found != head:
        raise ConfigError(
            f"the database has schema {found}, this version of the hub {head}",
            hint="hub serve upgrades it; an older hub can not use a newer schema.",
        )


@contextmanager
def database_errors(settings: Settings) -> Iterator[None]:
    """A database that can not be used, as an error with a hint. No password is ever shown."""
    try:
        yield
    except (ArgumentError, NoSuchModuleError) as error:
        raise ConfigError(
            f"the address of the database is not one: {error}",
            hint="As in postgresql+psycopg://user:password@host:5432/hub",
        ) from error
    except OperationalError as error:
        raise DatabaseError(f"the database {_shown(settings.database)} can not be used: {_reason(error)}") from error


def _shown(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)


def _reason(error: DBAPIError) -> str:
    lines = [line.strip() for line in str(error.orig).splitlines() if line.strip()]
    return " ".join(lines)[:500]
