"""Unpacking: all of an archive, or nothing."""

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.archives import write_sdist, write_wheel
from tests.support.raw_tar import FOLDER, SYMBOLIC_LINK, TarMember
from tests.support.raw_zip import ZipEntry
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.refusal import RefusedError
from verifiers.hub.package.unpack import TargetError, unpack_sdist, unpack_wheel

TOP = "demo_env-0.1.0"


def tree(folder: Path) -> list[str]:
    """All that is there, hidden or not."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_source_archive_is_unpacked_without_its_top_folder(tmp_path: Path) -> None:
    """The target holds what is in `name-version`, folders and executable files included."""
    script = TarMember(f"{TOP}/run.sh", b"#!/bin/sh\n", mode=0o4777)
    path = write_sdist(tmp_path, members=lambda m: [*m, script, TarMember(f"{TOP}/empty", kind=FOLDER)])
    before = os.umask(0o022)
    try:
        unpack_sdist(path, tmp_path / "new" / "env", Limits())
    finally:
        os.umask(before)
    assert tree(tmp_path / "new") == [
        "env", "env/PKG-INFO", "env/README.md", "env/demo_env.py", "env/empty", "env/pyproject.toml", "env/run.sh"
    ]  # fmt: skip
    modes = {name: stat.S_IMODE((tmp_path / "new/env" / name).stat().st_mode) for name in ("run.sh", "PKG-INFO", "")}
    assert modes == {"run.sh": 0o755, "PKG-INFO": 0o644, "": 0o755}


def test_a_wheel_is_unpacked(tmp_path: Path) -> None:
    """The target holds the members, byte for byte."""
    path = write_wheel(tmp_path, files={"demo_data/a.json": b"{}", "demo_data/bin/": b""})
    unpack_wheel(path, tmp_path / "out", Limits())
    assert (tmp_path / "out/demo_data/a.json").read_bytes() == b"{}"
    assert (tmp_path / "out/demo_data/bin").is_dir()
    assert (tmp_path / f"out/{TOP}.dist-info/RECORD").exists()


EVIL = {
    "a link outside, then a member in it": [
        TarMember(f"{TOP}/a", kind=SYMBOLIC_LINK, link="OUTSIDE"),
        TarMember(f"{TOP}/a/x", b"evil"),
    ],
    "parent": [TarMember(f"{TOP}/../../OUTSIDE/x", b"evil")],
    "second top folder": [TarMember("bar-1.0/x", b"evil")],
    "twice": [TarMember(f"{TOP}/PKG-INFO", b"evil")],
}


@pytest.mark.parametrize("case", EVIL)
def test_nothing_is_written_of_a_refused_source_archive(tmp_path: Path, case: str) -> None:
    """The last member breaks a rule: neither the target nor anything beside or outside it is written."""
    (tmp_path / "outside").mkdir()
    last = [replace(one, link=one.link.replace("OUTSIDE", str(tmp_path / "outside"))) for one in EVIL[case]]
    path = write_sdist(tmp_path, members=lambda members: [*members, *last])
    with pytest.raises(RefusedError):
        unpack_sdist(path, tmp_path / "work" / "env", Limits())
    assert tree(tmp_path) == [path.name, "outside"]


@pytest.mark.parametrize(
    "last",
    [ZipEntry("../x"), ZipEntry("a", mode=0o120777), ZipEntry("a", local={"crc": 1}, central={"crc": 1})],
    ids=["parent", "link", "checksum"],
)
def test_nothing_is_written_of_a_refused_wheel(tmp_path: Path, last: ZipEntry) -> None:
    """The last member breaks a rule, or is damaged: nothing is written."""
    path = write_wheel(tmp_path, entries=lambda entries: [*entries, last])
    with pytest.raises(RefusedError):
        unpack_wheel(path, tmp_path / "out", Limits())
    assert tree(tmp_path) == [path.name]


def test_a_target_with_content_is_left_alone(tmp_path: Path) -> None:
    """Unpacking into a folder that has something is an error, and so is a link, wherever it leads."""
    path = write_sdist(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.py").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    for name in ("full", "full/mine.py", "link"):
        with pytest.raises(TargetError, match="there already"):
            unpack_sdist(path, tmp_path / name, Limits())
    assert tree(tmp_path / "full") == ["mine.py"] and tree(tmp_path / "empty") == []
    unpack_sdist(path, tmp_path / "empty", Limits())
    assert "pyproject.toml" in tree(tmp_path / "empty")


FULL_DISK = """
import resource, sys
from pathlib import Path
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.unpack import unpack_wheel
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
unpack_wheel(Path(sys.argv[1]), Path(sys.argv[2]), Limits())
"""


def test_a_disk_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """An error while writing takes what was written away again. The disk is one that takes no large files."""
    path = write_wheel(tmp_path, files={"data.bin": os.urandom(100_000)})
    command = [sys.executable, "-c", FULL_DISK, str(path), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "File too large" in done.stderr
    assert tree(tmp_path) == [path.name]
