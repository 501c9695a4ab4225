"""Files and directories on their way between the host and an agent: rows of entries, as `guest/agent/wire.py` has them.

    async for piece in pieces_of(path): …         # of the host, for the agent
    await from_pieces(pieces, target)             # of an agent, for the host; or step by step:
    writer = TreeWriter(target); writer.feed(piece); writer.finish(); writer.close()

What comes out of a sandbox is hostile: an entry may lie nowhere but in directories that came before it, links may lead
nowhere but into the tree, there are neither devices nor set-id bits, and number and size have an end. Nothing stands
at the target before all of it was right.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import struct
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from verifiers.errors import SandboxPathError

ROW = 1 << 16
"""Bytes of a file that are read at once."""
PIECE = 1 << 18
"""Bytes that are sent at once."""
MAX_ENTRIES = 200_000
MAX_BYTES = 8 << 30
MAX_PATH = 4096

_HEAD = struct.Struct("<cIIQ")


class TreeError(ValueError):
    """What came is not allowed in a tree."""


# --- to a sandbox ---------------------------------------------------------------------------------------------------


def read_tree(source: Path) -> Iterator[bytes]:
    """The pieces of a file or directory. Links that lead out and special files raise `SandboxPathError`."""
    if not source.exists():
        raise FileNotFoundError(f"there is no {source} to upload")
    if source.is_dir():
        yield _entry(b"d", source.stat().st_mode, "", 0)
        for folder, folders, files in os.walk(source):
            links = [name for name in folders if Path(folder, name).is_symlink()]
            folders[:] = sorted(set(folders) - set(links))
            for name in folders:
                path = Path(folder, name)
                yield _entry(b"d", path.stat().st_mode, str(path.relative_to(source)), 0)
            for name in sorted(files + links):
                path = Path(folder, name)
                yield from _read(path, str(path.relative_to(source)))
    else:
        yield from _read(source.resolve(), "")
    yield _entry(b"e", 0, "", 0)


def _read(path: Path, name: str) -> Iterator[bytes]:
    if path.is_symlink():
        target = os.fsencode(os.readlink(path))
        if not _leads_in(os.fsencode(name), target):
            raise SandboxPathError(f"{path} leads out of what is uploaded", hint="Upload what it leads to, too.")
        yield _entry(b"l", 0o777, name, len(target)) + target
        return
    if not path.is_file():
        raise SandboxPathError(f"{path} is no regular file", hint="Leave it out of what is uploaded.")
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        left = found.st_size
        yield _entry(b"f", found.st_mode, name, left)
        while left:
            data = file.read(min(ROW, left))
            if not data:
                raise SandboxPathError(f"{path} shrank while it was uploaded")
            left -= len(data)
            yield data


def _entry(kind: bytes, mode: int, name: str, size: int) -> bytes:
    path = os.fsencode(name)
    return _HEAD.pack(kind, mode & 0o777, len(path), size) + path


async def pieces_of(source: Path) -> AsyncIterator[bytes]:
    """What `source` is, read in a thread. FileNotFoundError, SandboxPathError as `read_tree`."""
    rows = read_tree(source)
    while piece := await asyncio.to_thread(_joined, rows):
        yield piece


def _joined(rows: Iterator[bytes]) -> bytes:
    """Some of the rows, of `PIECE` bytes or a little more; empty at their end."""
    parts, size = [], 0
    for row in rows:
        parts.append(row)
        size += len(row)
        if size >= PIECE:
            break
    return b"".join(parts)


# --- out of a sandbox -----------------------------------------------------------------------------------------------


class TreeWriter:
    """Makes `target` out of what is fed. TreeError, also from `finish`: nothing is made of it."""

    def __init__(self, target: Path, *, max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES) -> None:
        if target.exists() or target.is_symlink():
            raise FileExistsError(f"{target} exists already")
        self._target = target
        self._partial = target.with_name(f".{secrets.token_hex(6)}.part")
        self._entries, self._bytes = max_entries, max_bytes
        self._buffer = bytearray()
        self._folders: dict[bytes, int] = {}
        self._file = -1
        self._left = 0
        self._link: bytes | None = None
        self._ended = False
        self._error: TreeError | None = None

    def feed(self, data: bytes) -> None:
        """Take in some more. What is wrong is told by `finish`, and nothing more is written then."""
        if self._error is not None:
            return
        try:
            self._feed(data)
        except TreeError as error:
            self._error = error
        except OSError as error:
            self._error = TreeError(f"it cannot be written here: {error}")

    @property
    def failed(self) -> bool:
        """Whether nothing will be made of it, whatever else comes."""
        return self._error is not None

    def finish(self) -> None:
        """Put it in its place."""
        if self._error is None and not self._ended:
            self._error = TreeError("its end is missing")
        if self._error is not None:
            raise self._error
        for path, mode in reversed(self._folders.items()):  # at last, since they may forbid writing
            os.chmod(self._place(path), mode | 0o700)
        os.rename(self._partial, self._target)

    def close(self) -> None:
        """Leave nothing but what `finish` has put in its place."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._partial.is_dir() and not self._partial.is_symlink():
            shutil.rmtree(self._partial, ignore_errors=True)
        else:
            self._partial.unlink(missing_ok=True)

    def _feed(self, data: bytes) -> None:
        if self._left and not self._buffer and self._link is None:  # the usual case: more of a large file
            used = min(self._left, len(data))
            self._write(data[:used])
            data = data[used:]
        self._buffer += data
        while self._step():
            pass

    def _step(self) -> bool:
        """Use some of the buffer; False if more is needed first."""
        buffer = self._buffer
        if self._link is not None:
            if len(buffer) < self._left:
                return False
            self._make_link(self._link, bytes(buffer[: self._left]))
            del buffer[: self._left]
            self._link, self._left = None, 0
        elif self._left:
            used = min(self._left, len(buffer))
            self._write(bytes(buffer[:used]))
            del buffer[:used]
            return used > 0
        else:
            if len(buffer) < _HEAD.size:
                return False
            kind, mode, length, size = _HEAD.unpack_from(buffer)
            if length > MAX_PATH:
                raise TreeError("a path that is too long")
            if len(buffer) < _HEAD.size + length:
                return False
            path = bytes(buffer[_HEAD.size : _HEAD.size + length])
            del buffer[: _HEAD.size + length]
            self._begin(kind, mode & 0o777, path, size)
        return True

    def _begin(self, kind: bytes, mode: int, path: bytes, size: int) -> None:
        if self._ended:
            raise TreeError("entries after its end")
        if kind == b"e":
            self._ended = True
            return
        self._entries -= 1
        self._bytes -= size
        if self._entries < 0 or self._bytes < 0:
            raise TreeError("it is too large")
        self._check(path)
        if kind == b"d":
            if size:
                raise TreeError("a directory with a size")
            os.mkdir(self._place(path), 0o700)
            self._folders[path] = mode
        elif kind == b"f":
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(self._place(path), flags, mode | 0o600)
            self._left = size
            self._write(b"")
        elif kind == b"l" and path and 0 < size <= MAX_PATH:
            self._link, self._left = path, size
        else:
            raise TreeError("an entry of an unknown kind")

    def _check(self, path: bytes) -> None:
        """Nothing but a new name in a directory that this writer has made."""
        if path == b"":
            return  # the root: whatever stands there already makes it fail
        folder, _, name = path.rpartition(b"/")
        if name in (b"", b".", b"..") or b"\0" in path or folder not in self._folders:
            raise TreeError(f"an entry that leads astray: {os.fsdecode(path)!r}")

    def _place(self, path: bytes) -> bytes:
        return os.fsencode(self._partial) + (b"/" + path if path else b"")

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]
        self._left -= len(data)
        if not self._left:
            os.close(self._file)
            self._file = -1

    def _make_link(self, path: bytes, target: bytes) -> None:
        if not _leads_in(path, target):
            raise TreeError(f"a link that leads out: {os.fsdecode(path)!r}")
        os.symlink(target, self._place(path))


async def from_pieces(pieces: AsyncIterator[bytes], target: Path) -> None:
    """Make `target` out of pieces, in threads, whole or not at all. SandboxPathError for what may not be in a tree."""
    writer = await asyncio.to_thread(TreeWriter, target)
    try:
        async for piece in pieces:
            await asyncio.to_thread(writer.feed, piece)
        await asyncio.to_thread(writer.finish)
    except TreeError as error:
        raise SandboxPathError(f"what was sent is no tree: {error}") from None
    finally:
        await asyncio.to_thread(writer.close)


def _leads_in(path: bytes, target: bytes) -> bool:
    """Whether a link at `path` of a tree stays in it, whatever other links that are allowed are on its way.

    It may go up from where it is first, over real directories, and then down; up again after a name is refused, since
    that name may be a link.
    """
    if target.startswith(b"/") or b"\0" in target:
        return False
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    ups = next((at for at, part in enumerate(parts) if part != b".."), len(parts))
    return b".." not in parts[ups:] and ups <= path.count(b"/")
