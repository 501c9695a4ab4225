"""A reading of a ZIP that takes only archives which every other reader takes for the same.

    with open("my_env-0.1.0-py3-none-any.whl", "rb") as file:
        listing = walk_zip(file, Limits())
        listing.digests()["my_env.py"].sha256_hex
        listing.read("my_env-0.1.0.dist-info/METADATA", cap=1 << 20)

Installers read the local headers, which stand before each member's data, or the directory at the end, and what one of
them ignores another installs. So the walk reads both, independently of `zipfile`: headers one after another from the
first byte, the directory right after them, the end record as the file's last 22 bytes, and all of them must agree
(PKWARE's APPNOTE 6.3, sections 4.3 to 4.5). What is not needed for a wheel is refused: encryption, data descriptors,
comments, links, other compressions. Every refusal is a RefusedError whose code is a rule `zip-…`, `path-…` or
`archive-…`. Nothing is kept of the data, so memory grows with the number of members only.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from verifiers.hub.package.paths import Limits, Paths, decode_path
from verifiers.hub.package.refusal import refuse
from verifiers.hub.package.zip_extra import widened

LOCAL, CENTRAL, END, END64, LOCATOR64 = b"PK\3\4", b"PK\1\2", b"PK\5\6", b"PK\6\6", b"PK\6\7"
_LOCAL = struct.Struct("<4x5H3L2H")
_CENTRAL = struct.Struct("<4x6H3L5H2L")
_END = struct.Struct("<4x4H2LH")
_END64 = struct.Struct("<4xQ2H2L4Q")
_LOCATOR64 = struct.Struct("<4xLQL")
_STORED, _DEFLATED = 0, 8
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 0x1 | 0x40 | 0x2000, 0x8, 0x800
_HARMLESS = 0x2 | 0x4 | _UTF8
"""Flags that change nothing for a reader: how hard the deflater tried, and that a name is UTF-8."""
_NEWEST = 63
"""The newest version of the format that `zipfile` reads; deflate needs 20, ZIP64 45."""
_DOS_FOLDER = 0x10
_16, _32 = 0xFFFF, 0xFFFFFFFF
CHUNK = 256 << 10
"""Bytes that are read or decoded at a time."""


@dataclass(frozen=True, slots=True)
class Member:
    """A file or folder. Sizes in bytes; `name` has no slash at its end; `mode` is the permissions, 0 where unsaid."""

    name: str
    size: int
    compressed_size: int
    crc: int
    is_dir: bool
    mode: int
    method: int
    data_at: int


@dataclass(frozen=True, slots=True)
class Digest:
    """SHA-256 of a member's bytes, in hexadecimal and as RECORD writes it; size in bytes."""

    sha256_hex: str
    sha256_b64: str
    size: int


@dataclass(frozen=True, slots=True)
class _Header:
    """What a local header and an entry of the directory both say, sizes after ZIP64."""

    name: bytes
    flags: int
    method: int
    crc: int
    packed: int
    size: int


class ZipListing:
    """The members of an archive that has passed the walk. It reads from the file that it was made of."""

    def __init__(self, file: BinaryIO, members: list[Member]) -> None:
        self.members = members
        self._file = file
        self._by_name = {member.name: member for member in members}

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def read(self, name: str, cap: int) -> bytes:
        """The bytes of a file, checked. Refuses `member-size` where they are more than `cap`; KeyError if absent."""
        member = self._by_name[name]
        if member.size > cap:
            refuse("member-size", f"{name!r} is larger than {cap} bytes", name)
        return b"".join(self.parts(member))

    def digests(self) -> dict[str, Digest]:
        """The digest of every file, by name: one pass, in which sizes and checksums are checked."""
        found = {}
        for member in self.members:
            total = hashlib.sha256()
            for part in self.parts(member):
                total.update(part)
            if not member.is_dir:
                raw = total.digest()
                text = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
                found[member.name] = Digest(raw.hex(), text, member.size)
        return found

    def parts(self, member: Member) -> Iterator[bytes]:
        """The bytes of a member in pieces; size and checksum have been checked once the last one was taken."""
        done, crc = 0, 0
        for part in self._stored(member) if member.method == _STORED else self._inflated(member):
            done += len(part)
            if done > member.size:
                break
            crc = zlib.crc32(part, crc)
            yield part
        if done != member.size:
            refuse("zip-data", f"the data decode to other than the {member.size} bytes they should be", member.name)
        if crc != member.crc:
            refuse("zip-crc", f"the checksum is {crc:08x}, and should be {member.crc:08x}", member.name)

    def _stored(self, member: Member) -> Iterator[bytes]:
        self._file.seek(member.data_at)
        left = member.compressed_size
        while left:
            part = self._file.read(min(left, CHUNK))
            if not part:
                refuse("zip-truncated", "the file ends within the data", member.name)
            left -= len(part)
            yield part

    def _inflated(self, member: Member) -> Iterator[bytes]:
        packed = self._stored(member)
        engine = zlib.decompressobj(-15)
        while not engine.eof:
            given = engine.unconsumed_tail or next(packed, b"")
            try:
                part = engine.decompress(given, CHUNK)
            except zlib.error as error:
                refuse("zip-data", f"the data are not deflated: {error}", member.name)
            if not part and not given:
                refuse("zip-data", "the data end too early", member.name)
            yield part
        if engine.unused_data or next(packed, b""):
            refuse("zip-data", "something follows the deflated data", member.name)


def walk_zip(file: BinaryIO, limits: Limits) -> ZipListing:
    """Read the structure of a ZIP, refusing what readers may disagree on. The data are read by the listing."""
    return ZipListing(file, _Walk(file, limits).members())


class _Walk:
    """One reading from the first byte to the last. `_at` is where the next header must stand."""

    def __init__(self, file: BinaryIO, limits: Limits) -> None:
        self._file = file
        self._limits = limits
        self._size = file.seek(0, os.SEEK_END)
        self._at = file.seek(0)

    def members(self) -> list[Member]:
        local = self._local_headers()
        start = self._at
        members = [self._entry(*one) for one in local]
        if self._peek(CENTRAL):
            refuse("zip-directory", "the directory lists a member that is not there, or one twice")
        self._end(len(members), start, self._at - start)
        return members

    def _take(self, size: int) -> bytes:
        raw = self._file.read(size)
        self._at += size
        if len(raw) != size:
            refuse("zip-truncated", "the file ends within a header")
        return raw

    def _peek(self, signature: bytes) -> bool:
        """Whether this signature stands here; the next reading begins with it."""
        self._file.seek(self._at)
        found = self._file.read(4) == signature
        self._file.seek(self._at)
        return found

    # --- local headers --------------------------------------------------------------------------------------

    def _local_headers(self) -> list[tuple[_Header, str, int, int]]:
        """Of each member: header, name, where its header and where its data start."""
        found = []
        paths = Paths(self._limits)
        unpacked = 0
        while self._peek(LOCAL):
            start = self._at
            header = self._local_header()
            path = decode_path(header.name.removesuffix(b"/"))
            if not header.name.isascii() and not header.flags & _UTF8:
                refuse("path-encoding", "the name is not ASCII, and no flag says that it is UTF-8", path)
            paths.add(path, header.name.endswith(b"/"))
            unpacked += header.size
            if self._limits.is_bomb(unpacked, self._size):
                refuse("archive-bomb", f"the archive unpacks to more than {self._limits.bomb_bytes} bytes", path)
            found.append((header, path, start, self._at))
            self._at += header.packed
            if self._at > self._size:
                refuse("zip-truncated", "the file ends within the data", path)
        if not found:
            refuse("zip-gap", "the file does not begin with a member of a ZIP")
        return found

    def _local_header(self) -> _Header:
        _, flags, method, _, _, crc, packed, size, name_size, extra_size = _LOCAL.unpack(self._take(_LOCAL.size))
        name = self._take(name_size)
        _check_reading(name, flags, method)
        size, packed = widened(self._take(extra_size), name, (size, packed), all_at_once=True)
        if method == _STORED and packed != size:
            refuse("zip-data", f"stored, but {size} bytes in {packed}", _shown(name))
        return _Header(name, flags, method, crc, packed, size)

    # --- the directory --------------------------------------------------------------------------------------

    def _entry(self, local: _Header, path: str, start: int, data_at: int) -> Member:
        """The entry that must come next in the directory: that of this member."""
        if not self._peek(CENTRAL):
            code = "zip-directory" if self._peek(END) or self._peek(END64) else "zip-gap"
            refuse(code, "the member has no entry at its place in the directory", path)
        _, needs, *shared = _CENTRAL.unpack(self._take(_CENTRAL.size))
        flags, method, _, _, crc, packed, size, name_size, extra_size, comment_size, *where = shared
        disk, _, attributes, offset = where
        name = self._take(name_size)
        extra = self._take(extra_size)
        if comment_size:
            refuse("zip-comment", "the member has a comment", path)
        size, packed, offset = widened(extra, name, (size, packed, offset), all_at_once=False)
        _compare(local, _Header(name, flags, method, crc, packed, size), path)
        if offset != start or disk:
            refuse("zip-mismatch", f"the directory has its header at {offset}, and it is at {start}", path)
        if needs & 0xFF > _NEWEST:
            refuse("zip-method", f"the member needs version {needs & 0xFF} of the format", path)
        is_dir = name.endswith(b"/")
        _check_kind(path, is_dir, attributes, size)
        return Member(path, size, packed, crc, is_dir, stat.S_IMODE(attributes >> 16), method, data_at)

    # --- the end --------------------------------------------------------------------------------------------

    def _end(self, number: int, start: int, size: int) -> None:
        """The end record, and the ZIP64 one before it where it is needed."""
        after = self._at
        if self._peek(END64):
            self._end64(number, start, size)
        elif after >= _LOCATOR64.size and self._holds(after - _LOCATOR64.size, LOCATOR64):
            refuse("zip-zip64", "the directory ends with what reads as a ZIP64 locator")
        if not self._peek(END):
            refuse("zip-gap", "something else than the end record follows the directory")
        disk, first, here, total, said_size, said_start, comment = _END.unpack(self._take(_END.size))
        wide = self._at - _END.size != after
        exact = {"members here": (here, number, _16), "members": (total, number, _16)}
        exact |= {"size": (said_size, size, _32), "offset": (said_start, start, _32)}
        if wide != any(said == sentinel for said, _, sentinel in exact.values()):
            refuse("zip-zip64", "the end record refers to a ZIP64 end record and there is none, or the reverse")
        for what, (said, right, sentinel) in exact.items():
            if said not in (right, sentinel):
                refuse("zip-end", f"the end record gives {said} as {what} of the directory, and it is {right}")
        if disk or first:
            refuse("zip-end", "the end record speaks of other disks")
        if comment:
            refuse("zip-comment", "the archive has a comment")
        if self._at != self._size:
            refuse("zip-trailing", f"{self._size - self._at} bytes follow the end record")

    def _end64(self, number: int, start: int, size: int) -> None:
        at = self._at
        rest, _, _, disk, first, here, total, said_size, said_start = _END64.unpack(self._take(_END64.size))
        if rest != _END64.size - 12:
            refuse("zip-zip64", "the ZIP64 end record has extensible data")
        if (disk, first, here, total, said_size, said_start) != (0, 0, number, number, size, start):
            refuse("zip-end", "the ZIP64 end record is not exact in counts, size and offset")
        if not self._peek(LOCATOR64) or _LOCATOR64.unpack(self._take(_LOCATOR64.size)) != (0, at, 1):
            refuse("zip-zip64", "the ZIP64 end record has no locator, or one that points elsewhere")

    def _holds(self, at: int, signature: bytes) -> bool:
        self._file.seek(at)
        return self._file.read(len(signature)) == signature


# --- rules of one member ------------------------------------------------------------------------------------


def _shown(name: bytes) -> str:
    return name.decode("utf-8", "backslashreplace")


def _check_reading(name: bytes, flags: int, method: int) -> None:
    """What a reader would need a key, a later record or another decoder for."""
    if flags & _ENCRYPTED:
        refuse("zip-encrypted", "the member is encrypted", _shown(name))
    if flags & _DESCRIPTOR:
        refuse("zip-descriptor", "the member has a data descriptor", _shown(name))
    if flags & ~_HARMLESS:
        refuse("zip-flags", f"the member has the flags {flags:#06x}", _shown(name))
    if method not in (_STORED, _DEFLATED):
        refuse("zip-method", f"the member is compressed by method {method}", _shown(name))


def _compare(local: _Header, central: _Header, path: str) -> None:
    if local == central:
        return
    for what in ("name", "flags", "method", "crc", "packed", "size"):
        here, there = getattr(local, what), getattr(central, what)
        if here != there:
            shown = (_shown(here), _shown(there)) if what == "name" else (here, there)
            refuse("zip-mismatch", f"{what} is {shown[0]!r} in the header and {shown[1]!r} in the directory", path)


def _check_kind(path: str, is_dir: bool, attributes: int, size: int) -> None:
    """The Unix mode and the DOS attributes say what the name says: a folder ends with a slash, all else is a file."""
    kind = stat.S_IFMT(attributes >> 16)
    if stat.S_ISLNK(kind):
        refuse("zip-kind", "the member is a symbolic link", path)
    if kind not in (0, stat.S_IFDIR if is_dir else stat.S_IFREG):
        refuse("zip-kind", "the member is by its mode something else than by its name", path)
    if attributes & _DOS_FOLDER and not is_dir:
        refuse("zip-kind", "the member is a folder by its attributes and a file by its name", path)
    if is_dir and size:
        refuse("zip-kind", "the member is a folder with content", path)
