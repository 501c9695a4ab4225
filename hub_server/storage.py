"""Blobs under their SHA-256: put once, read for ever.

A blob that `put` has returned from is durable: it survives a power cut. Blobs that no row names are harmless; the
sweeper removes old ones. A `put` of bytes that are there already makes an old blob young again, so that the sweeper
leaves it to the release that is about to name it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from verifiers.errors import Error, ExitCode

CHUNK = 1 << 20

YOUNG = 3600.0
"""Seconds for which a blob counts as just written. The sweeper's grace is at least twice this."""


class StorageError(Error):
    """The blob store can not be used."""

    exit_code = ExitCode.UNAVAILABLE
    hint = "Check that the storage is there and may be written."


class StoredBlob(NamedTuple):
    """What a listing says of a blob. `modified` is in seconds since 1970."""

    digest: str
    size: int
    modified: float


class Storage(Protocol):
    """Where blobs are. Usable from several threads and processes at once."""

    incoming: Path
    """A local folder for files on their way in; with a folder of blobs it is on the same volume."""

    def put(self, path: Path, digest: str) -> None:
        """Take a finished file of `incoming` in as a blob. The file is gone afterwards; a blob that is there stays."""

    def put_bytes(self, content: bytes, digest: str) -> None:
        """The same with bytes at hand."""

    def read(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to before `end`, in chunks. KeyError if there is no such blob."""

    def local_path(self, digest: str) -> Path | None:
        """The blob as a file of this machine, if it is one."""

    def size(self, digest: str) -> int | None:
        """The blob's size in bytes; None if there is no such blob."""

    def remove_old(self, digest: str, before: float) -> bool:
        """Remove a blob that was last put before that moment (seconds since 1970). Whether it was removed.

        Safe beside writers: a `put` of the same bytes either comes first, and the blob stays, or stores them anew.
        """

    def check(self, *, write: bool = False) -> None:
        """StorageError if it can not be read now, or with `write` not written."""

    def blobs(self) -> Iterator[StoredBlob]:
        """Every blob."""


class FolderStorage:
    """Blobs in a folder: `ab/cd/<sha256>`."""

    def __init__(self, root: Path) -> None:
        self.root = root / "blobs"
        self.incoming = root / "incoming"
        self._lock = root / "sweep.lock"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self.incoming.mkdir(parents=True, exist_ok=True)
            self._lock.touch()
        except OSError as error:
            raise StorageError(
                f"can not write to {root}: {error.strerror}", hint="Name a folder that this user may write: --data DIR."
            ) from error

    def put(self, path: Path, digest: str) -> None:
        """Flush, link under the digest, flush the folder: in that order a crash leaves no half blob."""
        if not self._keep(digest):
            target = self._path(digest)
            os.utime(path)  # an upload that was resumed may have been written hours ago
            _sync(path)
            self._make(target.parent)
            with contextlib.suppress(FileExistsError):  # another writer of the same bytes was first
                os.link(path, target)
            _sync(target.parent)
        path.unlink(missing_ok=True)

    def put_bytes(self, content: bytes, digest: str) -> None:
        """Through a temporary file."""
        if self._keep(digest):
            return
        temporary = self.incoming / f"bytes-{secrets.token_hex(8)}"
        try:
            temporary.write_bytes(content)
            self.put(temporary, digest)
        finally:
            temporary.unlink(missing_ok=True)

    def read(self, digest: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """In chunks of 1 MiB."""
        try:
            file = self._path(digest).open("rb")
        except FileNotFoundError:
            raise KeyError(digest) from None
        with file:
            file.seek(start)
            left = None if end is None else end - start
            while left is None or left > 0:
                chunk = file.read(CHUNK if left is None else min(CHUNK, left))
                if not chunk:
                    return
                left = None if left is None else left - len(chunk)
                yield chunk

    def local_path(self, digest: str) -> Path | None:
        """The file."""
        path = self._path(digest)
        return path if path.exists() else None

    def size(self, digest: str) -> int | None:
        """From the file system."""
        try:
            return self._path(digest).stat().st_size
        except FileNotFoundError:
            return None

    def remove_old(self, digest: str, before: float) -> bool:
        """Unlink, while no writer relies on the blob."""
        path = self._path(digest)
        with self._sweep_lock(fcntl.LOCK_EX), contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime < before:
                path.unlink()
                return True
        return False

    def check(self, *, write: bool = False) -> None:
        """Look at the folder; write and remove a file."""
        probe = self.incoming / f"check-{secrets.token_hex(8)}"
        try:
            self.root.stat()
            if write:
                probe.touch()
                probe.unlink()
        except OSError as error:
            what = "written" if write else "read"
            raise StorageError(f"the folder {self.root.parent} can not be {what}: {error.strerror}") from error

    def blobs(self) -> Iterator[StoredBlob]:
        """By walking the folder."""
        for path in self.root.glob("??/??/*"):
            with contextlib.suppress(FileNotFoundError):  # swept meanwhile
                facts = path.stat()
                yield StoredBlob(path.name, facts.st_size, facts.st_mtime)

    def _keep(self, digest: str) -> bool:
        """Whether the blob is there to stay: an old one is made young, under the lock that the sweeper takes too."""
        path = self._path(digest)
        try:
            if path.stat().st_mtime > time.time() - YOUNG:
                return True
            with self._sweep_lock(fcntl.LOCK_SH):
                os.utime(path)
        except FileNotFoundError:
            return False
        return True

    @contextlib.contextmanager
    def _sweep_lock(self, kind: int) -> Iterator[None]:
        with self._lock.open("r") as file:
            fcntl.flock(file, kind)  # closing the file, or dying, lets it go
            yield

    def _path(self, digest: str) -> Path:
        return self.root / digest[:2] / digest[2:4] / digest

    def _make(self, folder: Path) -> None:
        """Make `ab/cd`, and let both survive a power cut."""
        for path in (folder.parent, folder):
            if not path.exists():
                path.mkdir(exist_ok=True)
                _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
