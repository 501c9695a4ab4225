"""The walk over a source archive: what it takes, and one crafted archive or more for each rule that refuses."""

import io
import tarfile
from collections.abc import Callable

import pytest

from tests.support.archives import make_sdist
from tests.support.raw_tar import (
    DEVICE,
    FIFO,
    FOLDER,
    GNU,
    GNU_LONG_LINK,
    GNU_LONG_NAME,
    GNU_SPARSE,
    HARD_LINK,
    PAX,
    PAX_FOR_ALL,
    SYMBOLIC_LINK,
    TarMember,
    gzip_bytes,
    pax_records,
    tar_bytes,
)
from verifiers.hub.package.archive_rules import ARCHIVE_RULES
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.refusal import RefusedError
from verifiers.hub.package.tar_walk import TarListing, walk_tar

TOP = "demo_env-0.1.0"
A = TarMember(f"{TOP}/a.py", b"x = 1\n")
B = TarMember(f"{TOP}/pkg/b.py", b"y = 2\n" * 200)
LONG = f"{TOP}/" + "long_folder/" * 12 + "a.py"


def packed(*members: TarMember, end: bytes = bytes(1024)) -> bytes:
    return gzip_bytes(tar_bytes(members, end=end))


def named(name: str | bytes, **more: object) -> Callable[[], bytes]:
    return lambda: packed(TarMember(name, b"x", **more))


def pax(**values: str) -> TarMember:
    return TarMember("PaxHeader", pax_records(values), kind=PAX)


def long_name(name: str, end: bytes = b"\0") -> TarMember:
    return TarMember("././@LongLink", name.encode() + end, kind=GNU_LONG_NAME)


def cut(name: str, **more: object) -> TarMember:
    """A member whose header has room for the beginning of its name only."""
    return TarMember(name.encode()[:100], b"x = 1\n", **more)


REFUSED: dict[str, tuple[str, Callable[[], bytes]]] = {
    # names: the rules are those of ZIP; these make sure that they are asked
    "parent": ("path-parts", named(f"{TOP}/../../evil.py")),
    "absolute": ("tar-top", named("/etc/passwd")),
    "backslash": ("path-backslash", named(f"{TOP}/a\\b.py")),
    "not UTF-8": ("path-encoding", named(TOP.encode() + b"/\xff.py")),
    "slash at the end of a file": ("path-parts", named(f"{TOP}/a/", kind=b"0")),
    "an old folder": ("path-parts", named(f"{TOP}/a/", kind=b"\0")),
    "twice": ("path-duplicate", lambda: packed(A, A)),
    "case": ("path-twin", lambda: packed(A, TarMember(f"{TOP}/A.PY"))),
    "file in a file": ("path-conflict", lambda: packed(TarMember(f"{TOP}/pkg"), B)),
    "parent in a long name": ("path-parts", lambda: packed(long_name(f"{TOP}/../x"), TarMember(f"{TOP}/.."))),
    "parent in a pax header": ("path-parts", named(f"{TOP}/..", pax={"path": f"{TOP}/../x"})),
    # amounts
    "too many": ("archive-members", lambda: packed(*(TarMember(f"{TOP}/{n}") for n in range(20_001)))),
    "too many folders": (
        "archive-members",
        lambda: packed(
            *(one for n in range(41) for one in (pax(path=f"{TOP}/{n}{'/a' * 490}"), TarMember(f"{TOP}/{n}/a")))
        ),
    ),
    "80 MiB of zeros": ("archive-bomb", lambda: packed(TarMember(f"{TOP}/zeros", bytes(80 << 20)))),
    # gzip
    "empty file": ("tar-gzip", lambda: b""),
    "no gzip": ("tar-gzip", lambda: tar_bytes([A])),
    "half of it": ("tar-gzip", lambda: packed(A, B)[:-20]),
    "without its checksum": ("tar-gzip", lambda: packed(A)[:-8]),
    "wrong checksum": ("tar-gzip", lambda: packed(A)[:-8] + bytes(4) + packed(A)[-4:]),
    "wrong length": ("tar-gzip", lambda: packed(A)[:-4] + bytes(4)),
    "bytes after": ("tar-trailing", lambda: packed(A) + b"more"),
    "a second gzip member": ("tar-trailing", lambda: packed(A) + gzip_bytes(tar_bytes([B]))),
    "a member after one block of zeros": ("tar-trailing", lambda: packed(A, end=bytes(512) + tar_bytes([B]))),
    "a member after the end": ("tar-trailing", lambda: packed(A, end=bytes(1024) + tar_bytes([B]))),
    "something in the filling": ("tar-trailing", lambda: gzip_bytes(tar_bytes([A]).replace(b"x = 1\n\0", b"x = 1\ny"))),
    "no end": ("tar-truncated", lambda: packed(A, end=b"")),
    "one block of zeros": ("tar-truncated", lambda: packed(A, end=bytes(512))),
    "half a block": ("tar-truncated", lambda: packed(A, end=bytes(1025))),
    "ends in data": ("tar-truncated", lambda: gzip_bytes(tar_bytes([B])[:900])),
    # headers
    "checksum": ("tar-header", named(f"{TOP}/a", header={"checksum": b"0000001\0"})),
    "no checksum": ("tar-header", named(f"{TOP}/a", header={"checksum": b""})),
    "unknown format": ("tar-header", named(f"{TOP}/a", header={"magic": b"ustar\x0000"[::-1]})),
    "prefix in a GNU header": ("tar-header", named("a", header={"magic": GNU, "prefix": TOP.encode()})),
    "prefix in an old header": ("tar-header", named("a", header={"magic": b"", "prefix": TOP.encode()})),
    "after the NUL of the name": ("tar-header", named(TOP.encode() + b"/a\0b")),
    "after the NUL of the prefix": ("tar-header", named("a", header={"prefix": TOP.encode() + b"\0b"})),
    "size with an underscore": ("tar-header", named(f"{TOP}/a", header={"size": b"0000000000_1"})),
    "negative size": ("tar-header", named(f"{TOP}/a", header={"size": b"-00000000001"})),
    "binary size": ("tar-header", named(f"{TOP}/a", header={"size": b"\x80" + bytes(10) + b"\1"})),
    "size with two ends": ("tar-header", named(f"{TOP}/a", header={"size": b"0000001\x00777\0"})),
    "no size": ("tar-header", named(f"{TOP}/a", header={"size": b""})),
    "mode": ("tar-header", named(f"{TOP}/a", header={"mode": b"rw-r--r-"})),
    "owner": ("tar-header", named(f"{TOP}/a", header={"uid": b"root"})),
    "device number": ("tar-header", named(f"{TOP}/a", header={"major": b"one"})),
    # kinds
    "link to a folder outside, then a member in it": (
        "tar-kind",
        lambda: packed(
            TarMember(f"{TOP}/a", kind=SYMBOLIC_LINK, link="/tmp"), TarMember(f"{TOP}/a/x", b"evil")
        ),
    ),
    "link inside": ("tar-kind", lambda: packed(A, TarMember(f"{TOP}/b", kind=SYMBOLIC_LINK, link="a.py"))),
    "hard link": ("tar-kind", lambda: packed(A, TarMember(f"{TOP}/b", kind=HARD_LINK, link=f"{TOP}/a.py"))),
    "device": ("tar-kind", lambda: packed(TarMember(f"{TOP}/b", kind=DEVICE))),
    "pipe": ("tar-kind", lambda: packed(TarMember(f"{TOP}/b", kind=FIFO))),
    "holes": ("tar-kind", lambda: packed(TarMember(f"{TOP}/b", kind=GNU_SPARSE, header={"magic": GNU}))),
    "contiguous": ("tar-kind", lambda: packed(TarMember(f"{TOP}/b", kind=b"7"))),
    "kind of Solaris": ("tar-kind", lambda: packed(TarMember(f"{TOP}/b", kind=b"X"))),
    "long link": ("tar-kind", lambda: packed(TarMember(f"{TOP}/b", b"c\0", kind=GNU_LONG_LINK))),
    # sizes
    "folder with content": ("tar-size", lambda: packed(TarMember(f"{TOP}/a", b"x", kind=FOLDER))),
    "another size in a pax header": ("tar-size", named(f"{TOP}/a", pax={"size": "1024"})),
    "no size in a pax header": ("tar-size", named(f"{TOP}/a", pax={"size": "one"})),
    # extended headers
    "two pax headers": ("tar-extension", lambda: packed(pax(mtime="1.5"), pax(path=A.name), A)),
    "pax and GNU": ("tar-extension", lambda: packed(pax(path=A.name), long_name(A.name), A)),
    "GNU and pax": ("tar-extension", lambda: packed(long_name(A.name), pax(path=A.name), A)),
    "two long names": ("tar-extension", lambda: packed(long_name(A.name), long_name(A.name), A)),
    "another name in a pax header": ("tar-extension", named(A.name, pax={"path": B.name})),
    "another long name": ("tar-extension", lambda: packed(long_name(B.name), A)),
    "name for all": ("tar-extension", lambda: packed(TarMember("g", pax_records({"path": "x"}), kind=PAX_FOR_ALL), A)),
    "size for all": ("tar-extension", lambda: packed(TarMember("g", pax_records({"size": "1"}), kind=PAX_FOR_ALL), A)),
    "holes by pax": ("tar-extension", named(A.name, pax={"GNU.sparse.realsize": "9"})),
    **{
        f"pax key {key}": ("tar-extension", named(A.name, pax={key: "1"}))
        for key in ("linkpath", "SCHILY.realsize", "SCHILY.filetype", "SUN.holesdata", "charset")
    },
    "a comment for all within a member's": (
        "tar-extension",
        lambda: packed(pax(path=A.name), TarMember("g", pax_records({"comment": "c"}), kind=PAX_FOR_ALL), A),
    ),
    "character set": ("tar-extension", named(A.name, pax={"hdrcharset": "BINARY"})),
    "key twice": (
        "tar-extension",
        lambda: packed(TarMember("P", pax_records({"path": A.name}) * 2, kind=PAX), A),
    ),
    "length of a record": ("tar-extension", lambda: packed(TarMember("P", b"99 path=a\n", kind=PAX), A)),
    "record without an end": ("tar-extension", lambda: packed(TarMember("P", b"9 path=ab", kind=PAX), A)),
    "after the records": ("tar-extension", lambda: packed(TarMember("P", b"10 path=a\n\0", kind=PAX), A)),
    "nothing after it": ("tar-extension", lambda: packed(A, pax(path=B.name))),
    "too long": ("tar-extension", lambda: packed(TarMember("P", b"a" * 70_000, kind=GNU_LONG_NAME), A)),
    "NUL in a long name": ("path-control", lambda: packed(long_name(f"{A.name}\0b"), A)),
    # the top folder
    "second top folder": ("tar-top", lambda: packed(A, TarMember("bar-1.0/b.py"))),
    "no top folder": ("tar-top", named("a.py")),
    "another version": ("tar-top", named("demo_env-0.1.1/a.py")),
    "the top is a file": ("tar-top", named(TOP)),
    "a name that begins alike": ("tar-top", named(f"{TOP}.evil/a.py")),
    "no member": ("tar-top", packed),
}


def walked(archive: bytes, limits: Limits | None = None) -> TarListing:
    return walk_tar(io.BytesIO(archive), TOP, limits or Limits())


@pytest.mark.parametrize("case", REFUSED)
def test_a_rule_refuses(case: str) -> None:
    """Each crafted archive is refused by the rule it breaks, with a hint."""
    code, archive = REFUSED[case]
    with pytest.raises(RefusedError) as refused:
        walked(archive())
    assert refused.value.code == code, str(refused.value)
    assert refused.value.hint and "\n" not in str(refused.value)


def test_every_rule_has_a_case() -> None:
    """No rule for source archives stands without an archive that breaks it."""
    rules = {row[0] for row in ARCHIVE_RULES if row[0].startswith("tar-")}
    assert rules <= {code for code, _ in REFUSED.values()}


def test_a_source_archive_passes() -> None:
    """A plain source archive is read, and what describes the package is kept."""
    listing = walked(make_sdist("demo-env", "0.1.0", files={"data/a.json": b"{}"}))
    assert [member.name for member in listing.members][-2:] == [f"{TOP}/data/a.json", f"{TOP}/PKG-INFO"]
    assert listing.read("PKG-INFO").startswith(b"Metadata-Version: 2.4")
    assert listing.kept.keys() == {"PKG-INFO", "pyproject.toml"}


def written(form: int) -> bytes:
    """An archive as `tarfile` writes it, with long and foreign names and a large owner number."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=form) as archive:
        names = [TOP, f"{TOP}/a.py"] + [f"{TOP}/ünïcode.py", LONG] * (form != tarfile.USTAR_FORMAT)
        for name in names:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if name == TOP else tarfile.REGTYPE
            info.uid = 3_000_000 if form == tarfile.GNU_FORMAT else 1000
            info.mtime = 1.5
            info.size = 0 if name == TOP else 3
            archive.addfile(info, io.BytesIO(b"x=1"))
    return out.getvalue()


@pytest.mark.parametrize(
    "archive",
    {
        "pax": written(tarfile.PAX_FORMAT),
        "GNU": written(tarfile.GNU_FORMAT),
        "ustar": written(tarfile.USTAR_FORMAT),
        "prefix": packed(TarMember(LONG, b"x")),
        "long name without NUL": packed(long_name(LONG, end=b""), cut(LONG)),
        "pax with the size": packed(cut(LONG, pax={"path": LONG, "size": "6", "mtime": "1.5"})),
        "attributes of macOS": packed(
            pax(**{"SCHILY.xattr.user.a": "b", "LIBARCHIVE.creationtime": "1.5", "SCHILY.ino": "7"}), A
        ),
        "a comment for all": packed(TarMember("g", pax_records({"comment": "c0ffee"}), kind=PAX_FOR_ALL), A),
        "blanks in numbers": packed(TarMember(A.name, b"x", header={"size": b"          1 ", "mode": b"   644 "})),
        "old header": packed(TarMember(A.name, b"x", kind=b"\0", header={"magic": b""})),
        "records of 10 KiB": packed(A, end=bytes(10_240 - 1024)),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_tools_write_passes(archive: tuple[str, bytes]) -> None:
    """What is unusual and read alike by all readers is taken, with the names that `tarfile` reads."""
    with tarfile.open(fileobj=io.BytesIO(archive[1])) as peer:
        assert [member.name for member in walked(archive[1]).members] == peer.getnames()


def test_the_member_is_named() -> None:
    """A refusal says which member it is about."""
    with pytest.raises(RefusedError) as refused:
        walked(packed(A, TarMember(f"{TOP}/link", kind=SYMBOLIC_LINK, link="/etc")))
    assert refused.value.member == f"{TOP}/link" and "symbolic link" in str(refused.value)


def test_what_is_too_large_is_not_kept() -> None:
    """A project file of 5 MiB passes the walk and is refused where someone wants to read it."""
    listing = walked(make_sdist(pyproject="#" * (5 << 20)))
    with pytest.raises(RefusedError) as refused:
        listing.read("pyproject.toml")
    assert refused.value.code == "member-size"
    with pytest.raises(KeyError):
        listing.read("absent")


def test_others_can_be_kept() -> None:
    """A caller says which files it wants to read."""
    listing = walk_tar(io.BytesIO(packed(A, B)), TOP, Limits(), keep=lambda name: name == "pkg/b.py")
    assert listing.kept == {"pkg/b.py": B.data}
