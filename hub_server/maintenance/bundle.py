"""A hub as plain files: a folder, or the same in a .tar.

    manifest.json             format, schema, serial, and of each table the number of rows and the sha256 of its file
    tables/NAME.jsonl         one row a line
    blobs.jsonl               digest and size of every blob
    blobs/ab/cd/<sha256>      the bytes

The manifest is written last: where it is missing, the export did not finish.
"""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol

from verifiers.errors import ConfigError, Error

MANIFEST = "manifest.json"
FORMAT = 1


class BundleError(Error):
    """An exported hub can not be written or read."""

    hint = "Export again into an empty folder."


class Writer(Protocol):
    """Where an export goes."""

    def has(self, name: str, size: int) -> bool:
        """Whether a blob is there from an export that was interrupted."""

    def add(self, name: str, size: int, chunks: Iterable[bytes]) -> None:
        """Write a file."""


class FolderWriter:
    """A folder. A file gets its name once it is whole."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if (root / MANIFEST).exists():
            raise ConfigError(f"{root} holds an export already", hint="Name a new folder.")
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)  # it holds the names of private projects and the hashes of tokens

    def has(self, name: str, size: int) -> bool:
        """By its size; `import` compares the digest."""
        path = self.root / name
        return path.is_file() and path.stat().st_size == size

    def add(self, name: str, size: int, chunks: Iterable[bytes]) -> None:
        """Beside its place first."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


class TarWriter:
    """A .tar, uncompressed: wheels are compressed already."""

    def __init__(self, file: IO[bytes]) -> None:
        self.tar = tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - `writing` closes

    def has(self, _name: str, _size: int) -> bool:
        """No: a .tar is begun anew."""
        return False

    def add(self, name: str, size: int, chunks: Iterable[bytes]) -> None:
        """Append a member."""
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        self.tar.addfile(member, _Joined(chunks))


@contextlib.contextmanager
def writing(target: Path) -> Iterator[Writer]:
    """A writer for a folder, or for a path that ends in .tar, which appears once it is whole."""
    try:
        if target.suffix != ".tar":
            yield FolderWriter(target)
            return
        if target.exists():
            raise ConfigError(f"{target} is there already", hint="Name another file.")
        partial = target.with_name(target.name + ".partial")
        with open(os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
            writer = TarWriter(file)
            yield writer
            writer.tar.close()
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except OSError as error:
        raise BundleError(
            f"can not write to {target}: {error.strerror or error}", hint="Check its permissions and the free space."
        ) from error


class Bundle(Protocol):
    """An export that is read."""

    def open(self, name: str) -> IO[bytes]:
        """A file of it. KeyError if it is not there."""


class FolderBundle:
    """A folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, name: str) -> IO[bytes]:
        """From the file system."""
        try:
            return (self.root / name).open("rb")
        except FileNotFoundError:
            raise KeyError(name) from None


class TarBundle:
    """A .tar; its list of members is read once."""

    def __init__(self, path: Path) -> None:
        self.tar = tarfile.open(path, mode="r:")  # noqa: SIM115 - `reading` closes
        self.members = {member.name: member for member in self.tar if member.isfile()}

    def open(self, name: str) -> IO[bytes]:
        """A member as a file; nothing is unpacked."""
        file = self.tar.extractfile(self.members[name])
        assert file is not None
        return file


@contextlib.contextmanager
def reading(source: Path) -> Iterator[Bundle]:
    """The export in a folder or a .tar. BundleError if there is none."""
    try:
        if source.is_dir():
            yield FolderBundle(source)
        else:
            bundle = TarBundle(source)
            with bundle.tar:
                yield bundle
    except (OSError, tarfile.TarError) as error:
        hint = "Name the folder or .tar that hub export wrote."
        raise BundleError(f"can not read {source}: {error}", hint=hint) from error


class _Joined(io.RawIOBase):
    """Chunks as a file, for tarfile."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._left = b""

    def read(self, size: int = -1) -> bytes:
        """As many bytes as asked for, until the end."""
        parts, wanted = [self._left], size if size >= 0 else 1 << 62
        have = len(self._left)
        while have < wanted and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            have += len(chunk)
        whole = b"".join(parts)
        self._left = whole[wanted:]
        return whole[:wanted]
