"""Blobs under their SHA-256: put once, read for ever.

A blob that `put` has returned from is durable: it survives a power cut. Blobs that no row names are harmless; the
sweeper removes old ones.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

CHUNK = 1 << 20


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

    def delete(self, digest: str) -> None:
        """Remove a blob; one that is not there is no error."""

    def blobs(self) -> Iterator[StoredBlob]:
        """Every blob."""


class FolderStorage:
    """Blobs in a folder: `ab/cd/<sha256>`."""

    def __init__(self, root: Path) -> None:
        self.root = root / "blobs"
        self.incoming = root / "incoming"
        self.root.mkdir(parents=True, exist_ok=True)
        self.incoming.mkdir(parents=True, exist_ok=True)

    def put(self, path: Path, digest: str) -> None:
        """Flush, link under the digest, flush the folder: in that order a crash leaves no half blob."""
        target = self._path(digest)
        if not target.exists():
            _sync(path)
            self._make(target.parent)
            with contextlib.suppress(FileExistsError):  # another writer of the same bytes was first
                os.link(path, target)
            _sync(target.parent)
        path.unlink(missing_ok=True)

    def put_bytes(self, content: bytes, digest: str) -> None:
        """Through a temporary file."""
        if self._path(digest).exists():
            return
        temporary = self.incoming / f"bytes-{secrets.token_hex(8)}"
        temporary.write_bytes(content)
        self.put(temporary, digest)

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

    def delete(self, digest: str) -> None:
        """Unlink."""
        self._path(digest).unlink(missing_ok=True)

    def blobs(self) -> Iterator[StoredBlob]:
        """By walking the folder."""
        for path in self.root.glob("??/??/*"):
            with contextlib.suppress(FileNotFoundError):  # swept meanwhile
                facts = path.stat()
                yield StoredBlob(path.name, facts.st_size, facts.st_mtime)

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
