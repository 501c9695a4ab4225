"""Owners of sandboxes and their user ids: what one that was killed has left goes, what lives stays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verifiers.errors import SandboxUnsupportedError
from verifiers.sandboxes.local import cgroups, identity, owners
from verifiers.sandboxes.local.identity import Identities

needs_root = pytest.mark.skipif(not identity.blocks_here()[1], reason="this process may not become other users")

OWNER = """
import os, sys
from pathlib import Path
from verifiers.sandboxes.local import cgroups, owners
found = cgroups.find()
owner = owners.register(Path(sys.argv[1]), found)
for name in ("a", "b", "c"):
    (owner.folder / name / "closed").mkdir(parents=True)
    (owner.folder / name / "closed").chmod(0)
    if found.trees:
        found.make(owner.group_name(name), memory=64)
print(owner.record, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Records of this test's own, so that it neither sweeps nor lists what is others'."""
    folder = tmp_path / "registry"
    folder.mkdir(mode=0o700)
    monkeypatch.setattr(owners, "registry", lambda: folder)
    monkeypatch.setattr(identity, "registry", lambda: folder)
    return folder


def _owner(state: Path, registry: Path) -> subprocess.Popen[str]:
    code = "from pathlib import Path\nfrom verifiers.sandboxes.local import owners\n"
    code += f"owners.registry = lambda: Path({str(registry)!r})\n{OWNER}"
    line = [sys.executable, "-c", code, str(state)]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_what_a_killed_owner_left_is_removed_and_what_a_living_one_has_is_not(tmp_path: Path, registry: Path) -> None:
    """Directories that were closed and cgroups alike, by a sweep of another process."""
    dead, living = _owner(tmp_path / "dead", registry), _owner(tmp_path / "living", registry)
    try:
        mine = {one.state.name: one for one in owners.owners()}
        assert {name: one.sandboxes() for name, one in mine.items()} == {name: ["a", "b", "c"] for name in mine}
        assert owners.sweep() == 0
        dead.kill()
        dead.wait()
        assert owners.sweep() == 3
        assert not (tmp_path / "dead").exists()
        assert mine["dead"].sandboxes() == []
        assert len(mine["living"].sandboxes()) == 3
        assert [one.state.name for one in owners.owners()] == ["living"]
    finally:
        living.kill()
        living.communicate()
        dead.communicate()
        assert owners.sweep() == 3


def test_a_tree_is_removed_whatever_is_in_it_and_nothing_beside_it(tmp_path: Path) -> None:
    """A thousand nested directories, closed ones, links out; the folder above stays as it is, also for no tree."""
    tmp_path.chmod(0o1755)
    (tmp_path / "kept").write_text("kept")
    tree = tmp_path / "tree"
    (tree / "closed").mkdir(parents=True)
    (tree / "closed" / "file").write_text("x")
    (tree / "link").symlink_to(tmp_path)
    (tree / "closed").chmod(0)
    deep = "for i in range(1100):\n    os.mkdir('deep'); os.chdir('deep')"
    subprocess.run([sys.executable, "-c", f"import os\n{deep}"], cwd=tree, check=True)
    assert owners.remove_tree(tree)
    assert owners.remove_tree(tree)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "registry"]
    assert tmp_path.stat().st_mode & 0o7777 == 0o1755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_what_was_mounted_in_a_tree_is_not_removed_with_it(tmp_path: Path) -> None:
    """A bind of something else is taken away, and what it showed is still there."""
    (tmp_path / "shown").mkdir()
    (tmp_path / "shown" / "file").write_text("kept")
    point = tmp_path / "tree" / "point"
    point.mkdir(parents=True)
    done = subprocess.run(["mount", "--bind", str(tmp_path / "shown"), str(point)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no mounts here: {done.stderr.decode()}")
    assert owners.remove_tree(tmp_path / "tree")
    assert (tmp_path / "shown" / "file").read_text() == "kept"


def test_a_number_that_was_given_out_again_is_another_owner(tmp_path: Path) -> None:
    """Neither a process id alone nor one of another PID namespace tells who owns."""
    owner = owners.register(tmp_path, cgroups.Cgroups())
    assert [one.alive for one in owners.owners()] == [True]
    fields = json.loads(owner.record.read_text())
    for changed, alive in [
        ({"start": owner.start - 1}, False),
        ({"world": owner.world + "0", "pid": 1 << 30}, True),  # not to be seen from here, so not judged
        ({"world": "another-boot pid:[1]"}, False),
    ]:
        owner.record.write_text(json.dumps(fields | changed))
        assert [one.alive for one in owners.owners()] == [alive]
    owner.leave()
    assert list(owners.owners()) == []


def test_a_record_that_cannot_be_read_hides_no_other(tmp_path: Path, registry: Path) -> None:
    """Such as one that was cut short when the disk was full."""
    (registry / "1-1-aa.json").write_text("{")
    owner = owners.register(tmp_path, cgroups.Cgroups())
    assert list(owners.owners()) == [owner]


def test_a_registry_that_others_can_enter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who could write a record could have a directory of this user removed."""
    monkeypatch.undo()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() or 12345)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "verifiers-sandboxes").mkdir(mode=0o755)
    with pytest.raises(SandboxUnsupportedError, match="others can enter"):
        owners.registry()


@needs_root
def test_blocks_of_ids_are_not_shared_and_free_themselves(registry: Path) -> None:
    """Two claims have no id in common; a block whose holder was killed is taken again."""
    first, second = Identities.claim(), Identities.claim()
    assert first is not None and second is not None
    a, b = first.take(), first.take()
    assert a != b
    assert abs(second.take() - a) >= identity.BLOCK
    first.close()
    again = Identities.claim()
    assert again is not None
    assert again.take() == a
    again.close()
    second.close()


@needs_root
def test_an_id_that_was_given_back_is_the_last_to_be_used_again() -> None:
    """The processes of a sandbox that has just ended may still be counted."""
    identities = Identities.claim()
    assert identities is not None
    first = identities.take()
    identities.give_back(first)
    assert len({identities.take() for _ in range(identity.BLOCK - 1)} | {first}) == identity.BLOCK
    assert identities.take() == first
    identities.close()
