"""A reading of a source archive (`.tar.gz`) that takes only what every other reader takes for the same.

    with open("my_env-0.1.0.tar.gz", "rb") as file:
        listing = walk_tar(file, "my_env-0.1.0", Limits())
        listing.read("PKG-INFO")                       names given to `read` are below the top folder

It reads one gzip member as a stream, block by block, independently of `tarfile`; memory is bounded. A header is POSIX
ustar or GNU, and no field of it is read in two ways: numbers are plain octal, texts end at their first NUL. Regular
files and folders only. A long name is given once, by a pax header (`path`) or by a GNU long name, which common tools
write: setuptools, flit and hatchling the one, Rust tools the other; both at once, two of a kind, or a `size` that is
not the header's own are refused, since readers differ in which of them they believe (CVE-2025-62518). A global header
may hold a comment only. Refusals have codes `tar-…`, `path-…`, `archive-…`.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from verifiers.hub.package.paths import Limits, Paths, decode_path
from verifiers.hub.package.refusal import refuse

BLOCK = 512
CHUNK = 256 << 10
"""Bytes that are read or decoded at a time."""
KEPT = 4 << 20
"""Bytes of a file up to which it is kept for `TarListing.read`."""
_ZEROS = bytes(BLOCK)
_FILES, _FOLDER = (b"0", b"\0"), b"5"
_PAX, _PAX_FOR_ALL, _GNU_NAME = b"x", b"g", b"L"
_USTAR, _GNU, _V7 = b"ustar\x0000", b"ustar  \0", bytes(8)
_EXTENSION = 64 << 10
"""Bytes that a pax header or a GNU long name may have."""
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*\Z")
_NUMBERS = {"uid": slice(108, 116), "gid": slice(116, 124), "mtime": slice(136, 148)}
_NUMBERS |= {"major": slice(329, 337), "minor": slice(337, 345)}
_PAX_KEY = re.compile(
    rb"(?:path|size|[acm]time|[ug]id|[ug]name|comment|LIBARCHIVE\.(?:creationtime|xattr\..+)"
    rb"|SCHILY\.(?:dev|ino|nlink|fflags|(?:acl|xattr)\..+)|RHT\.security\..+)\Z"
)
"""What a pax header may say of a member: no other kind, link, holes or character set."""
_RECORD = re.compile(rb"([1-9][0-9]{0,5}) ([^=\n]+)=")


@dataclass(frozen=True, slots=True)
class TarMember:
    """A file or folder. Size in bytes; `name` starts with the top folder and has no slash at its end."""

    name: str
    size: int
    is_dir: bool
    mode: int


@dataclass(frozen=True, slots=True)
class TarListing:
    """The members of an archive that has passed the walk, and the bytes of those that were kept."""

    top: str
    members: list[TarMember]
    kept: dict[str, bytes]

    def read(self, name: str) -> bytes:
        """The bytes of a file that was kept, by its name below the top folder.

        Refuses `member-size` where it is too large to be kept; KeyError where it is absent or nobody asked to keep it.
        """
        if name not in self.kept and any(one.name == f"{self.top}/{name}" and one.size > KEPT for one in self.members):
            refuse("member-size", f"{name!r} is larger than {KEPT} bytes", name)
        return self.kept[name]


def is_about(name: str) -> bool:
    """Whether a file, by its name below the top folder, is one of those that describe the package."""
    return name in ("PKG-INFO", "pyproject.toml")


def walk_tar(file: BinaryIO, top: str, limits: Limits, keep: Callable[[str], bool] = is_about) -> TarListing:
    """Read a source archive to its end. `top` is the one folder it must hold; `keep` says which files to keep."""
    members = []
    kept = {}
    for member, parts in read_members(file, top, limits):
        members.append(member)
        below = member.name[len(top) + 1 :]
        if not member.is_dir and member.size <= KEPT and keep(below):
            kept[below] = b"".join(parts)
    return TarListing(top, members, kept)


def read_members(file: BinaryIO, top: str, limits: Limits) -> Iterator[tuple[TarMember, Iterator[bytes]]]:
    """Each member with its data in pieces, which are passed over where nobody takes them.

    What comes later may still be refused: only once the iterator has ended is the archive known to be good.
    """
    stream = _Gunzip(file, limits)
    paths = Paths(limits)
    extension = None
    empty = True
    while (block := stream.block()) != _ZEROS:
        header = _read_header(block)
        if header.kind in (_PAX, _PAX_FOR_ALL, _GNU_NAME):
            extension = _read_extension(header, stream, extension)
            continue
        path, is_dir = _path_of(header, extension)
        _check_member(header, path, is_dir, top)
        paths.add(path, is_dir)
        parts = stream.data(header.size, path)
        yield TarMember(path, header.size, is_dir, header.mode & 0o777), parts
        for _ in parts:
            pass
        extension, empty = None, False
    if extension is not None:
        refuse("tar-extension", "an extended header has no member after it")
    if empty:
        refuse("tar-top", f"the archive is empty, and should hold the folder {top!r}")
    stream.end()


# --- blocks -------------------------------------------------------------------------------------------------


class _Gunzip:
    """The decoded bytes of the one gzip member of a file, in blocks."""

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        self._file = file
        self._limits = limits
        self._packed = file.seek(0, os.SEEK_END)
        self._file.seek(0)
        self._engine = zlib.decompressobj(31)
        self._buffer = bytearray()
        self._unpacked = 0

    def _more(self) -> bool:
        """Decode some more; False at the end of the gzip member, which zlib has then checked."""
        if self._engine.eof:
            return False
        given = self._engine.unconsumed_tail or self._file.read(CHUNK)
        try:
            part = self._engine.decompress(given, CHUNK)
        except zlib.error as error:
            refuse("tar-gzip", f"the file is not compressed by gzip, or damaged: {error}")
        if not part and not given:
            refuse("tar-gzip", "the file ends within the compressed data")
        self._unpacked += len(part)
        if self._limits.is_bomb(self._unpacked, self._packed):
            refuse("archive-bomb", f"the archive unpacks to more than {self._limits.bomb_bytes} bytes")
        self._buffer += part
        return True

    def take(self, size: int) -> bytes:
        """Exactly so many bytes."""
        while len(self._buffer) < size:
            if not self._more():
                refuse("tar-truncated", "the archive ends within a member, or without two blocks of zeros")
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def block(self) -> bytes:
        return self.take(BLOCK)

    def data(self, size: int, path: str) -> Iterator[bytes]:
        """The data of a member, and the zeros that fill its last block."""
        left = size
        while left:
            part = self.take(min(left, CHUNK))
            left -= len(part)
            yield part
        if any(self.take(-size % BLOCK)):
            refuse("tar-trailing", "something stands between the data and the next header", path)

    def end(self) -> None:
        """What follows the first block of zeros: at least one more, nothing else, and no byte after gzip's end."""
        if self.block() != _ZEROS:
            refuse("tar-trailing", "something follows a block of zeros, which is the end for some readers")
        length = 2 * BLOCK
        while self._buffer or self._more():
            if any(self._buffer):
                refuse("tar-trailing", "something follows the end of the archive")
            length += len(self._buffer)
            self._buffer.clear()
        if length % BLOCK:
            refuse("tar-truncated", "the archive is not made of whole blocks")
        if self._engine.unused_data or self._file.read(1):
            refuse("tar-trailing", "something follows the compressed archive")


# --- headers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Header:
    name: bytes
    kind: bytes
    size: int
    mode: int


def _read_header(block: bytes) -> _Header:
    """The fields of a header block that matter, once all of them are well formed."""
    raw = _text(block[0:100], "name")
    shown = _shown(raw)
    checksum = _octal(block[148:156], "checksum", shown)
    if checksum != sum(block) - sum(block[148:156]) + 8 * 0x20:
        refuse("tar-header", "the checksum of the header is wrong", shown)
    magic = block[257:265]
    prefix = _text(block[345:500], "prefix") if magic == _USTAR else b""
    if magic not in (_USTAR, _GNU, _V7) or any(block[500 if magic == _USTAR else 345 :]):
        refuse("tar-header", "the header is of no format that all readers know", shown)
    for name, place in _NUMBERS.items():
        if block[place.start] not in b"\x80\xff" and block[place].strip(b" \0"):
            _octal(block[place], name, shown)
    size = _octal(block[124:136], "size", shown)
    mode = _octal(block[100:108], "mode", shown)
    return _Header(prefix + b"/" + raw if prefix else raw, block[156:157], size, mode)


def _text(field: bytes, what: str) -> bytes:
    text, _, rest = field.partition(b"\0")
    if rest.strip(b"\0"):
        refuse("tar-header", f"something follows the end of the field {what}", _shown(text))
    return text


def _octal(field: bytes, what: str, member: str) -> int:
    found = _OCTAL.match(field)
    if found is None:
        refuse("tar-header", f"the field {what} is no octal number", member)
    return int(found[1], 8)


def _shown(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


# --- extended headers ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Extension:
    """What a pax header or a GNU long name says of the next member; None where it says nothing."""

    path: str | None = None
    size: int | None = None


def _read_extension(header: _Header, stream: _Gunzip, before: _Extension | None) -> _Extension | None:
    """What stands for the next member after this header."""
    shown = _shown(header.name)
    if header.size > _EXTENSION:
        refuse("tar-extension", f"the extended header is larger than {_EXTENSION} bytes", shown)
    raw = b"".join(stream.data(header.size, shown))
    if before is not None:
        refuse("tar-extension", "a member has two extended headers", shown)
    if header.kind == _PAX_FOR_ALL:
        if _pax_records(raw, shown).keys() - {b"comment"}:
            refuse("tar-extension", "a header for all members says more than a comment", shown)
        return None
    if header.kind == _GNU_NAME:
        return _Extension(decode_path(raw.removesuffix(b"\0")))
    records = _pax_records(raw, shown)
    path, size = records.get(b"path"), records.get(b"size")
    if size is not None and not size.isdigit():
        refuse("tar-size", "the size in the pax header is no number", shown)
    return _Extension(None if path is None else decode_path(path), None if size is None else int(size))


def _pax_records(raw: bytes, member: str) -> dict[bytes, bytes]:
    """The records of a pax header: each is its own length in decimal, a blank, key=value and a new line."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(raw):
        start = _RECORD.match(raw, at)
        end = at + int(start[1]) if start else 0
        if start is None or end <= start.end() or end > len(raw) or raw[end - 1 : end] != b"\n":
            refuse("tar-extension", "the pax header is malformed", member)
        key, value = start[2], raw[start.end() : end - 1]
        if key in found or _PAX_KEY.match(key) is None:
            refuse("tar-extension", f"the pax header has {_shown(key)!r}, or has it twice", member)
        found[key] = value
        at = end
    return found


# --- members ------------------------------------------------------------------------------------------------


def _path_of(header: _Header, extension: _Extension | None) -> tuple[str, bool]:
    """Name without the slash at its end, and whether the member is a folder."""
    is_dir = header.kind == _FOLDER
    path = decode_path(header.name) if extension is None or extension.path is None else extension.path
    if extension is not None:
        short = header.name.rstrip(b"/")
        if not path.encode().startswith(short) and not path.encode("ascii", "replace").startswith(short):
            refuse("tar-extension", f"{_shown(short)!r} in the header is not how its long name begins", path)
        if extension.size not in (None, header.size):
            refuse("tar-size", f"{extension.size} bytes by the pax header, {header.size} by its own", path)
    return (path.removesuffix("/") if is_dir else path), is_dir


def _check_member(header: _Header, path: str, is_dir: bool, top: str) -> None:
    if not is_dir and header.kind not in _FILES:
        refuse("tar-kind", f"the member is {_KINDS.get(header.kind, 'neither a file nor a folder')}", path)
    if is_dir and header.size:
        refuse("tar-size", "a folder has a size", path)
    if not path.startswith(f"{top}/") and not (is_dir and path == top):
        refuse("tar-top", f"the member is not in the folder {top!r}", path)


_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"K": "a link",
    b"S": "a file with holes",
}
