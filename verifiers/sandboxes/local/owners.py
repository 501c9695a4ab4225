"""Who owns sandboxes on this machine, and the removal of what owners that are gone have left.

    owner = register(state, cgroups)       # before the first sandbox
    name = owner.group_name(sandbox_id)    # of its cgroup
    owner.leave()                          # after the last one
    sweep()                                # whatever others left, however they ended

A provider writes down where its sandboxes leave traces, in a directory that only this user can read, before it makes
one. An owner is its process id and that process's start time, in one PID namespace since one boot: a number that is
given out again is another owner, and an owner that cannot be seen from here is not judged.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verifiers.errors import SandboxUnsupportedError
from verifiers.sandboxes.host.owner import start_time, world
from verifiers.sandboxes.local.cgroups import Cgroups, Group, Tree

PREFIX = "vf"
FOLDER = "sandboxes"
_MNT_DETACH = 2


def registry() -> Path:
    """The directory of this user's records; only the user can enter it."""
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        path = Path("/run/verifiers-sandboxes")
    elif runtime := os.environ.get("XDG_RUNTIME_DIR"):
        path = Path(runtime) / "verifiers-sandboxes"
    else:
        path = Path(tempfile.gettempdir()) / f"verifiers-sandboxes-{os.geteuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise SandboxUnsupportedError(
            f"{path} belongs to somebody else, or others can enter it", hint="Remove it, or set XDG_RUNTIME_DIR."
        )
    return path


@dataclass(frozen=True)
class Owner:
    """A process that has sandboxes below `state`, and their groups in `trees`."""

    pid: int
    start: int
    world: str
    state: Path
    trees: tuple[Tree, ...]
    record: Path

    def group_name(self, sandbox_id: str) -> str:
        """The name of a sandbox's cgroup: with the owner's process, its start, and which of its providers."""
        return f"{PREFIX}-{self.record.stem}-{sandbox_id}"

    def group(self, sandbox_id: str) -> Group:
        """Its cgroup."""
        name = self.group_name(sandbox_id)
        return Group(tuple((tree, str(tree.base / name)) for tree in self.trees))

    @property
    def alive(self) -> bool:
        """Whether it may still be there."""
        if self.world == world():
            return start_time(self.pid) == self.start
        return self.world.split()[0] == world().split()[0]

    def leave(self) -> None:
        """Forget it: it has removed everything itself."""
        self.record.unlink(missing_ok=True)

    @property
    def folder(self) -> Path:
        """Where each sandbox has a directory of its name."""
        return self.state / FOLDER

    def sandboxes(self) -> list[str]:
        """Ids of sandboxes that have left traces: a directory or a cgroup."""
        prefix = self.group_name("")
        groups = [name for tree in self.trees for name in _names(tree.base) if name.startswith(prefix)]
        return sorted({*_names(self.folder), *(name.removeprefix(prefix) for name in groups)})


def register(state: Path, cgroups: Cgroups) -> Owner:
    """Write down that this process keeps sandboxes in `state` and groups in these trees."""
    pid = os.getpid()
    start = start_time(pid) or 0
    record = registry() / f"{pid}-{start}-{secrets.token_hex(4)}.json"
    owner = Owner(pid, start, world(), state.absolute(), cgroups.trees, record)
    trees = [[str(tree.base), tree.version, sorted(tree.controllers)] for tree in owner.trees]
    fields = {"pid": pid, "start": start, "world": owner.world, "state": str(owner.state), "trees": trees}
    partial = record.with_suffix(".new")
    partial.write_text(json.dumps(fields))
    partial.rename(record)
    return owner


def owners() -> Iterator[Owner]:
    """All whose records are there."""
    for path in sorted(registry().glob("*.json")):
        with suppress(OSError, ValueError, KeyError):
            yield _owner(json.loads(path.read_text()), path)


def _owner(fields: dict[str, Any], record: Path) -> Owner:
    trees = tuple(Tree(Path(base), version, frozenset(names)) for base, version, names in fields["trees"])
    return Owner(fields["pid"], fields["start"], fields["world"], Path(fields["state"]), trees, record)


def sweep() -> int:
    """Remove what owners that are gone have left; how many sandboxes that were. What resists is tried next time."""
    count = 0
    for owner in owners():
        if not owner.alive:
            found = owner.sandboxes()
            gone = [remove_sandbox(owner, name) for name in found]
            if all(gone) and remove_tree(owner.state):
                owner.leave()
            count += len(found)
    return count


def remove_sandbox(owner: Owner, sandbox_id: str) -> bool:
    """Remove what is left of one, its processes too; whether nothing is any more."""
    group = owner.group(sandbox_id)
    with suppress(OSError):
        group.kill()
    return group.remove() and remove_tree(owner.folder / sandbox_id)


def remove_tree(path: Path) -> bool:
    """Remove a directory that may hold mounts, and directories that their owner has closed; whether it is gone."""
    try:
        path.rmdir()  # most are empty
    except OSError:
        pass
    else:
        return True
    prefix = f"{path}/"
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split(" ")[4].encode().decode("unicode_escape") for line in lines]
    for point in reversed([one for one in points if one == str(path) or one.startswith(prefix)]):
        unmount(point)
    remove = ["rm", "-rf", "--", str(path)]  # not shutil: code inside may have nested thousands of directories
    for line in (remove, ["chmod", "-R", "u+rwX", "--", str(path)], remove):
        if not os.path.lexists(path):
            break
        subprocess.run(line, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return not os.path.lexists(path)


def unmount(point: str) -> None:
    """Take a mount away, also while it is in use. Without the right, or the mount, nothing happens."""
    ctypes.CDLL(None, use_errno=True).umount2(os.fsencode(point), _MNT_DETACH)


def _names(path: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(path) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
