"""What comes before anything that touches a hub's data: the folder, the schema, the storage, or a clear refusal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError

from hub_server.context import Context, open_context
from hub_server.migrations.upgrade import upgrade
from hub_server.settings import Settings
from hub_server.storage import StorageError
from verifiers.errors import ConfigError, Error, ExitCode


class DatabaseError(Error):
    """The database can not be used."""

    exit_code = ExitCode.UNAVAILABLE
    hint = "Check --database-url, that the server runs, and that its user may make tables."


@contextmanager
def opened(settings: Settings, *, write: bool = True) -> Iterator[Context]:
    """The hub's parts for a command: its schema is that of this version, its storage answers."""
    try:
        settings.data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"can not make the folder {settings.data}: {error.strerror}",
            hint="Name a folder that this user may write: --data DIR, or HUB_DATA.",
        ) from error
    with database_errors(settings):
        context = open_context(settings)
        try:
            upgrade(context.database)
            context.storage.check(write=write)
            yield context
        finally:
            context.database.close()


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
