"""Remove what nothing names any more: old blobs, left-over uploads, sessions whose time is over.

It may run beside servers. The listing of old blobs comes first, then the rows that name blobs; whoever publishes the
bytes of one meanwhile has put them before its row was there, and a put makes a blob young (`Storage.remove_old`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from hub_server.context import Context
from hub_server.fault_points import reach
from hub_server.packages.models import File
from hub_server.publishing.models import SessionFile, UploadSession
from hub_server.publishing.sessions import abort_expired, forget_ended
from hub_server.security.rates import forget_full
from hub_server.storage import StoredBlob
from verifiers.errors import ConfigError

SHORTEST_HOURS = 25
"""An upload session lives for 24 hours: its files are left alone for longer."""


@dataclass
class Swept:
    """What was removed, or would be."""

    blobs: int = 0
    bytes: int = 0
    uploads: int = 0
    sessions: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return asdict(self)


def sweep(context: Context, grace_hours: float = 48, *, dry_run: bool = False) -> Swept:
    """Remove what is older than the grace. ConfigError if that is shorter than an upload may take."""
    if grace_hours < SHORTEST_HOURS:
        raise ConfigError(
            f"the grace of {grace_hours:g} hours is too short", hint=f"At least {SHORTEST_HOURS}: uploads may resume."
        )
    swept = Swept()
    before = time.time() - grace_hours * 3600
    if not dry_run:
        swept.sessions = abort_expired(context)
        forget_ended(context, before)
        with context.database.write() as session:
            forget_full(session)  # what a rate limit keeps of those who have waited long enough says nothing
    sweep_blobs(context, before, swept, dry_run)
    sweep_uploads(context, before, swept, dry_run)
    return swept


def sweep_blobs(context: Context, before: float, swept: Swept, dry_run: bool) -> None:
    """Blobs that were last put before that moment, and that no row names."""
    old = [blob for blob in context.storage.blobs() if blob.modified < before]
    for blob in unnamed(context, old):
        if dry_run or context.storage.remove_old(blob.digest, before):
            swept.blobs += 1
            swept.bytes += blob.size
        reach("during-sweep")


def unnamed(context: Context, blobs: list[StoredBlob]) -> Iterator[StoredBlob]:
    """Those that neither a file nor an open session names. The rows are asked just before."""
    for some in _batches(blobs, 500):
        with context.database.read() as session:
            named = _named(session, [blob.digest for blob in some])
        yield from (blob for blob in some if blob.digest not in named)


def _named(session: Session, digests: list[str]) -> set[str]:
    files = select(File.sha256, File.metadata_sha256).where(
        File.deleted_at.is_(None), or_(File.sha256.in_(digests), File.metadata_sha256.in_(digests))
    )
    uploads = (
        select(SessionFile.sha256)
        .join(UploadSession, SessionFile.session_id == UploadSession.id)
        .where(UploadSession.state == "open", SessionFile.sha256.in_(digests))
    )
    return {digest for row in session.execute(files) for digest in row if digest} | set(session.scalars(uploads))


def sweep_uploads(context: Context, before: float, swept: Swept, dry_run: bool) -> None:
    """Files on their way in that nothing has been written to since."""
    for path in sorted(context.storage.incoming.iterdir()):
        with contextlib.suppress(FileNotFoundError):  # published meanwhile
            if path.is_file() and path.stat().st_mtime < before:
                swept.uploads += 1
                if not dry_run:
                    path.unlink()


def _batches(blobs: list[StoredBlob], size: int) -> Iterator[list[StoredBlob]]:
    for start in range(0, len(blobs), size):
        yield blobs[start : start + size]
