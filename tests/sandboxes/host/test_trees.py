"""What comes out of a sandbox as a tree lies where it should, or nothing of it does."""

import os
import struct

import pytest
from hypothesis import given, strategies as st

from verifiers.errors import SandboxPathError
from verifiers.sandboxes.host.trees import TreeError, TreeWriter, read_tree


def entry(kind, path=b"", data=b"", mode=0o644, size=None):
    return struct.pack("<cIIQ", kind, mode, len(path), len(data) if size is None else size) + path + data


ROOT, END = entry(b"d", mode=0o755), entry(b"e")
HOSTILE = {
    "an absolute path": entry(b"f", b"/etc/planted", b"x"),
    "up and out": entry(b"f", b"../planted", b"x"),
    "up in the middle": entry(b"d", b"a") + entry(b"f", b"a/../../planted", b"x"),
    "a parent that was not sent": entry(b"f", b"a/planted", b"x"),
    "a link as a parent": entry(b"l", b"a", b".") + entry(b"f", b"a/planted", b"x"),
    "a link that is absolute": entry(b"l", b"a", b"/etc/passwd"),
    "a link that leads out": entry(b"l", b"a", b"../x"),
    "a link up after a link": entry(b"d", b"d") + entry(b"l", b"d/l", b"..") + entry(b"l", b"a", b"d/l/../x"),
    "a file twice": entry(b"f", b"a", b"x") + entry(b"f", b"a", b"y"),
    "a file in place of a link": entry(b"l", b"a", b"b") + entry(b"f", b"a", b"y"),
    "a device": entry(b"b", b"a"),
    "a directory with bytes": entry(b"d", b"a", b"x"),
    "a NUL": entry(b"f", b"a\0b", b"x"),
    "an empty name": entry(b"d", b"a") + entry(b"f", b"a/", b"x"),
    "a path without end": entry(b"f", b"a" * 5000, b"x"),
    "more bytes than are allowed": entry(b"f", b"a", size=1 << 40),
    "more entries than are allowed": b"".join(entry(b"f", b"%d" % number) for number in range(20)),
    "another root": ROOT,
    "entries after the end": END,
}


@pytest.mark.parametrize("entries", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_tree_leaves_nothing(entries, tmp_path):
    """Nothing stands at the target, beside it or above it."""
    home = tmp_path / "home"
    home.mkdir()
    writer = TreeWriter(home / "target", max_entries=10, max_bytes=1 << 30)
    writer.feed(ROOT + entries + END)
    with pytest.raises(TreeError):
        writer.finish()
    writer.close()
    assert [os.listdir(tmp_path), os.listdir(home)] == [["home"], []]


def test_set_id_bits_do_not_come_along(tmp_path):
    """A file is never more than readable, writable and executable."""
    writer = TreeWriter(tmp_path / "target")
    writer.feed(ROOT + entry(b"f", b"a", b"x", mode=0o6755) + END)
    writer.finish()
    assert (tmp_path / "target" / "a").stat().st_mode & 0o7777 == 0o755


def test_what_stands_at_the_target_is_not_touched(tmp_path):
    """A download goes to a new place."""
    (tmp_path / "target").write_text("mine")
    with pytest.raises(FileExistsError):
        TreeWriter(tmp_path / "target")


def test_an_interrupted_tree_leaves_nothing(tmp_path):
    """Half a file is none."""
    writer = TreeWriter(tmp_path / "target")
    writer.feed(ROOT + entry(b"f", b"a", b"xx", size=5))
    with pytest.raises(TreeError):
        writer.finish()
    writer.close()
    assert os.listdir(tmp_path) == []


NAMES = st.text("abc", min_size=1, max_size=3)
TREES = st.recursive(
    st.one_of(st.binary(max_size=50), st.just("link")), lambda below: st.dictionaries(NAMES, below, max_size=4)
)


@given(tree=TREES.filter(lambda tree: tree != "link"), cut=st.integers(1, 40))
def test_a_tree_comes_out_as_it_went_in(tree, cut, tmp_path_factory):
    """However it is cut into pieces."""
    folder = tmp_path_factory.mktemp("tree")
    _make(folder / "source", tree)
    writer = TreeWriter(folder / "target")
    data = b"".join(read_tree(folder / "source"))
    for at in range(0, len(data), cut):
        writer.feed(data[at : at + cut])
    writer.finish()
    writer.close()
    assert _seen(folder / "target") == _seen(folder / "source")
    assert sorted(os.listdir(folder)) == ["source", "target"]


def _make(path, tree):
    if tree == "link":
        path.symlink_to("elsewhere")
    elif isinstance(tree, bytes):
        path.write_bytes(tree)
    else:
        path.mkdir()
        for name, below in tree.items():
            _make(path / name, below)


def _seen(path):
    if path.is_symlink():
        return os.readlink(path)
    return path.read_bytes() if path.is_file() else {one.name: _seen(one) for one in path.iterdir()}


@pytest.mark.parametrize("kind", ["fifo", "link out"])
def test_what_cannot_go_in_is_refused(kind, tmp_path):
    """Special files, and links out of what is uploaded: named, not skipped."""
    (tmp_path / "source").mkdir()
    if kind == "fifo":
        os.mkfifo(tmp_path / "source" / "odd")
    else:
        (tmp_path / "source" / "odd").symlink_to("../../etc")
    with pytest.raises(SandboxPathError, match="odd"):
        list(read_tree(tmp_path / "source"))
