"""Files arrive whole or not at all, are what they are said to be, and lie inside."""

import asyncio
import contextlib
import os

import pytest

from verifiers.errors import Error, SandboxFileNotFoundError, SandboxPathError
from verifiers.sandboxes.spec import MIB

PLANTS = (
    "ln -s /etc/passwd x",
    "ln -s ../../up x",
    "mkfifo x",
    "mkdir d; ln -s /tmp d/x; : > file",
    "mkdir d; ln -s d a; ln -s a/../../up b",
    "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"x\")'",
)
READS = {
    "read": lambda sandbox, path, _: sandbox.read(path),
    "read a range": lambda sandbox, path, _: sandbox.read(path, offset=2, size=3),
    "read capped": lambda sandbox, path, _: sandbox.read(path, size=3),
    "stat": lambda sandbox, path, _: sandbox.stat(path),
    "list": lambda sandbox, path, _: sandbox.list(path),
    "remove": lambda sandbox, path, _: sandbox.remove(path),
    "remove a tree": lambda sandbox, path, _: sandbox.remove(path, recursive=True),
    "download": lambda sandbox, path, target: sandbox.download(path, target),
}


async def test_files_of_any_size_and_kind_round_trip(sandbox):
    """Nothing, one byte and megabytes come back as they went; parents are made; the mode is what was asked for."""
    for number, data in enumerate((b"", b"\0", os.urandom(3 * MIB + 1))):
        path = f"a/b{number}/c"
        await sandbox.write(path, data, mode=0o750)
        assert await sandbox.read(path) == data
        assert await sandbox.read(f"/workspace/{path}") == data
        found = await sandbox.stat(path)
        assert (found.path, found.kind, found.size, found.mode) == (f"/workspace/{path}", "file", len(data), 0o750)
    assert (await sandbox.exec("wc -c < a/b2/c; echo more >> a/b2/c")).stdout_text.split() == [str(3 * MIB + 1)]
    assert await sandbox.read("a/b2/c", offset=3 * MIB + 1) == b"more\n"
    assert await sandbox.read("a/b2/c", offset=3 * MIB, size=3) == data[-1:] + b"mo"
    assert await sandbox.read("a/b2/c", offset=9 * MIB) == b""


async def test_missing_is_not_empty(sandbox, tmp_path):
    """Every way to read a path that is not there raises the same; an empty file is no bytes."""
    await sandbox.write("file", b"")
    for name, way in READS.items():
        for path in ("missing", "missing/deeper", "/no/such/folder/x"):
            with pytest.raises(SandboxFileNotFoundError, match=path):
                await way(sandbox, path, tmp_path / "out")
            assert not (tmp_path / "out").exists(), name
    assert await sandbox.read("file") == await sandbox.read("file", offset=5) == b""
    await sandbox.download("file", tmp_path / "empty")
    assert (tmp_path / "empty").read_bytes() == b""


async def test_a_write_is_whole_or_nothing(sandbox):
    """Readers see the old bytes or the new ones, never a part, and no other file is left beside it."""
    old, new = b"o" * 400_000, b"n" * 500_000
    await sandbox.write("deep/file", old)

    async def replace():
        for data in (new, old, new, old, new):
            await sandbox.write("deep/file", data)

    replacing = asyncio.create_task(replace())
    while not replacing.done():
        assert await sandbox.read("deep/file") in (old, new)
    await replacing
    assert [entry.path for entry in await sandbox.list("deep")] == ["/workspace/deep/file"]


async def test_what_is_no_file_is_named_and_never_waited_for(sandbox, tmp_path):
    """Folders, FIFOs, sockets and devices are refused at once by every way to read and write a file."""
    await sandbox.exec("mkdir dir; mkfifo fifo; ln -s fifo to-fifo; ln -s /dev/zero zero; ln -s self self")
    for path in ("dir", "fifo", "to-fifo", "zero", "/dev/zero", "self"):
        with pytest.raises(SandboxPathError):
            await sandbox.read(path)
        with pytest.raises(SandboxPathError):
            await sandbox.read(path, size=10)
    for path in ("dir", "/dev/null", "/proc/version", "/usr/new", "file/below"):
        await sandbox.write("file", b"")
        with pytest.raises(SandboxPathError):
            await sandbox.write(path, b"x")
    with pytest.raises(SandboxPathError):
        await sandbox.list("file")
    with pytest.raises(SandboxPathError):
        await sandbox.mkdir("file")
    with pytest.raises(SandboxPathError):
        await sandbox.download("fifo", tmp_path / "out")
    assert (await sandbox.stat("fifo")).kind == "other"
    assert (await sandbox.exec("test -p fifo && test -d dir")).ok


async def test_links_are_followed_inside_and_only_there(sandbox, tmp_path):
    """A link leads where it leads inside the sandbox: a name of the host's is not found, and `stat` shows the link."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"the host's")
    await sandbox.write("real/file", b"inside")
    await sandbox.exec(["sh", "-c", 'ln -s real/file one; ln -s real way; ln -s "$0" out; ln -s "$1" outdir',
                        str(outside), str(tmp_path)])  # fmt: skip
    assert await sandbox.read("one") == await sandbox.read("way/file") == b"inside"
    assert ((await sandbox.stat("one")).kind, (await sandbox.stat("way/file")).kind) == ("link", "file")
    for path in ("out", "outdir/outside", str(outside), "../../../../.." + str(outside)):
        with pytest.raises(SandboxFileNotFoundError):
            await sandbox.read(path)
    for path in ("outdir/new", "outdir/outside"):
        with contextlib.suppress(SandboxPathError):
            await sandbox.write(path, b"planted")
    assert outside.read_bytes() == b"the host's"
    assert [entry.name for entry in tmp_path.iterdir() if entry.name not in ("provider", "outside")] == []


async def test_names_may_be_anything(sandbox, tmp_path):
    """Names with spaces, quotes, newlines, dashes, accents, other bytes and the greatest length are names."""
    names = ["a b", "-rf", "quote'\"$HOME`", "new\nline", "é", os.fsdecode(b"\xff\xfe"), "x" * 255, "..."]
    for number, name in enumerate(names):
        await sandbox.write(f"names/{name}", b"%d" % number)
    assert {entry.path.removeprefix("/workspace/names/") for entry in await sandbox.list("names")} == set(names)
    assert [await sandbox.read(f"names/{name}") for name in names] == [b"%d" % n for n in range(len(names))]
    await sandbox.download("names", tmp_path / "names")
    assert {entry.name for entry in (tmp_path / "names").iterdir()} == set(names)
    for name in ("x" * 256, "nul\0", "names/" * 2000):
        with pytest.raises(Error):
            await sandbox.write(name, b"")
    for name in names:
        await sandbox.remove(f"names/{name}")
    assert await sandbox.list("names") == []


async def test_folders_are_made_listed_and_removed(sandbox):
    """A folder is made with its parents, again too; a full one is removed only recursively, links not followed."""
    await sandbox.mkdir("a/b/c")
    await sandbox.mkdir("a/b/c")
    await sandbox.write("kept", b"kept")
    await sandbox.exec("ln -s /workspace/kept a/b/link; mkdir a/dir; printf 12345 > a/file; chmod 600 a/file")
    entries = await sandbox.list("a")
    assert [(entry.path, entry.kind) for entry in entries] == [
        ("/workspace/a/b", "directory"), ("/workspace/a/dir", "directory"), ("/workspace/a/file", "file")]  # fmt: skip
    assert (entries[2].size, entries[2].mode) == (5, 0o600)
    with pytest.raises(SandboxPathError):
        await sandbox.remove("a")
    await sandbox.remove("a/b/link")
    await sandbox.exec("ln -s /workspace/kept a/b/link")
    await sandbox.remove("a", recursive=True)
    assert [entry.path for entry in await sandbox.list(".")] == ["/workspace/kept"]
    assert await sandbox.read("kept") == b"kept"


async def test_trees_survive_the_way_in_and_out(sandbox, tmp_path):
    """A folder goes in and comes out with its files, empty folders, execute bits and links within."""
    source = tmp_path / "source"
    (source / "empty").mkdir(parents=True)
    (source / "deep" / "er").mkdir(parents=True)
    (source / "deep" / "er" / "data").write_bytes(os.urandom(2 * MIB))
    (source / "tool").write_text("#!/bin/sh\necho ran\n")
    (source / "tool").chmod(0o755)
    (source / "deep" / "link").symlink_to("er/data")
    await sandbox.upload(source, "tree")
    assert (await sandbox.exec("./tree/tool && test -d tree/empty && cmp tree/deep/link tree/deep/er/data")).ok
    await sandbox.upload(source / "tool", "single/tool")
    assert (await sandbox.exec("./single/tool")).stdout == b"ran\n"
    await sandbox.download("tree", tmp_path / "back")
    assert sorted(path.relative_to(tmp_path / "back") for path in (tmp_path / "back").rglob("*")) == sorted(
        path.relative_to(source) for path in source.rglob("*")
    )
    assert (tmp_path / "back/deep/er/data").read_bytes() == (source / "deep/er/data").read_bytes()
    assert os.access(tmp_path / "back/tool", os.X_OK)
    await sandbox.download("tree/tool", tmp_path / "one")
    assert (tmp_path / "one").read_bytes() == (source / "tool").read_bytes()


async def test_a_hostile_tree_brings_nothing_to_the_host(sandbox, tmp_path):
    """Links out of the tree and special files are refused, and nothing of the tree is left at the target."""
    for number, plant in enumerate(PLANTS):
        made = await sandbox.exec(f"mkdir evil{number}; cd evil{number}; echo good > a-good-file; {plant}")
        assert made.ok, made
        with pytest.raises(SandboxPathError):
            await sandbox.download(f"evil{number}", tmp_path / "out")
        assert not (tmp_path / "out").exists(), plant


async def test_nothing_special_comes_out_and_nothing_is_overwritten(sandbox, tmp_path):
    """Set-id bits are dropped on the way out; a target that is there is refused and untouched."""
    await sandbox.exec("mkdir d; echo x > d/suid; chmod 6755 d/suid")
    await sandbox.download("d", tmp_path / "d")
    assert (tmp_path / "d/suid").stat().st_mode & 0o7000 == 0
    (tmp_path / "there").write_bytes(b"mine")
    for source in ("d", "d/suid"):
        with pytest.raises(FileExistsError):
            await sandbox.download(source, tmp_path / "there")
    assert (tmp_path / "there").read_bytes() == b"mine"


async def test_an_upload_needs_something_to_send(sandbox, tmp_path):
    """What is not there, or no file, is told at once and leaves nothing in the sandbox."""
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileNotFoundError):
        await sandbox.upload(tmp_path / "missing", "x")
    with pytest.raises((OSError, Error)):
        await sandbox.upload(tmp_path / "fifo", "x")
    with pytest.raises(SandboxFileNotFoundError):
        await sandbox.stat("x")
