"""What the real pip, the real uv and `zipfile` disagree on is refused; what is accepted they read alike.

Each crafted wheel is offered by an index of its own on the loopback address, because uv judges a file that it streams
from an index more strictly than one on the disk.
"""

import io
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.archives import make_wheel, wheel_name
from tests.support.installers import Installers
from tests.support.raw_zip import STORED, ZipEntry, deflate
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.refusal import RefusedError
from verifiers.hub.package.zip_walk import walk_zip

Entries = list[ZipEntry]
MORE = ZipEntry("more.py", b"x = 1\n")


def adding(*entries: ZipEntry) -> Callable[[], bytes]:
    """A wheel with more members than its RECORD knows, at the front."""
    return lambda: make_wheel(entries=lambda made: [*entries, *made])


def changing(name: str, **changes: object) -> Callable[[], bytes]:
    """A wheel of which one member is written otherwise."""

    def change(made: Entries) -> Entries:
        return [replace(one, **changes) if str(one.name).endswith(name) else one for one in made]

    return lambda: make_wheel(entries=change)


def framed(**options: object) -> Callable[[], bytes]:
    return lambda: make_wheel(zip_options=options)


def pointing_elsewhere(made: Entries) -> Entries:
    """The directory says that the module's bytes are those of another member, which has the same size and checksum
    fields there: who reads headers in sequence installs something else."""
    other = ZipEntry("other.py", b"x = 2\n", central_name=b"demo_env.py")
    return [replace(made[0], listed=False), other, *made[1:]]


def hidden_name(made: Entries) -> Entries:
    """One name in the local header, another in the directory."""
    return [replace(MORE, local_name=b"evil.py", central_name=b"more.py"), *made]


UNICODE_PATH = struct.pack("<2HBL", 0x7075, 12, 1, zlib.crc32(b"more.py")) + b"evil.py"
LOCATOR = struct.pack("<2H4sLQL", 0x6666, 20, b"PK\6\7", 0, 0, 1)



def lzma_stream(data: bytes) -> bytes:
    """LZMA data as a ZIP has them, cut out of one that `zipfile` writes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", data)
        size = archive.getinfo("a").compress_size
    return out.getvalue()[31 : 31 + size]


WHEELS: dict[str, Callable[[], bytes]] = {
    "plain": make_wheel,
    "stored": changing("demo_env.py", method=STORED),
    "folders": adding(ZipEntry("demo_data/", mode=0o40755)),
    "executable": changing("demo_env.py", mode=0o100755),
    "twice, other bytes": adding(ZipEntry("demo_env.py", b"x = 2\n")),
    "twice, same bytes": lambda: make_wheel(entries=lambda made: [made[0], *made]),
    "case": adding(MORE, replace(MORE, name="MORE.py", data=b"x = 2\n")),
    "8 bytes after": framed(suffix=b"12345678"),
    "two joined": lambda: make_wheel(files={"first.py": "x = 1"}) + make_wheel(files={"second.py": "x = 1"}),
    "bytes before": framed(prefix=b"#!/bin/sh\n"),
    "gap": framed(before_directory=b"gap"),
    "wheel in the comment": lambda: make_wheel(zip_options={"comment": make_wheel(files={"second.py": "x"})}),
    "comment of a member": changing("demo_env.py", comment=b"hello"),
    "LZMA": adding(
        replace(MORE, method=14, packed=lzma_stream(MORE.data), local={"flags": 2}, central={"flags": 2})
    ),
    "parent": adding(replace(MORE, name="../evil.py")),
    "inner parent": adding(replace(MORE, name="demo_data/../../evil.py")),
    "absolute": adding(replace(MORE, name="/evil.py")),
    "backslash": adding(replace(MORE, name="demo_data\\evil.py")),
    "drive": adding(replace(MORE, name="C:evil.py")),
    "NUL": adding(replace(MORE, name="more.py\0.txt")),
    "empty part": adding(replace(MORE, name="demo_data//more.py")),
    "symbolic link": adding(ZipEntry("link.py", b"demo_env.py", mode=0o120777)),
    "file in a file": adding(ZipEntry("demo_data"), ZipEntry("demo_data/a.py")),
    "folder with content": adding(ZipEntry("demo_data/", b"x", mode=0o40755)),
    "unlisted": adding(replace(MORE, listed=False)),
    "only listed": adding(replace(MORE, written=False)),
    "another name in the directory": lambda: make_wheel(entries=hidden_name),
    "another member's place": lambda: make_wheel(entries=pointing_elsewhere),
    "another size in the directory": changing("demo_env.py", central={"size": 5}),
    "another size in the header": changing("demo_env.py", local={"size": 5}),
    "another checksum in the header": changing("demo_env.py", local={"crc": 5}),
    "another name in an extra field": adding(replace(MORE, central_extra=UNICODE_PATH)),
    "what reads as a locator": changing("RECORD", central_extra=LOCATOR),
    "descriptor that is not there": changing("demo_env.py", local={"flags": 8}, central={"flags": 8}),
    "encrypted": changing("demo_env.py", local={"flags": 1}, central={"flags": 1}),
    "METADATA with checksum 0": changing("METADATA", local={"crc": 0}, central={"crc": 0}),
    "more than a stream": adding(replace(MORE, packed=deflate(MORE.data) + b"more")),
    "sizes beside a ZIP64 field": changing("demo_env.py", local_extra=struct.pack("<2HQ", 1, 8, 5)),
    "count in the end record": framed(end={"total": 1, "here": 1}),
    "truncated": lambda: make_wheel()[:-30],
}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[str]:
    """A folder tree of indexes, one a wheel, on the loopback address; its URL."""
    root = tmp_path / "indexes"
    for number, made in enumerate(WHEELS.values()):
        folder = root / str(number) / "demo-env"
        folder.mkdir(parents=True)
        (folder / wheel_name()).write_bytes(made())
        (folder / "index.html").write_text(f'<!DOCTYPE html><a href="{wheel_name()}">{wheel_name()}</a>')
    handler = partial(_Quiet, directory=str(root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


def installed(folder: Path) -> dict[str, bytes]:
    """What an installer has written, but for what it writes of its own."""
    own = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", ".lock"}
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in own)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if "__pycache__" not in path.parts}


def by_pip(installers: Installers, pip: Path, index: str, into: Path) -> dict[str, bytes] | None:
    options = ("--isolated", "install", "--quiet", "--no-deps", "--no-compile", "--no-cache-dir", "--index-url", index)
    ended = installers.run(pip, "-m", "pip", *options, "--target", into, "demo-env")
    return installed(into) if ended.code == 0 else None


def by_uv(installers: Installers, index: str, into: Path) -> dict[str, bytes] | None:
    options = ("--quiet", "--no-deps", "--no-cache", "--default-index", index)
    ended = installers.uv("pip", "install", *options, "--target", into, "demo-env")
    return installed(into) if ended.code == 0 else None


def by_zipfile(raw: bytes) -> dict[str, bytes] | None:
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            files = [one for one in archive.infolist() if not one.is_dir() and not one.filename.endswith("/RECORD")]
            found = {one.filename: archive.read(one) for one in files}
            return found if len(found) == len(files) else None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError, zlib.error):
        return None


def by_us(raw: bytes) -> dict[str, bytes] | None:
    try:
        listing = walk_zip(io.BytesIO(raw), Limits())
        listing.digests()
    except RefusedError:
        return None
    files = [one.name for one in listing.members if not one.is_dir and not one.name.endswith("/RECORD")]
    return {name: listing.read(name, 1 << 20) for name in files}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_installers_disagree_on_is_refused(
    index: str, installers: Installers, current_pip: Path, tmp_path: Path
) -> None:
    """Of some forty wheels, each that pip, uv and `zipfile` take for different things is refused, and none that is
    accepted is read otherwise by any of them."""
    disagreed = set()
    accepted = set()
    for number, (case, made) in enumerate(WHEELS.items()):
        raw = made()
        url = f"{index}/{number}"
        theirs = [
            by_pip(installers, current_pip, url, tmp_path / f"pip-{number}"),
            by_uv(installers, url, tmp_path / f"uv-{number}"),
            by_zipfile(raw),
        ]
        ours = by_us(raw)
        if any(one != theirs[0] for one in theirs):
            disagreed.add(case)
            assert ours is None, case
        if ours is not None:
            accepted.add(case)
            assert theirs == [ours] * 3, case
    assert accepted == {"plain", "stored", "folders", "executable"}
    assert {"twice, other bytes", "8 bytes after", "two joined", "LZMA", "parent", "absolute"} <= disagreed
