"""The walk over a ZIP: what it takes, and one crafted archive or more for each rule that refuses."""

import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.archives import make_wheel
from tests.support.raw_zip import CENTRAL, DEFLATED, END, STORED, ZipEntry, central_entry, deflate, zip_bytes
from verifiers.hub.package.archive_rules import ARCHIVE_RULES
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.refusal import RefusedError
from verifiers.hub.package.zip_walk import ZipListing, walk_zip

A = ZipEntry("a.py", b"x = 1\n")
B = ZipEntry("pkg/b.py", b"y = 2\n" * 50)
FOLDER = ZipEntry("pkg/", mode=0o40755, method=STORED)
SENTINEL = 0xFFFFFFFF


def extra(kind: int, content: bytes) -> bytes:
    return struct.pack("<2H", kind, len(content)) + content


def zip64(*numbers: int) -> bytes:
    return extra(1, struct.pack(f"<{len(numbers)}Q", *numbers))


def unicode_path(name: bytes, path: bytes) -> bytes:
    return extra(0x7075, struct.pack("<BL", 1, zlib.crc32(name)) + path)


def wide(entry: ZipEntry, **changes: bytes) -> ZipEntry:
    """A member whose sizes stand in ZIP64 fields, in both headers."""
    sizes = {"size": SENTINEL, "packed": SENTINEL}
    field = zip64(len(entry.data), len(entry.stream()))
    return replace(entry, local=sizes, central=sizes, **{"local_extra": field, "central_extra": field, **changes})


def with_end64(entries: list[ZipEntry], sentinel: bool = True, **changes: int) -> bytes:
    """An archive whose counts stand in a ZIP64 end record."""
    plain = zip_bytes(entries)
    *_, size, offset, _ = END.unpack(plain[-22:])
    f = {"rest": 44, "number": len(entries), "size": size, "offset": offset, "locator": offset + size} | changes
    counts = (0, 0, f["number"], f["number"], f["size"], f["offset"])
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", f["rest"], 45, 45, *counts)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, f["locator"], 1)
    end = {"here": 0xFFFF, "total": 0xFFFF, "size": SENTINEL, "offset": SENTINEL} if sentinel else {}
    return zip_bytes(entries, before_end=record + locator, end=end)


def with_fake_locator() -> bytes:
    """The last extra field of the directory reads as a ZIP64 locator, which `zipfile` would follow."""
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)
    return zip_bytes([replace(A, central_extra=extra(0x6666, locator))])


def truncated(size: int) -> bytes:
    return zip_bytes([A, B])[:-size]


ZEROS = ZipEntry("zeros.bin", bytes(80 << 20))

REFUSED: dict[str, tuple[str, Callable[[], bytes]]] = {
    # names
    "not UTF-8": ("path-encoding", lambda: zip_bytes([replace(A, name=b"\xff.py", local={"flags": 0x800})])),
    "UTF-8 unsaid": ("path-encoding", lambda: zip_bytes([ZipEntry("ä.py", local={"flags": 0}, central={"flags": 0})])),
    "control character": ("path-control", lambda: zip_bytes([ZipEntry("a\n.py")])),
    "NUL": ("path-control", lambda: zip_bytes([ZipEntry("a.py\0.txt")])),
    "reversed": ("path-control", lambda: zip_bytes([ZipEntry("a\u202eyp.txt")])),
    "backslash": ("path-backslash", lambda: zip_bytes([ZipEntry("pkg\\a.py")])),
    "absolute": ("path-absolute", lambda: zip_bytes([ZipEntry("/etc/a.py")])),
    "drive": ("path-drive", lambda: zip_bytes([ZipEntry("C:/a.py")])),
    "inner drive": ("path-drive", lambda: zip_bytes([ZipEntry("pkg/c:a.py")])),
    "device of Windows": ("path-windows", lambda: zip_bytes([ZipEntry("pkg/AUX.py")])),
    "device of Windows as a folder": ("path-windows", lambda: zip_bytes([ZipEntry("nul /a.py")])),
    "another stream": ("path-windows", lambda: zip_bytes([ZipEntry("pkg/a.py:evil")])),
    "question mark": ("path-windows", lambda: zip_bytes([ZipEntry("pkg/what?.txt")])),
    "parent": ("path-parts", lambda: zip_bytes([ZipEntry("../evil.py")])),
    "inner parent": ("path-parts", lambda: zip_bytes([ZipEntry("pkg/../../evil.py")])),
    "this folder": ("path-parts", lambda: zip_bytes([ZipEntry("./a.py")])),
    "empty part": ("path-parts", lambda: zip_bytes([ZipEntry("pkg//a.py")])),
    "empty name": ("path-parts", lambda: zip_bytes([ZipEntry("")])),
    "root": ("path-parts", lambda: zip_bytes([ZipEntry("/", mode=0o40755)])),
    "long part": ("path-length", lambda: zip_bytes([ZipEntry("a" * 256)])),
    "long name": ("path-length", lambda: zip_bytes([ZipEntry("a/" * 512 + "a")])),
    "twice": ("path-duplicate", lambda: zip_bytes([A, B, replace(A, data=b"x = 2\n")])),
    "twice, same bytes": ("path-duplicate", lambda: zip_bytes([A, A])),
    "case": ("path-twin", lambda: zip_bytes([A, ZipEntry("A.PY")])),
    "accents": ("path-twin", lambda: zip_bytes([ZipEntry("\u00e9.py"), ZipEntry("e\u0301.py")])),
    "dot at the end": ("path-twin", lambda: zip_bytes([A, ZipEntry("a.py.")])),
    "file in a file": ("path-conflict", lambda: zip_bytes([ZipEntry("pkg"), B])),
    "file over a folder": ("path-conflict", lambda: zip_bytes([B, ZipEntry("Pkg")])),
    "file and folder": ("path-conflict", lambda: zip_bytes([FOLDER, ZipEntry("pkg")])),
    # amounts
    "too many": ("archive-members", lambda: zip_bytes([ZipEntry(f"{n}", method=STORED) for n in range(20_001)])),
    "too many folders": (
        "archive-members",
        lambda: zip_bytes([ZipEntry(f"{n}{'/a' * 500}", method=STORED) for n in range(41)]),
    ),
    "80 MiB of zeros": ("archive-bomb", lambda: zip_bytes([ZEROS])),
    "a lie about 80 MiB": ("zip-data", lambda: zip_bytes([replace(ZEROS, local={"size": 9}, central={"size": 9})])),
    # structure
    "empty file": ("zip-gap", lambda: b""),
    "no ZIP": ("zip-gap", lambda: b"hello, world" * 100),
    "empty archive": ("zip-gap", lambda: zip_bytes([])),
    "prefix": ("zip-gap", lambda: zip_bytes([A], prefix=b"#!/bin/sh\n")),
    "gap between members": ("zip-gap", lambda: zip_bytes([replace(A, after=b"gap"), B])),
    "gap before the directory": ("zip-gap", lambda: zip_bytes([A], before_directory=b"gap")),
    "gap after the directory": ("zip-gap", lambda: zip_bytes([A], before_end=b"gap")),
    "ends in data": ("zip-truncated", lambda: zip_bytes([A, B])[:40]),
    "ends in a header": ("zip-truncated", lambda: zip_bytes([A, B])[:20]),
    "ends in the end record": ("zip-truncated", lambda: truncated(3)),
    "no end record": ("zip-gap", lambda: truncated(22)),
    "ends in the directory": ("zip-truncated", lambda: truncated(30)),
    "unlisted member": ("zip-directory", lambda: zip_bytes([A, replace(B, listed=False)])),
    "member only listed": ("zip-directory", lambda: zip_bytes([A, replace(B, written=False)])),
    "listed twice": ("zip-directory", lambda: zip_bytes([A], before_end=central_entry(A, 0))),
    "another name": ("zip-mismatch", lambda: zip_bytes([replace(A, central_name=b"b.py")])),
    "another case": ("zip-mismatch", lambda: zip_bytes([replace(A, central_name=b"A.py")])),
    "another size": ("zip-mismatch", lambda: zip_bytes([replace(A, central={"size": 5})])),
    "another packed size": ("zip-mismatch", lambda: zip_bytes([replace(A, central={"packed": 5})])),
    "another checksum": ("zip-mismatch", lambda: zip_bytes([replace(A, central={"crc": 5})])),
    "another method": ("zip-mismatch", lambda: zip_bytes([replace(A, central={"method": STORED})])),
    "other flags": ("zip-mismatch", lambda: zip_bytes([replace(A, central={"flags": 0x800})])),
    "another offset": ("zip-mismatch", lambda: zip_bytes([A, replace(B, central={"offset": 0})])),
    "another disk": ("zip-mismatch", lambda: zip_bytes([replace(A, central={"disk": 1})])),
    "count": ("zip-end", lambda: zip_bytes([A, B], end={"total": 1})),
    "count here": ("zip-end", lambda: zip_bytes([A, B], end={"here": 1})),
    "size of the directory": ("zip-end", lambda: zip_bytes([A], end={"size": 1})),
    "offset of the directory": ("zip-end", lambda: zip_bytes([A], end={"offset": 1})),
    "other disks": ("zip-end", lambda: zip_bytes([A], end={"start_disk": 1})),
    "8 bytes after": ("zip-trailing", lambda: zip_bytes([A], suffix=b"12345678")),
    "two wheels joined": ("zip-trailing", lambda: make_wheel() + make_wheel("other-env")),
    "a wheel in the comment": ("zip-comment", lambda: make_wheel(zip_options={"comment": make_wheel("other-env")})),
    "comment without a length": ("zip-trailing", lambda: zip_bytes([A], comment=b"hello", end={"comment": 0})),
    "comment of a member": ("zip-comment", lambda: zip_bytes([replace(A, comment=b"hello")])),
    # members
    "encrypted": ("zip-encrypted", lambda: zip_bytes([replace(A, local={"flags": 1}, central={"flags": 1})])),
    "descriptor": ("zip-descriptor", lambda: zip_bytes([replace(A, local={"flags": 8}, central={"flags": 8})])),
    "patch data": ("zip-flags", lambda: zip_bytes([replace(A, local={"flags": 32}, central={"flags": 32})])),
    "LZMA": ("zip-method", lambda: zip_bytes([ZipEntry("a.py", method=14)])),
    "needs a newer reader": ("zip-method", lambda: zip_bytes([replace(A, central={"needs": 64})])),
    "symbolic link": ("zip-kind", lambda: zip_bytes([replace(A, mode=0o120777)])),
    "device": ("zip-kind", lambda: zip_bytes([replace(A, mode=0o060644)])),
    "folder by mode": ("zip-kind", lambda: zip_bytes([replace(A, mode=0o040755)])),
    "folder by attribute": ("zip-kind", lambda: zip_bytes([replace(A, central={"external": 0x10})])),
    "file by mode": ("zip-kind", lambda: zip_bytes([replace(FOLDER, mode=0o100644)])),
    "folder with content": ("zip-kind", lambda: zip_bytes([replace(FOLDER, data=b"x")])),
    "half an extra field": ("zip-extra", lambda: zip_bytes([replace(A, local_extra=b"\1")])),
    "short extra field": ("zip-extra", lambda: zip_bytes([replace(A, central_extra=extra(9, b"12")[:-1])])),
    "extra field twice": ("zip-extra", lambda: zip_bytes([replace(A, local_extra=extra(9, b"") * 2)])),
    **{
        f"a mode in the extra field {kind:#x}": (
            "zip-extra", lambda kind=kind: zip_bytes([replace(A, local_extra=extra(kind, b"\xff\xa1"))])
        )
        for kind in (0x000D, 0x6C78, 0x756E)
    },
    "another name in an extra field": (
        "zip-extra",
        lambda: zip_bytes([replace(A, central_extra=unicode_path(b"a.py", b"b.py"))]),
    ),
    "real sizes and a ZIP64 field": ("zip-zip64", lambda: zip_bytes([replace(A, local_extra=zip64(6))])),
    "real sizes and another in a ZIP64 field": ("zip-zip64", lambda: zip_bytes([replace(A, local_extra=zip64(7, 8))])),
    "real sizes and a ZIP64 field, listed": ("zip-zip64", lambda: zip_bytes([replace(A, central_extra=zip64(6))])),
    "sentinels without a field": ("zip-zip64", lambda: zip_bytes([wide(A, local_extra=b"")])),
    "half a field": ("zip-zip64", lambda: zip_bytes([wide(A, local_extra=zip64(6))])),
    "too much of a field": ("zip-zip64", lambda: zip_bytes([wide(A, central_extra=zip64(6, 8, 0))])),
    "another size in the field": ("zip-mismatch", lambda: zip_bytes([wide(A, central_extra=zip64(7, 8))])),
    "end record that is not referred to": ("zip-zip64", lambda: with_end64([A], sentinel=False)),
    "end record with more": ("zip-zip64", lambda: with_end64([A], rest=50)),
    "locator to elsewhere": ("zip-zip64", lambda: with_end64([A], locator=0)),
    "count in the ZIP64 end record": ("zip-end", lambda: with_end64([A], number=2)),
    "offset in the ZIP64 end record": ("zip-end", lambda: with_end64([A], offset=3)),
    "sentinel without a ZIP64 end record": ("zip-zip64", lambda: zip_bytes([A], end={"offset": SENTINEL})),
    "what reads as a locator": ("zip-zip64", with_fake_locator),
    # data
    "checksum 0": ("zip-crc", lambda: zip_bytes([replace(A, local={"crc": 0}, central={"crc": 0})])),
    "wrong checksum": ("zip-crc", lambda: zip_bytes([replace(A, data=b"x = 2\n", packed=deflate(b"x = 1\n"))])),
    "stored, two sizes": ("zip-data", lambda: zip_bytes([ZipEntry("a", b"abc", method=STORED, packed=b"ab")])),
    "too few bytes": ("zip-data", lambda: zip_bytes([replace(A, local={"size": 7}, central={"size": 7})])),
    "too many bytes": ("zip-data", lambda: zip_bytes([replace(A, local={"size": 5}, central={"size": 5})])),
    "no deflate": ("zip-data", lambda: zip_bytes([replace(A, packed=b"\xff\xff\xff")])),
    "half a stream": ("zip-data", lambda: zip_bytes([replace(B, packed=deflate(B.data)[:-2])])),
    "more than a stream": ("zip-data", lambda: zip_bytes([replace(A, packed=deflate(A.data) + b"more")])),
}


def walked(archive: bytes, limits: Limits | None = None) -> ZipListing:
    return walk_zip(io.BytesIO(archive), limits or Limits())


@pytest.mark.parametrize("case", REFUSED)
def test_a_rule_refuses(case: str) -> None:
    """Each crafted archive is refused by the rule it breaks, with a hint."""
    code, archive = REFUSED[case]
    with pytest.raises(RefusedError) as refused:
        walked(archive()).digests()
    assert refused.value.code == code, str(refused.value)
    assert refused.value.hint and "\n" not in str(refused.value)


def test_every_rule_has_a_case() -> None:
    """No rule for ZIPs and names stands without an archive that breaks it."""
    codes = {row[0] for row in ARCHIVE_RULES if row[0].startswith(("zip-", "path-", "archive-"))}
    assert codes == {code for code, _ in REFUSED.values()}


def test_the_member_is_named() -> None:
    """A refusal says which member it is about, in the message as well."""
    with pytest.raises(RefusedError) as refused:
        walked(zip_bytes([A, replace(B, mode=0o120777)]))
    assert refused.value.member == "pkg/b.py"
    assert "pkg/b.py" in str(refused.value)


def test_a_wheel_passes() -> None:
    """A plain wheel is read: names, sizes, digests and bytes."""
    listing = walked(make_wheel("demo-env", "0.1.0", files={"demo_env_data/a.json": b"{}"}))
    assert [member.name for member in listing.members][:2] == ["demo_env.py", "demo_env_data/a.json"]
    digest = listing.digests()["demo_env_data/a.json"]
    assert digest.sha256_hex == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert digest.sha256_b64 == "RBNvo1WzZ4oRRq0W9-hknpT7T8If536DEMBg9hyq_4o" and digest.size == 2
    assert listing.read("demo_env_data/a.json", cap=2) == b"{}"
    assert "demo_env.py" in listing and "absent.py" not in listing


@pytest.mark.parametrize(
    "archive",
    {
        "folders": zip_bytes([FOLDER, B]),
        "stored": zip_bytes([replace(A, method=STORED)]),
        "empty deflated folder": zip_bytes([replace(FOLDER, method=DEFLATED)]),
        "executable": zip_bytes([replace(A, mode=0o100755)]),
        "mode unsaid": zip_bytes([replace(A, mode=0)]),
        "UTF-8": zip_bytes([ZipEntry("ünïcode/ä.py", b"x")]),
        "UTF-8 said of ASCII": zip_bytes([replace(A, local={"flags": 0x802}, central={"flags": 0x802})]),
        "other extra fields": zip_bytes([replace(A, local_extra=extra(0x5455, b"\1abcd"), central_extra=b"\t\0\0\0")]),
        "ZIP64 sizes": zip_bytes([wide(A)]),
        "ZIP64 that repeats the sizes": zip_bytes([replace(A, local_extra=zip64(len(A.data), len(A.stream())))]),
        "ZIP64 in the local header only": zip_bytes([replace(wide(A), central={}, central_extra=b"")]),
        "ZIP64 end record": with_end64([A, B]),
        "the same name in an extra field": zip_bytes([replace(A, central_extra=unicode_path(b"a.py", b"a.py"))]),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_tools_write_passes(archive: tuple[str, bytes]) -> None:
    """What is unusual and read alike by all readers is taken."""
    listing = walked(archive[1])
    assert len(listing.digests()) == sum(not member.is_dir for member in listing.members)


def test_limits_are_settings() -> None:
    """80 MiB of zeros pass under a larger limit, and a small archive is refused under a smaller one."""
    zeros = zip_bytes([ZEROS])
    assert walked(zeros, Limits(bomb_bytes=80 << 20)).digests()["zeros.bin"].size == 80 << 20
    with pytest.raises(RefusedError, match="more than 1 members"):
        walked(zip_bytes([A, B]), Limits(members=1))


def test_reading_is_capped() -> None:
    """A file that is read whole may not be larger than the caller says."""
    with pytest.raises(RefusedError) as refused:
        walked(zip_bytes([B])).read("pkg/b.py", cap=10)
    assert refused.value.code == "member-size"


def test_long_names_are_cut_in_messages() -> None:
    """A name of 60,000 bytes does not fill a terminal."""
    with pytest.raises(RefusedError) as refused:
        walked(zip_bytes([ZipEntry("a" * 60_000, method=14)]))
    assert len(str(refused.value)) < 400


def test_headers_have_the_sizes_of_the_format() -> None:
    """The writer that the tests use is that of APPNOTE: 46 bytes of directory, 22 of end record."""
    assert (CENTRAL.size, END.size) == (46, 22)
