"""Read an exported hub into an empty one, on either database and either storage: `hub import`.

Blobs first, each compared with its digest; then all rows in one transaction. An import that was interrupted is begun
again, and finds the blobs that are there.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Integer, Table, func, insert, select, update

from hub_server.context import Context
from hub_server.database import UtcDateTime
from hub_server.journal import HubState
from hub_server.maintenance.bundle import FORMAT, MANIFEST, Bundle, BundleError, reading
from hub_server.maintenance.export import blob_name, exported_tables
from hub_server.migrations.upgrade import config
from hub_server.storage import CHUNK
from verifiers.errors import ConfigError

ROWS = 500


def load(context: Context, source: Path, told: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Read everything in, and return the manifest. ConfigError if the hub is not empty, BundleError if the export is
    not whole or of another version."""
    check_empty(context)
    with reading(source) as bundle:
        manifest = read_manifest(bundle)
        told(f"{manifest['blobs']['count']} blobs, {manifest['blobs']['bytes']:,} bytes")
        load_blobs(context, bundle, manifest)
        with context.database.engine.execution_options(writing=True).begin() as connection:
            for table in exported_tables():
                load_table(connection, table, bundle, manifest["tables"].get(table.name))
    return manifest


def check_empty(context: Context) -> None:
    """Nothing has happened in this hub yet."""
    with context.database.read() as session:
        if session.scalar(select(HubState.serial)):
            raise ConfigError("this hub is not empty", hint="Import into a new --data folder and a new database.")


def read_manifest(bundle: Bundle) -> dict[str, Any]:
    """What the export holds."""
    manifest: dict[str, Any] = json.loads(_read(bundle, MANIFEST))
    if manifest.get("format") != FORMAT:
        theirs = manifest.get("format")
        raise BundleError(f"the export has format {theirs}, this hub reads {FORMAT}", hint="Upgrade the hub.")
    head = ScriptDirectory.from_config(config()).get_current_head()
    if manifest["schema"] != head:
        raise BundleError(
            f"the export is of schema {manifest['schema']}, this hub has {head}",
            hint="Import it with the version of the hub that wrote it, then upgrade.",
        )
    return manifest


def load_blobs(context: Context, bundle: Bundle, manifest: dict[str, Any]) -> None:
    """Every blob of the list, unless it is there."""
    listed = _read(bundle, "blobs.jsonl")
    if hashlib.sha256(listed).hexdigest() != manifest["blobs"]["sha256"]:
        raise BundleError("blobs.jsonl is not what the manifest says")
    for line in listed.splitlines():
        entry = json.loads(line)
        digest, size = str(entry["sha256"]), int(entry["size"])
        if context.storage.size(digest) == size:
            continue
        path = context.storage.incoming / f"import-{secrets.token_hex(8)}"
        try:
            with _open(bundle, blob_name(digest)) as source, path.open("wb") as file:
                found = _copy(source, file)
            if found != digest:
                raise BundleError(f"the blob {digest} of the export has other bytes")
            context.storage.put(path, digest)
        finally:
            path.unlink(missing_ok=True)


def load_table(connection: Connection, table: Table, bundle: Bundle, said: dict[str, Any] | None) -> None:
    """The rows of a table, compared with the manifest."""
    if said is None:
        return
    if table.name == "hub_state":
        connection.execute(table.delete())
    digest, count = hashlib.sha256(), 0
    batch: list[dict[str, Any]] = []
    later: list[tuple[dict[str, Any], dict[str, Any]]] = []
    with _open(bundle, f"tables/{table.name}.jsonl") as lines:
        for line in lines:
            digest.update(line)
            count += 1
            row = _row(table, json.loads(line))
            later += _cut_off(table, row)
            batch.append(row)
            if len(batch) == ROWS:
                connection.execute(insert(table), batch)
                batch = []
    if batch:
        connection.execute(insert(table), batch)
    for key, values in later:
        connection.execute(update(table).where(*(table.c[name] == key[name] for name in key)).values(values))
    if (count, digest.hexdigest()) != (said["rows"], said["sha256"]):
        raise BundleError(f"tables/{table.name}.jsonl is not what the manifest says")
    if connection.dialect.name == "postgresql":
        _advance_sequence(connection, table)


def _row(table: Table, values: dict[str, Any]) -> dict[str, Any]:
    """A line's values, as the columns take them."""
    for column in table.columns:
        value = values.get(column.name)
        if value is not None and isinstance(column.type, UtcDateTime):
            values[column.name] = dt.datetime.fromisoformat(value)
    return values


def _cut_off(table: Table, row: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """A reference to another row of the same table waits until all rows are there: primary key, and what to set."""
    for column in table.columns:
        if row.get(column.name) is not None and any(key.column.table is table for key in column.foreign_keys):
            key = {one.name: row[one.name] for one in table.primary_key}
            yield key, {column.name: row[column.name]}
            row[column.name] = None


def _advance_sequence(connection: Connection, table: Table) -> None:
    """Rows came with their numbers: the next new one must be beyond them."""
    for column in table.primary_key:
        name = connection.execute(select(func.pg_get_serial_sequence(table.name, column.name))).scalar()
        if name is not None and isinstance(column.type, Integer):
            following = select(func.coalesce(func.max(column), 0) + 1).scalar_subquery()
            connection.execute(select(func.setval(name, following, False)))


def _open(bundle: Bundle, name: str) -> IO[bytes]:
    try:
        return bundle.open(name)
    except KeyError:
        what = "the export did not finish: it" if name == MANIFEST else "the export"
        raise BundleError(f"{what} has no {name}") from None


def _read(bundle: Bundle, name: str) -> bytes:
    with _open(bundle, name) as file:
        return file.read()


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(source):
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest()


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk
