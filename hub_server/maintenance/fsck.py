"""Compare everything that a hub keeps: rows, blobs, sidecars, serials. It changes nothing and may run beside a server.

Each finding has a code, what it is about, and a sentence. Blobs that nothing names are no finding: `hub sweep`.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from hub_server.accounts.models import Owner
from hub_server.context import Context
from hub_server.journal import HubState, JournalEvent
from hub_server.packages.models import File, Project, Release
from hub_server.publishing.models import SessionFile, UploadSession


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be."""

    code: str
    what: str
    message: str


@dataclass
class Report:
    """What was looked at, and what was found."""

    findings: list[Finding] = field(default_factory=list)
    projects: int = 0
    files: int = 0
    blobs: int = 0
    bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return asdict(self)


def fsck(context: Context, *, hash_blobs: bool = True) -> Report:
    """Check everything. Without `hash_blobs` only sizes of blobs are compared, and nothing inside them."""
    report = Report()
    with context.database.snapshot() as session:
        for check in (check_journal, check_projects, check_releases, check_sessions):
            report.findings += check(session)
        report.projects = session.scalar(select(func.count()).select_from(Project)) or 0
    for file, place in files_of(context):
        report.files += 1
        found = list(check_file(context, file, place, report, hash_blobs))
        if found and not _is_deleted(context, file):  # its blobs may be swept then
            report.findings += found
    return report


def _is_deleted(context: Context, file: File) -> bool:
    with context.database.read() as session:
        return session.scalar(select(File.deleted_at).where(File.id == file.id)) is not None


# --- rows ---------------------------------------------------------------------------------------------------------


def check_journal(session: Session) -> Iterator[Finding]:
    """Serials run from 1 to the hub's own without a gap."""
    serial = session.scalar(select(HubState.serial))
    if serial is None:
        yield Finding("state-missing", "hub_state", "the row with the hub's serial is missing")
        return
    count, last = session.execute(select(func.count(), func.max(JournalEvent.serial))).one()
    if (count, last or 0) != (serial, serial):
        message = f"the journal has {count} events up to {last or 0}, the hub's serial is {serial}"
        yield Finding("journal-gap", "journal", message)


def check_projects(session: Session) -> Iterator[Finding]:
    """A project's serial is that of a change in the journal, and not before the last one that is about it."""
    serial = session.scalar(select(HubState.serial)) or 0
    last = (
        select(JournalEvent.project_id, func.max(JournalEvent.serial).label("last"))
        .where(JournalEvent.project_id.is_not(None))
        .group_by(JournalEvent.project_id)
        .subquery()
    )
    rows = select(Owner.slug, Project.name, Project.serial, last.c.last).join(Owner, Project.owner_id == Owner.id)
    for slug, name, own, latest in session.execute(rows.outerjoin(last, last.c.project_id == Project.id)):
        if not (latest or 1) <= own <= serial:
            message = f"its serial is {own}; its last change in the journal {latest}, the hub's serial {serial}"
            yield Finding("project-serial", f"{slug}/{name}", message)


def check_releases(session: Session) -> Iterator[Finding]:
    """A release that is not deleted has a file, and release and files are of one project."""
    there = select(File.id).where(File.release_id == Release.id, File.deleted_at.is_(None)).exists()
    query = select(Release).where(Release.deleted_at.is_(None), ~there)
    for release in session.scalars(query):
        yield Finding("release-empty", _id(release), "it has no file")
    query = select(Release).join(File, File.release_id == Release.id).where(File.project_id != Release.project_id)
    for release in session.scalars(query):
        yield Finding("file-project", _id(release), "a file of it belongs to another project")


def check_sessions(session: Session) -> Iterator[Finding]:
    """An upload session is open exactly if it holds its version, and has files."""
    held = UploadSession.open_key.is_not(None)
    for upload in session.scalars(select(UploadSession).where(held != (UploadSession.state == "open"))):
        yield Finding("session-key", upload.id, f"it is {upload.state}, and its version is held by {upload.open_key}")
    known = select(UploadSession).where(UploadSession.id == SessionFile.session_id).exists()
    for file in session.scalars(select(SessionFile).where(~known)):
        yield Finding("session-orphan", file.filename, f"its session {file.session_id} is not there")


# --- blobs --------------------------------------------------------------------------------------------------------


PAGE = 500
"""Rows that are read at a time: hashing goes on for long, and no transaction should be open meanwhile."""


def files_of(context: Context) -> Iterator[tuple[File, str]]:
    """Every file that is not deleted, with its place. What a row names is durable since before the row was there."""
    last = 0
    while True:
        query = (
            select(File, Owner.slug, Project.name)
            .join(Project, File.project_id == Project.id)
            .join(Owner, Project.owner_id == Owner.id)
            .where(File.deleted_at.is_(None), File.id > last)
            .order_by(File.id)
            .limit(PAGE)
        )
        with context.database.read() as session:
            rows = session.execute(query).all()
        for file, slug, name in rows:
            yield file, f"{slug}/{name}/{file.filename}"
        if len(rows) < PAGE:
            return
        last = rows[-1][0].id


def check_file(context: Context, file: File, place: str, report: Report, hash_blobs: bool) -> Iterator[Finding]:
    """The blob is there with the size and the digests of the row; METADATA beside a wheel is that in the wheel."""
    size = context.storage.size(file.sha256)
    missing = Finding("blob-missing", place, f"the blob {file.sha256} is not there")
    if size is None:
        yield missing
        return
    report.blobs += 1
    report.bytes += size
    if size != file.size:
        yield Finding("blob-size", place, f"the blob {file.sha256} has {size} bytes, its row says {file.size}")
    yield from check_sidecar(context, file, place)
    if hash_blobs:
        try:
            with _as_file(context, file.sha256) as path:
                whole = list(check_digests(file, place, path))
                yield from whole
                if not whole and file.metadata_sha256 is not None:
                    yield from check_metadata(file, place, path)
        except (FileNotFoundError, KeyError):  # swept since
            yield missing


def check_digests(file: File, place: str, path: Path) -> Iterator[Finding]:
    """Both digests of the bytes."""
    for name, expected in (("sha256", file.sha256), ("blake2b_256", file.blake2b_256)):
        algorithm: Callable[[], Any] = hashlib.sha256 if name == "sha256" else _blake2b_256
        with path.open("rb") as content:
            found = hashlib.file_digest(content, algorithm).hexdigest()
        if found != expected:
            yield Finding("blob-digest", place, f"its {name} is {found}, its row says {expected}")


def check_sidecar(context: Context, file: File, place: str) -> Iterator[Finding]:
    """A wheel has METADATA as a blob of its own, whose bytes have that digest."""
    if file.metadata_sha256 is None:
        if file.kind == "wheel":
            yield Finding("sidecar-missing", place, "the wheel has no METADATA beside it")
        return
    try:
        content = b"".join(context.storage.read(file.metadata_sha256))
    except KeyError:
        yield Finding("sidecar-missing", place, f"the blob {file.metadata_sha256} of its METADATA is not there")
        return
    if hashlib.sha256(content).hexdigest() != file.metadata_sha256:
        yield Finding("sidecar-digest", place, f"the blob {file.metadata_sha256} of its METADATA has other bytes")


def check_metadata(file: File, place: str, path: Path) -> Iterator[Finding]:
    """METADATA in the wheel is what stands beside it."""
    with zipfile.ZipFile(path) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
        found = hashlib.sha256(wheel.read(names[0])).hexdigest() if len(names) == 1 else None
    if found != file.metadata_sha256:
        yield Finding("sidecar-differs", place, f"METADATA in the wheel is {found}, beside it {file.metadata_sha256}")


@contextlib.contextmanager
def _as_file(context: Context, digest: str) -> Iterator[Path]:
    """A blob as a file of this machine."""
    if (path := context.storage.local_path(digest)) is not None:
        yield path
        return
    with tempfile.NamedTemporaryFile(dir=context.storage.incoming, prefix="fsck-") as file:
        for chunk in context.storage.read(digest):
            file.write(chunk)
        file.flush()
        yield Path(file.name)


def _blake2b_256() -> Any:
    return hashlib.blake2b(digest_size=32)


def _id(release: Release) -> str:
    return f"{release.project.owner.slug}/{release.project.name}@{release.given_version}"
