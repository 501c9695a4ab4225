"""Laws of the walk over a ZIP, on archives that hypothesis makes and damages.

What the walk accepts, `zipfile` reads with the same names and bytes; and what is made as tools make it is accepted.
"""

import io
import struct
import zipfile
import zlib
from dataclasses import replace

from hypothesis import event, given, settings, strategies as st

from tests.support.raw_zip import DEFLATED, STORED, ZipEntry, deflate, zip_bytes
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.refusal import RULES, RefusedError
from verifiers.hub.package.zip_walk import walk_zip

PLAIN = ["a.py", "b.py", "pkg/a.py", "pkg/ü.py", "pkg/sub/c.py", "demo-1.dist-info/RECORD"]
NAMES = st.sampled_from([*PLAIN, "A.py"])
ODD = ["", "/", "../a", "a/", "a\\b", "C:a", "a\0b", "pkg", "."]
ODD_NAMES = st.one_of(NAMES, st.sampled_from(ODD), st.text(max_size=9))
DATA = st.one_of(st.binary(max_size=80), st.sampled_from([b"PK\3\4" + b"x" * 26, b"x" * 900, b"y" * 3000]))
NUMBER = st.one_of(
    st.integers(0, 70), st.sampled_from([0x800, 0x808, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFE, 0o120777 << 16, 0o40755 << 16])
)
LONG_FIELDS = ("crc", "packed", "size", "external", "offset")
BYTE_FIELDS = ("made_by", "needs")
LOCAL_FIELDS = ["needs", "flags", "method", "time", "date", "crc", "packed", "size"]
CENTRAL_FIELDS = [*LOCAL_FIELDS, "made_by", "disk", "internal", "external", "offset"]
ENTRIES = st.builds(
    ZipEntry, NAMES, DATA, st.sampled_from([STORED, DEFLATED]), st.sampled_from([0, 0o100644, 0o100755]),
)  # fmt: skip
ARCHIVES = st.lists(ENTRIES, min_size=1, max_size=4, unique_by=lambda one: str(one.name).casefold())


@st.composite
def changes(draw, fields: list[str]) -> dict[str, int]:
    """Another value for one field of a header, as large as the field can hold."""
    name = draw(st.sampled_from(fields))
    most = 0xFFFFFFFF if name in LONG_FIELDS else 0xFF if name in BYTE_FIELDS else 0xFFFF
    return {name: draw(NUMBER) & most}


@st.composite
def extras(draw, made: ZipEntry) -> bytes:
    """Extra fields: none, ZIP64 with right or wrong numbers, another name, noise."""
    right = [len(made.data), len(made.stream()), 0]
    wrong = st.lists(st.integers(0, 80), max_size=4)
    numbers = draw(st.one_of(st.sampled_from([right[:2], right[:1], right]), wrong))
    name = draw(st.one_of(st.just(made.raw_name()), st.binary(max_size=6)))
    path = struct.pack("<BL", 1, zlib.crc32(made.raw_name())) + name
    fields = [(1, struct.pack(f"<{len(numbers)}Q", *numbers)), (0x7075, path), (0x5455, b"\1abcd")]
    chosen = draw(st.lists(st.sampled_from(fields), max_size=2))
    noise = draw(st.one_of(st.just(b""), st.binary(max_size=5)))
    return b"".join(struct.pack("<2H", kind, len(content)) + content for kind, content in chosen) + noise


@st.composite
def tampered(draw, made: ZipEntry) -> ZipEntry:
    """A member of which one thing is another: a field in one header or in both, a name, its data."""
    what = draw(st.integers(0, 9))
    if what < 2:
        return replace(made, local=draw(changes(LOCAL_FIELDS)))
    if what == 2:
        return replace(made, central=draw(changes(CENTRAL_FIELDS)))
    if what == 3:
        both = draw(changes(LOCAL_FIELDS))
        return replace(made, local=both, central=both)
    if what == 4:
        wide = dict.fromkeys(draw(st.sampled_from([["size"], ["packed"], ["size", "packed"]])), 0xFFFFFFFF)
        both = {"local": wide, "central": draw(st.sampled_from([wide, {}]))}
        return replace(made, **both, local_extra=draw(extras(made)), central_extra=draw(extras(made)))
    if what == 5:
        return replace(made, local_extra=draw(extras(made)), central_extra=draw(extras(made)))
    if what == 6:
        return replace(made, name=draw(ODD_NAMES))
    if what == 7:
        return replace(made, central_name=draw(ODD_NAMES).encode())
    if what == 8:
        after = draw(st.binary(max_size=4))
        return replace(made, listed=draw(st.booleans()), written=draw(st.booleans()), after=after)
    other = draw(DATA)
    streams = [deflate(other), other, made.stream() + other, made.stream()[:-1]]
    return replace(made, packed=draw(st.sampled_from(streams)))


@st.composite
def damaged_archives(draw) -> bytes:
    """An archive that was tampered with where it was written, then perhaps damaged as a row of bytes."""
    made = draw(ARCHIVES)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(made) - 1))
        how = draw(st.integers(0, 4))
        if how < 3:
            made[at] = draw(tampered(made[at]))
        else:
            made.insert(draw(st.integers(0, len(made))), replace(made[at], data=draw(DATA)) if how == 3 else made[at])
    options = {}
    if draw(st.integers(0, 5)) == 0:
        field = draw(st.sampled_from(["here", "total", "size", "offset", "comment"]))
        options["end"] = {field: draw(st.integers(0, 99))}
    if draw(st.integers(0, 5)) == 0:
        piece = draw(st.one_of(st.binary(max_size=30), st.just(zip_bytes(made)), st.just(b"PK\6\7" + bytes(16))))
        options[draw(st.sampled_from(["prefix", "before_directory", "before_end", "suffix", "comment"]))] = piece
    return draw(damaged_bytes(zip_bytes(made, **options)))


@st.composite
def damaged_bytes(draw, raw: bytes) -> bytes:
    """The same bytes, or with one changed, a part cut out, doubled or moved, or the end missing."""
    how = draw(st.integers(0, 9))
    start = draw(st.integers(0, len(raw) - 1)) if raw else 0
    stop = min(len(raw), start + draw(st.integers(1, 60)))
    if how == 0:
        return raw[:start] + bytes([draw(st.integers(0, 255))]) + raw[start + 1 :]
    if how == 1:
        return raw[:start] + raw[stop:]
    if how == 2:
        return raw[:stop] + raw[start:]
    if how == 3:
        return raw[:start]
    if how == 4:
        to = draw(st.integers(0, len(raw)))
        return raw[:to] + raw[start:stop] + raw[to:]
    return raw


def ours(raw: bytes) -> dict[str, bytes | None] | None:
    """What the walk reads, a folder as None; None where it refuses. Whatever happens is one of the two."""
    try:
        listing = walk_zip(io.BytesIO(raw), Limits())
        digests = listing.digests()
    except RefusedError as refused:
        event(RULES[refused.code].code)
        return None
    assert digests.keys() == {member.name for member in listing.members if not member.is_dir}
    return {one.name: None if one.is_dir else listing.read(one.name, 1 << 20) for one in listing.members}


def theirs(raw: bytes) -> dict[str, bytes | None]:
    """What `zipfile` reads."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        assert archive.testzip() is None
        found: dict[str, bytes | None] = {}
        for one in archive.infolist():
            found[one.filename.removesuffix("/")] = None if one.is_dir() else archive.read(one)
        return found


@settings(max_examples=400)
@given(damaged_archives())
def test_what_the_walk_accepts_zipfile_reads_alike(raw: bytes) -> None:
    """Whatever was done to an archive, it is refused by a rule or read alike by both."""
    read = ours(raw)
    if read is not None:
        event("accepted")
        assert list(read.items()) == list(theirs(raw).items())


@given(ARCHIVES)
def test_sound_archives_are_accepted(made: list[ZipEntry]) -> None:
    """An archive that nobody tampered with passes, and its members are those that were written."""
    expected = {str(one.name): one.data for one in made}
    assert ours(zip_bytes(made)) == expected


FILES = st.dictionaries(st.sampled_from(PLAIN), DATA, min_size=1, max_size=4)


@given(FILES, st.sampled_from([STORED, DEFLATED]), st.booleans())
def test_what_zipfile_writes_is_accepted(files: dict[str, bytes], method: int, wide: bool) -> None:
    """An archive written by `zipfile`, as most tools for wheels do, passes, with ZIP64 headers as well."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            with archive.open(info, "w", force_zip64=wide) as target:
                target.write(data)
    assert ours(out.getvalue()) == files
