"""Laws of the walk over a source archive, on archives that hypothesis makes and damages.

What the walk accepts, `tarfile` reads with the same names, kinds and bytes; and what is made as tools make it is
accepted.
"""

import io
import tarfile
from dataclasses import replace

from hypothesis import event, given, settings, strategies as st

from tests.support.raw_tar import (
    BLOCK,
    FOLDER,
    GNU,
    GNU_LONG_NAME,
    PAX,
    PAX_FOR_ALL,
    USTAR,
    TarMember,
    gzip_bytes,
    header_block,
    padded,
    pax_records,
)
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.refusal import RULES, RefusedError
from verifiers.hub.package.tar_walk import walk_tar

TOP = "demo-1.0"
PLAIN = [f"{TOP}/a.py", f"{TOP}/PKG-INFO", f"{TOP}/pkg/a.py", f"{TOP}/pkg/ü.py", f"{TOP}/" + "long/" * 20 + "b.py"]
NAMES = st.sampled_from(PLAIN)
ODD = ["", "/", TOP, f"{TOP}/", "other/a.py", "a\0b"]
ODD += [f"{TOP}/../a", f"{TOP}//a", f"{TOP}/a/", f"{TOP}/A.PY", f"{TOP}/pkg"]
ODD_NAMES = st.one_of(NAMES, st.sampled_from(ODD), st.text(max_size=9))
DATA = st.one_of(st.binary(max_size=40), st.sampled_from([b"x" * 512, b"x" * 1300, bytes(1024)]))
MEMBERS = st.builds(TarMember, NAMES, DATA)
ARCHIVES = st.lists(MEMBERS, min_size=1, max_size=4, unique_by=lambda one: str(one.name))
NUMBERS = [b"", b"0", b"1\0", b"0000000000\0", b"00000001000\0", b"      12 \0", b"-1\0", b"0o17\0", b"1_0\0", b"9\0"]
NUMBERS += [b"\x80" + bytes(10) + b"\1", b"\xff" * 12, b"17\x007\0", b"777777777777"]
FIELDS = {
    "name": st.one_of(ODD_NAMES.map(str.encode), st.binary(max_size=20)),
    **dict.fromkeys(["mode", "uid", "gid", "size", "mtime", "major", "minor"], st.sampled_from(NUMBERS)),
    "kind": st.sampled_from([bytes([code]) for code in b"0\000123567xgLKSXZ"]),
    "link": st.sampled_from([b"", b"a.py", b"/etc"]),
    "magic": st.sampled_from([b"", GNU, USTAR, b"ustar\0\0\0", b"ustar   "]),
    "prefix": st.sampled_from([b"", TOP.encode(), b"..", b"\0\1"]),
    "rest": st.sampled_from([b"", b"\1"]),
    "checksum": st.sampled_from([b"", b"0000000\0"]),
}
KEYS = ["path", "size", "mtime", "uid", "linkpath", "comment", "hdrcharset", "GNU.sparse.name", "GNU.sparse.size"]


@st.composite
def extensions(draw, member: TarMember) -> list[TarMember]:
    """Headers before a member: right or wrong, malformed, of either kind."""
    value = st.one_of(st.just(member.name), ODD_NAMES, st.sampled_from(["0", "1", str(len(member.data)), "1.5", ""]))
    found = []
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from([PAX, PAX, GNU_LONG_NAME, GNU_LONG_NAME, PAX_FOR_ALL]))
        if kind == GNU_LONG_NAME:
            name = draw(st.one_of(st.just(str(member.name)), ODD_NAMES))
            raw = name.encode() + draw(st.sampled_from([b"\0", b"", b"\0\0"]))
        else:
            raw = pax_records(draw(st.dictionaries(st.sampled_from(KEYS), value.map(str), max_size=2)))
            raw = draw(st.sampled_from([raw, raw, raw, raw + raw, raw[:-1], raw + b"\0"]))
        found.append(TarMember("extension", raw, kind=kind))
    return found


@st.composite
def damaged_archives(draw) -> bytes:
    """An archive that was tampered with where it was written, then perhaps damaged as a row of bytes."""
    members = draw(ARCHIVES)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(members) - 1))
        how = draw(st.integers(0, 4))
        if how == 0:
            field = draw(st.sampled_from(sorted(FIELDS)))
            members[at] = replace(members[at], header={field: draw(FIELDS[field])})
        elif how == 1:
            members[at] = replace(members[at], name=draw(ODD_NAMES), kind=draw(st.sampled_from([b"0", FOLDER])))
        elif how == 2:
            members[at:at] = draw(extensions(members[at]))
        elif how == 3:
            members.insert(draw(st.integers(0, len(members))), replace(members[at], data=draw(DATA)))
        else:
            members.insert(at, TarMember(draw(NAMES).rpartition("/")[0], kind=FOLDER))
    raw = b"".join(written(member) for member in members)
    raw += draw(st.sampled_from([bytes(1024), bytes(1024), bytes(1024), bytes(512), b"", bytes(10_240)]))
    return draw(damaged_bytes(draw(damaged_blocks(raw))))


def written(member: TarMember) -> bytes:
    """A member, whose name is cut where no header has room for it: that too is a case."""
    name = member.raw_name()
    if len(name) > 100 and b"/" not in name[:155]:
        member = replace(member, name=name[:100])
    return header_block(member) + padded(member.data)


@st.composite
def damaged_blocks(draw, raw: bytes) -> bytes:
    """The archive before it is compressed: as it is, or with blocks moved, doubled, cut or changed."""
    how = draw(st.integers(0, 7))
    number = len(raw) // BLOCK
    start = draw(st.integers(0, number - 1)) * BLOCK
    if how == 0:
        at = start + draw(st.integers(0, BLOCK - 1))
        return raw[:at] + bytes([draw(st.integers(0, 255))]) + raw[at + 1 :]
    if how == 1:
        return raw[:start] + raw[start + BLOCK :]
    if how == 2:
        to = draw(st.integers(0, number)) * BLOCK
        return raw[:to] + raw[start : start + BLOCK] + raw[to:]
    if how == 3:
        return raw[: start + draw(st.integers(0, BLOCK))]
    return raw


@st.composite
def damaged_bytes(draw, raw: bytes) -> bytes:
    """The compressed archive: as it is, or cut, changed, joined with more."""
    how = draw(st.integers(0, 9))
    packed = gzip_bytes(raw)
    at = draw(st.integers(0, len(packed) - 1))
    if how == 0:
        return packed[:at] + bytes([draw(st.integers(0, 255))]) + packed[at + 1 :]
    if how == 1:
        return packed[:at]
    if how == 2:
        return gzip_bytes(raw[:BLOCK]) + gzip_bytes(raw[BLOCK:])
    if how == 3:
        return packed + draw(st.sampled_from([b"\0", b"more", packed]))
    return packed


def ours(raw: bytes) -> dict[str, bytes | None] | None:
    """What the walk reads, a folder as None; None where it refuses. Whatever happens is one of the two."""
    try:
        listing = walk_tar(io.BytesIO(raw), TOP, Limits(), keep=lambda name: True)
    except RefusedError as refused:
        event(RULES[refused.code].code)
        return None
    return {one.name: None if one.is_dir else listing.read(one.name[len(TOP) + 1 :]) for one in listing.members}


def theirs(raw: bytes) -> dict[str, bytes | None]:
    """What `tarfile` reads: regular files and folders only."""
    found: dict[str, bytes | None] = {}
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archive:
        for one in archive:
            assert one.isdir() or one.type in (tarfile.REGTYPE, tarfile.AREGTYPE)
            file = archive.extractfile(one)
            found[one.name] = None if file is None else file.read()
    return found


@settings(max_examples=400)
@given(damaged_archives())
def test_what_the_walk_accepts_tarfile_reads_alike(raw: bytes) -> None:
    """Whatever was done to an archive, it is refused by a rule or read alike by both."""
    read = ours(raw)
    if read is not None:
        event("accepted")
        assert list(read.items()) == list(theirs(raw).items())


@given(ARCHIVES)
def test_sound_archives_are_accepted(members: list[TarMember]) -> None:
    """An archive that nobody tampered with passes, and its members are those that were written."""
    raw = b"".join(written(member) for member in members) + bytes(1024)
    assert ours(gzip_bytes(raw)) == {str(one.name): one.data for one in members}


FILES = st.dictionaries(NAMES, DATA, min_size=1, max_size=4)
FORMATS = st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])


@given(FILES, FORMATS, st.floats(0, 2e9), st.sampled_from([0, 1000, 3_000_000]))
def test_what_tarfile_writes_is_accepted(files: dict[str, bytes], form: int, mtime: float, uid: int) -> None:
    """An archive written by `tarfile`, as most tools for source archives do, passes in both of its formats."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uid = len(data), mtime, uid
            archive.addfile(info, io.BytesIO(data))
    assert ours(out.getvalue()) == files
