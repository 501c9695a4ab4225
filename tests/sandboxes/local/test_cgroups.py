"""Control groups: found by trying, limiting, counting and killing, with real processes of this machine."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

import pytest

from verifiers.sandboxes.local import cgroups
from verifiers.sandboxes.local.cgroups import Cgroups, Group, Tree

FOUND = cgroups.find()
needs = pytest.mark.skipif(FOUND.limits != {"memory", "pids", "cpu"}, reason=f"no cgroups here: {FOUND.findings}")


def _run(group: Group, script: str) -> int:
    """Run a shell script in the group to its end."""
    waiting = ["/bin/sh", "-c", f"read go; {script}"]
    process = subprocess.Popen(waiting, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    group.enter(process.pid)
    process.communicate(b"go\n")
    return process.returncode


@pytest.fixture
def name() -> str:
    return f"vf-{os.getpid()}-test-{secrets.token_hex(4)}"


@needs
def test_memory_that_ran_out_is_told_although_the_shell_returned_0(name: str) -> None:
    """The kernel kills the child alone; the counter of the group is the only witness."""
    group = FOUND.make(name, memory=32)
    try:
        hungry = "python3 -I -S -c 'held = bytearray(200 << 20)'"
        assert _run(group, f"{hungry}; exit 0") == 0
        assert group.oom_kills() == 1
        peak = group.peak_memory()
        assert peak is None or 16 << 20 < peak <= 32 << 20
        assert (group.cpu_seconds() or 0) > 0
    finally:
        assert group.remove()
    assert not any(Path(path).exists() for _, path in group.places)


@needs
def test_processes_beyond_the_limit_are_refused_counted_and_killed_with_the_rest(name: str) -> None:
    """Also those that left the session: nothing is left after a kill, and the group can go."""
    group = FOUND.make(name, pids=8)
    started = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do setsid sleep 1000 & done; exit 0"
    _run(group, started)
    assert (group.pids() or 0) > 1
    assert (group.pids_refused() or 0) > 0
    group.kill()
    assert group.remove()
    assert group.pids() is None


@needs
@pytest.mark.parametrize(("controller", "kills"), [("freezer", "freezer"), ("pids", None)])
def test_a_group_is_killed_where_version_2_cannot(controller: str, kills: str | None, name: str) -> None:
    """By version 1's freezer, or one process after another until none is left."""
    hierarchies = cgroups.hierarchies(Path("/proc/self/mountinfo").read_text())
    mounted = [place for place in hierarchies if controller in place[1]]
    if not mounted:
        pytest.skip(f"no {controller} of version 1 is mounted")
    only = Cgroups((Tree(mounted[0][2], 1, frozenset({controller})),))
    assert only.kills == kills
    group = only.make(name)
    _run(group, "for i in 1 2 3; do setsid sleep 1000 & done; exit 0")
    group.kill()
    assert group.remove()


def test_a_group_that_cannot_be_made_whole_is_not_made(tmp_path: Path) -> None:
    """One tree that refuses takes the directories in the others along."""
    refusing = Cgroups((Tree(tmp_path, 1, frozenset()), Tree(tmp_path / "missing", 1, frozenset())))
    with pytest.raises(FileNotFoundError):
        refusing.make("vf-1-2-a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "controllers", "written"),
    [
        (1, {"memory"}, {"memory.limit_in_bytes": "67108864"}),
        (1, {"memory", "swap"}, {"memory.limit_in_bytes": "67108864", "memory.memsw.limit_in_bytes": "67108864"}),
        (2, {"memory", "swap"}, {"memory.max": "67108864", "memory.swap.max": "0"}),
        (2, {"pids", "cpu"}, {"pids.max": "7", "cpu.max": "10000 20000"}),
        (1, {"pids", "cpu"}, {"pids.max": "7", "cpu.cfs_period_us": "20000", "cpu.cfs_quota_us": "10000"}),
    ],
)
def test_what_is_written_for_each_version(version: int, controllers: set[str], written: dict[str, str]) -> None:
    """The files of both versions and their units, limits in the order in which the kernel takes them."""
    tree = Tree(Path("/"), version, frozenset(controllers))
    assert list(cgroups._settings(tree, 64, 7, 0.5)) == list(written.items())


def test_trees_are_found_where_they_are_mounted_and_our_group_below() -> None:
    """Version 2 alone, version 1 with controllers together, and a container that sees a part of the tree."""
    lines = [
        r"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate",
        r"33 31 0:30 /docker/ab /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct",
        r"34 31 0:31 / /odd\040place rw - cgroup cgroup rw,name=systemd",
        r"35 31 0:32 / /proc rw - proc proc rw",
    ]
    found = cgroups.hierarchies("\n".join(lines))
    assert [(version, str(mount), root) for version, _, mount, root in found] == [
        (2, "/sys/fs/cgroup", "/"),
        (1, "/sys/fs/cgroup/cpu,cpuacct", "/docker/ab"),
        (1, "/odd place", "/"),
    ]
    assert {"cpu", "cpuacct"} <= found[1][1]
    below = cgroups._below
    assert below(Path("/sys/fs/cgroup"), "/", "/user.slice/a.scope") == Path("/sys/fs/cgroup/user.slice/a.scope")
    assert below(Path("/c"), "/docker/ab", "/docker/ab") == Path("/c")
    assert below(Path("/c"), "/docker/ab", "/elsewhere") == Path("/c")
    assert below(Path("/c"), "/", f"/a/{cgroups.LEAF}") == Path("/c/a")


def test_a_machine_without_rights_says_what_refused(tmp_path: Path) -> None:
    """No tree, and for each limit the reason."""
    mounts = "30 23 0:26 / /proc/sys rw - cgroup2 cgroup2 rw"  # a directory that takes no groups
    found = cgroups.find(mountinfo=mounts, own="0::/")
    assert found.trees == ()
    assert found.kills is None
    assert set(found.findings) == {"memory", "pids", "cpu"}
    assert "/proc/sys" in found.findings["memory"]
