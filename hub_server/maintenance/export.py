"""Write a whole hub as plain files: `hub export`. It may run beside a server; what it writes is of one moment."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from alembic.migration import MigrationContext
from sqlalchemy import Connection, Table, select

from hub_server.context import Context
from hub_server.journal import HubState
from hub_server.maintenance.bundle import FORMAT, MANIFEST, BundleError, Writer, writing
from hub_server.migrations.models import METADATA
from hub_server.storage import CHUNK

LEFT_OUT = frozenset(("upload_sessions", "session_files"))
"""Tables of work in hand: its bytes are not blobs yet."""


def export(context: Context, target: Path, told: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Write everything, and return the manifest. An interrupted export into a folder is gone on with."""
    with writing(target) as writer:
        with context.database.snapshot() as session:
            connection = session.connection()
            tables = {table.name: write_table(connection, table, writer) for table in exported_tables()}
            blobs = sorted(named_blobs(connection).items())
            manifest = {
                "format": FORMAT,
                "schema": MigrationContext.configure(connection).get_current_revision(),
                "serial": connection.execute(select(HubState.serial)).scalar_one(),
                "exported_at": dt.datetime.now(dt.UTC).isoformat(),
                "tables": tables,
            }
        told(f"{len(blobs)} blobs")
        manifest["blobs"] = write_blobs(context, blobs, writer)
        _add_bytes(writer, MANIFEST, json.dumps(manifest, indent=1).encode())
    return manifest


def exported_tables() -> list[Table]:
    """Every table of the hub, those that others refer to first."""
    return [table for table in METADATA.sorted_tables if table.name not in LEFT_OUT]


def write_table(connection: Connection, table: Table, writer: Writer) -> dict[str, Any]:
    """One row a line, in the order of the primary key. Returns the number of rows and the digest of the file."""
    rows, digest = 0, hashlib.sha256()
    with tempfile.TemporaryFile() as file:
        for row in connection.execute(select(table).order_by(*table.primary_key)).mappings():
            line = json.dumps(dict(row), default=_plain, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
            file.write(line)
            digest.update(line)
            rows += 1
        size = file.tell()
        file.seek(0)
        writer.add(f"tables/{table.name}.jsonl", size, iter(lambda: file.read(CHUNK), b""))
    return {"rows": rows, "sha256": digest.hexdigest()}


def named_blobs(connection: Connection) -> dict[str, int | None]:
    """Every blob that a file names, with its size if a row has it. Those of deleted files may be gone."""
    files = METADATA.tables["files"].c
    rows = connection.execute(select(files.sha256, files.size, files.metadata_sha256).where(files.deleted_at.is_(None)))
    found: dict[str, int | None] = {}
    for digest, size, sidecar in rows:
        found[digest] = size
        if sidecar is not None:
            found.setdefault(sidecar, None)
    return found


def write_blobs(context: Context, blobs: list[tuple[str, int | None]], writer: Writer) -> dict[str, Any]:
    """The blobs, and the list of them. BundleError if one is missing or has other bytes: `hub fsck` says which."""
    lines, total = [], 0
    for digest, known in blobs:
        size = context.storage.size(digest)
        if size is None or (known is not None and size != known):
            raise BundleError(f"the blob {digest} is missing or cut short", hint="hub fsck says what else is wrong.")
        name = blob_name(digest)
        if not writer.has(name, size):
            writer.add(name, size, _checked(context.storage.read(digest), digest))
        lines.append(json.dumps({"sha256": digest, "size": size}))
        total += size
    content = "".join(f"{line}\n" for line in lines).encode()
    _add_bytes(writer, "blobs.jsonl", content)
    return {"count": len(lines), "bytes": total, "sha256": hashlib.sha256(content).hexdigest()}


def blob_name(digest: str) -> str:
    """Where a blob lies in an export."""
    return f"blobs/{digest[:2]}/{digest[2:4]}/{digest}"


def _checked(chunks: Iterator[bytes], digest: str) -> Iterator[bytes]:
    found = hashlib.sha256()
    for chunk in chunks:
        found.update(chunk)
        yield chunk
    if found.hexdigest() != digest:
        raise BundleError(f"the blob {digest} has other bytes", hint="hub fsck says what else is wrong.")


def _add_bytes(writer: Writer, name: str, content: bytes) -> None:
    writer.add(name, len(content), [content])


def _plain(value: Any) -> str:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat()
    raise TypeError(f"{type(value).__name__} has no form in an export")
