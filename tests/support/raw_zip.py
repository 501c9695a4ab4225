"""ZIP archives written field by field, so that a test can make each of them lie.

    zip_bytes([ZipEntry("a.py", b"x = 1"), ZipEntry("b.py", b"", central={"crc": 7})], suffix=b"more")

What is not said is honest: `zipfile` reads such an archive as any other.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

STORED, DEFLATED = 0, 8
UTF8 = 0x800
"""The flag that says that the name is UTF-8."""
LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s4B4H3L5H2L")
END = struct.Struct("<4s4H2LH")


@dataclass
class ZipEntry:
    """A member. Of `local` and `central`, each item replaces one field of that header: flags, method, time, date, crc,
    packed, size, and in the central one also needs, made_by, disk, internal, external, offset."""

    name: str | bytes
    data: bytes = b""
    method: int = DEFLATED
    mode: int = 0o100644
    packed: bytes | None = None
    """What is written in place of the compressed data."""
    local: dict[str, int] = field(default_factory=dict)
    central: dict[str, int] = field(default_factory=dict)
    local_name: bytes | None = None
    central_name: bytes | None = None
    local_extra: bytes = b""
    central_extra: bytes = b""
    comment: bytes = b""
    after: bytes = b""
    """What follows the data, such as a data descriptor."""
    written: bool = True
    listed: bool = True
    """Whether the directory at the end of the archive has it."""

    def raw_name(self) -> bytes:
        return self.name if isinstance(self.name, bytes) else self.name.encode()

    def stream(self) -> bytes:
        if self.packed is not None:
            return self.packed
        return deflate(self.data) if self.method == DEFLATED else self.data

    def fields(self) -> dict[str, int]:
        flags = 0 if self.raw_name().isascii() else UTF8
        honest = {"needs": 20, "flags": flags, "method": self.method, "time": 0, "date": 0x5A21}
        return honest | {"crc": zlib.crc32(self.data), "packed": len(self.stream()), "size": len(self.data)}


def deflate(data: bytes) -> bytes:
    """A raw deflate stream, as ZIP has it."""
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def local_header(entry: ZipEntry) -> bytes:
    f = entry.fields() | entry.local
    name = entry.raw_name() if entry.local_name is None else entry.local_name
    numbers = (f["needs"], f["flags"], f["method"], f["time"], f["date"], f["crc"], f["packed"], f["size"])
    return (
        LOCAL.pack(b"PK\3\4", *numbers, len(name), len(entry.local_extra)) + name + entry.local_extra
    )


def central_entry(entry: ZipEntry, offset: int) -> bytes:
    external = entry.mode << 16 | (0x10 if entry.raw_name().endswith(b"/") else 0)
    more = {"made_by": 3, "disk": 0, "internal": 0, "external": external, "offset": offset}
    f = entry.fields() | more | entry.central
    name = entry.raw_name() if entry.central_name is None else entry.central_name
    first = (20, f["made_by"], f["needs"], 0, f["flags"], f["method"], f["time"], f["date"])
    second = (f["crc"], f["packed"], f["size"], len(name), len(entry.central_extra), len(entry.comment))
    header = CENTRAL.pack(b"PK\1\2", *first, *second, f["disk"], f["internal"], f["external"], f["offset"])
    return header + name + entry.central_extra + entry.comment


def zip_bytes(
    entries: Sequence[ZipEntry],
    *,
    comment: bytes = b"",
    prefix: bytes = b"",
    before_directory: bytes = b"",
    before_end: bytes = b"",
    suffix: bytes = b"",
    end: dict[str, int] | None = None,
) -> bytes:
    """An archive. `end` replaces fields of the end record: disk, start_disk, here, total, size, offset, comment."""
    body = bytearray(prefix)
    directory = bytearray()
    for entry in entries:
        offset = len(body)
        if entry.written:
            body += local_header(entry) + entry.stream() + entry.after
        if entry.listed:
            directory += central_entry(entry, offset)
    body += before_directory
    number = sum(entry.listed for entry in entries)
    f = {"disk": 0, "start_disk": 0, "here": number, "total": number, "size": len(directory)}
    f |= {"offset": len(body), "comment": len(comment)} | (end or {})
    numbers = (f["disk"], f["start_disk"], f["here"], f["total"], f["size"], f["offset"], f["comment"])
    return bytes(body + directory + before_end + END.pack(b"PK\5\6", *numbers) + comment + suffix)
