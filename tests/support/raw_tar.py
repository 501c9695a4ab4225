"""Tar archives written block by block, so that a test can make each header lie.

    gzip_bytes(tar_bytes([TarMember("demo-1.0/a.py", b"x = 1"), TarMember("demo-1.0/b", kind=b"2", link="/etc")]))

What is not said is honest: `tarfile` reads such an archive as any other.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

BLOCK = 512
FILE, HARD_LINK, SYMBOLIC_LINK, DEVICE, FOLDER, FIFO = b"0", b"1", b"2", b"3", b"5", b"6"
PAX, PAX_FOR_ALL, GNU_LONG_NAME, GNU_LONG_LINK, GNU_SPARSE = b"x", b"g", b"L", b"K", b"S"
USTAR = b"ustar\x0000"
GNU = b"ustar  \x00"


@dataclass
class TarMember:
    """A member. `header` replaces raw fields by name: name, mode, uid, gid, size, mtime, checksum, kind, link, magic,
    prefix. `pax` is written as an extended header before it."""

    name: str | bytes
    data: bytes = b""
    kind: bytes = FILE
    link: str = ""
    mode: int = 0o644
    pax: Mapping[str, str] = field(default_factory=dict)
    header: dict[str, bytes] = field(default_factory=dict)

    def raw_name(self) -> bytes:
        return self.name if isinstance(self.name, bytes) else self.name.encode()


WIDTHS = {"name": 100, "mode": 8, "uid": 8, "gid": 8, "size": 12, "mtime": 12, "checksum": 8, "kind": 1, "link": 100}
WIDTHS |= {"magic": 8, "user": 32, "group": 32, "major": 8, "minor": 8, "prefix": 155, "rest": 12}


def octal(value: int, width: int) -> bytes:
    return b"%0*o\0" % (width - 1, value)


def header_block(member: TarMember) -> bytes:
    """The 512 bytes of a header. A name of more than 100 bytes is split at a slash, as POSIX has it."""
    name, prefix = member.raw_name(), b""
    if len(name) > 100:
        cut = name.rindex(b"/", 0, 155)
        prefix, name = name[:cut], name[cut + 1 :]
    fields = {"name": name, "mode": octal(member.mode, 8), "uid": octal(0, 8), "gid": octal(0, 8)}
    fields |= {"size": octal(len(member.data), 12), "mtime": octal(0, 12), "checksum": b" " * 8, "kind": member.kind}
    fields |= {"link": member.link.encode(), "magic": USTAR, "prefix": prefix} | member.header
    raw = b"".join(fields.get(key, b"").ljust(width, b"\0") for key, width in WIDTHS.items())
    if "checksum" not in member.header:
        raw = raw[:148] + b"%06o\0 " % sum(raw) + raw[156:]
    return raw


def padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % BLOCK)


def pax_records(values: Mapping[str, str]) -> bytes:
    """Extended header records: each is its own length in decimal, a blank, key=value and a new line."""
    out = b""
    for key, value in values.items():
        rest = f" {key}={value}\n".encode()
        length = len(rest) + 1
        while length != len(rest) + len(str(length)):
            length = len(rest) + len(str(length))
        out += str(length).encode() + rest
    return out


def tar_bytes(members: Sequence[TarMember], *, end: bytes = b"\0" * 2 * BLOCK) -> bytes:
    """An archive, not compressed. `end` is what stands after the last member."""
    out = bytearray()
    for member in members:
        if member.pax:
            records = pax_records(member.pax)
            out += header_block(TarMember("PaxHeader", records, kind=PAX)) + padded(records)
        out += header_block(member) + padded(member.data)
    return bytes(out) + end


def gzip_bytes(data: bytes, level: int = 6) -> bytes:
    """One gzip member that is the same for the same bytes."""
    return gzip.compress(data, level, mtime=0)
