"""Control groups: what a sandbox may use together, what it used, and how all of it is killed.

    cgroups = find()                                  # what this machine lets us do, found by trying
    group = cgroups.make("vf-123-456-ab", memory=512, pids=64, cpu=1.0)
    group.enter(pid); group.oom_kills(); group.kill(); group.remove()

A machine has version 1 (a tree for each controller), version 2 (one tree) or both (hybrid), and rights to some of it.
None of that is told by a version: a group is made in our own group or above it, its limits are written, and what was
refused is not used. A group of version 2 kills all that is in it at once even where it limits nothing; the freezer of
version 1 comes next. See cgroups(7) and the kernel's admin-guide/cgroup-v1 and cgroup-v2.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from verifiers.sandboxes.spec import MIB

PERIOD_US = 20_000
"""Over which the share of the processor is measured: how long what has used up its share may have to wait."""
REMOVAL_S = 2.0
"""How long a group is waited for that still holds processes which are ending."""
LEAF = "verifiers-host"
"""Where our own processes go if they stand where groups are to be made: version 2 wants processes in leaves only."""
CONTROLLERS = ("memory", "pids", "cpu")
"""Those that limit something."""
KILLERS = ("cgroup.kill", "freezer")
"""What kills a whole group, the better one first."""


@dataclass(frozen=True, slots=True)
class Tree:
    """A mounted hierarchy: `base` is the directory that groups are made in. controllers: those usable in it,
    `swap` and `cgroup.kill` among them."""

    base: Path
    version: int
    controllers: frozenset[str]


@dataclass(frozen=True)
class Cgroups:
    """What was found. findings: for a controller that can not be used, why."""

    trees: tuple[Tree, ...] = ()
    findings: Mapping[str, str] = field(default_factory=dict)

    @property
    def limits(self) -> frozenset[str]:
        """Which of memory, pids and cpu can be limited."""
        return frozenset().union(*(tree.controllers for tree in self.trees)) & frozenset(CONTROLLERS)

    @property
    def kills(self) -> str | None:
        """By what a whole group is killed: `cgroup.kill`, `freezer` or None."""
        return next((name for name in KILLERS if any(name in tree.controllers for tree in self.trees)), None)

    def make(
        self, name: str, *, memory: int | None = None, pids: int | None = None, cpu: float | None = None
    ) -> Group:
        """A group with these limits, as in `SandboxSpec` (memory in MiB, cpu in cores). OSError leaves nothing."""
        group = Group(tuple((tree, str(tree.base / name)) for tree in self.trees))
        try:
            for tree, path in group.places:
                os.mkdir(path, 0o755)
                for file, value in _settings(tree, memory, pids, cpu):
                    _write(f"{path}/{file}", value)
        except OSError:
            group.remove()
            raise
        return group


@dataclass(frozen=True)
class Group:
    """One sandbox's group: a directory in each tree. Figures are None where nothing counts them."""

    places: tuple[tuple[Tree, str], ...]

    def enter(self, pid: int) -> None:
        """Put a process in; what it starts from now on is in, too. OSError: it has gone, or the group has."""
        for _, path in self.places:
            _write(f"{path}/cgroup.procs", str(pid))

    def oom_kills(self) -> int | None:
        """How many processes the kernel killed because memory ran out."""
        return self._event("memory", {1: "memory.oom_control", 2: "memory.events"}, "oom_kill")

    def pids_refused(self) -> int | None:
        """How often a process was not started because of the limit."""
        return self._event("pids", {1: "pids.events", 2: "pids.events"}, "max")

    def memory(self) -> int | None:
        """Bytes in use, caches included."""
        return self._number("memory", {1: "memory.usage_in_bytes", 2: "memory.current"})

    def peak_memory(self) -> int | None:
        """The most that was in use, in bytes."""
        return self._number("memory", {1: "memory.max_usage_in_bytes", 2: "memory.peak"})

    def pids(self) -> int | None:
        """Processes and threads that are there."""
        return self._number("pids", {1: "pids.current", 2: "pids.current"})

    def cpu_seconds(self) -> float | None:
        """Time on processors."""
        for tree, path in self.places:
            if tree.version == 2:  # counted even where the controller is not there
                used = _keyed(f"{path}/cpu.stat", "usage_usec")
                return None if used is None else used / 1e6
        used = self._number("cpuacct", {1: "cpuacct.usage"})
        return None if used is None else used / 1e9

    def kill(self) -> None:
        """Kill all that is in it, also what is just being started. Nothing in it, or no such group: nothing to do."""
        with suppress(FileNotFoundError):
            if place := self._place("cgroup.kill"):
                _write(f"{place[1]}/cgroup.kill", "1")
            elif place := self._place("freezer"):
                with _frozen(place[1]):
                    _kill_each(place[1])
            elif self.places:
                until = time.monotonic() + REMOVAL_S
                while _kill_each(self.places[0][1]) and time.monotonic() < until:
                    time.sleep(0.001)

    def remove(self, seconds: float = REMOVAL_S) -> bool:
        """Remove the directories once they are empty; False if `seconds` were not enough for that."""
        until = time.monotonic() + seconds
        gone = [_removed(path, until) for _, path in self.places]
        return all(gone)

    def _place(self, controller: str) -> tuple[Tree, str] | None:
        return next((place for place in self.places if controller in place[0].controllers), None)

    def _event(self, controller: str, files: Mapping[int, str], key: str) -> int | None:
        place = self._place(controller)
        return None if place is None else _keyed(f"{place[1]}/{files[place[0].version]}", key)

    def _number(self, controller: str, files: Mapping[int, str]) -> int | None:
        place = self._place(controller)
        if place is None or place[0].version not in files:
            return None
        try:
            return int(_read(f"{place[1]}/{files[place[0].version]}"))
        except (OSError, ValueError):  # memory.peak is younger than version 2
            return None


def _settings(tree: Tree, memory: int | None, pids: int | None, cpu: float | None) -> Iterator[tuple[str, str]]:
    """Files and what is written to them. Swap counts as memory: a limit is what a sandbox can use in all."""
    if memory is not None and "memory" in tree.controllers:
        size = str(memory * MIB)
        if tree.version == 1:
            yield "memory.limit_in_bytes", size
            if "swap" in tree.controllers:
                yield "memory.memsw.limit_in_bytes", size
        else:
            yield "memory.max", size
            if "swap" in tree.controllers:
                yield "memory.swap.max", "0"
    if pids is not None and "pids" in tree.controllers:
        yield "pids.max", str(pids)
    if cpu is not None and "cpu" in tree.controllers:
        quota = max(1000, int(cpu * PERIOD_US))  # the kernel takes no less
        if tree.version == 1:
            yield "cpu.cfs_period_us", str(PERIOD_US)
            yield "cpu.cfs_quota_us", str(quota)
        else:
            yield "cpu.max", f"{quota} {PERIOD_US}"


# --- finding out --------------------------------------------------------------------------------------------------


def find(mountinfo: str | None = None, own: str | None = None) -> Cgroups:
    """Find the trees and try them; the arguments stand for /proc/self/mountinfo and /proc/self/cgroup."""
    mounts = _read("/proc/self/mountinfo") if mountinfo is None else mountinfo
    paths = _own_paths(_read("/proc/self/cgroup") if own is None else own)
    trees: list[Tree] = []
    findings: dict[str, str] = {}
    for version, names, mount, root in hierarchies(mounts):
        wanted = names & {*CONTROLLERS, "cpuacct", "freezer"}
        if version == 1 and not wanted:
            continue
        own_path = paths.get("" if version == 2 else next(iter(wanted)), "/")
        tree = _try(version, wanted, mount, _below(mount, root, own_path), findings)
        if tree is not None:
            trees.append(tree)
    taken: set[str] = set()
    if any(tree.version == 2 for tree in trees):
        taken.add("cpuacct")  # it counts that, too
    if any("cgroup.kill" in tree.controllers for tree in trees):
        taken.add("freezer")
    kept = []
    for tree in sorted(trees, key=lambda one: -one.version):
        useful = tree.controllers - taken
        if tree.version == 2 or useful:
            kept.append(Tree(tree.base, tree.version, useful))
            taken |= useful
    missing = set(CONTROLLERS) - taken
    return Cgroups(tuple(kept), {name: findings.get(name, "no tree of it is mounted") for name in sorted(missing)})


def hierarchies(mountinfo: str) -> list[tuple[int, frozenset[str], Path, str]]:
    """(version, controllers of version 1, mount point, root) of what proc(5) describes as mountinfo."""
    found = []
    for line in mountinfo.splitlines():
        fields, _, more = line.partition(" - ")
        kind, _, options = more.split(" ", 2)
        root, mount = (part.encode().decode("unicode_escape") for part in fields.split(" ")[3:5])
        if kind == "cgroup2":
            found.append((2, frozenset[str](), Path(mount), root))
        elif kind == "cgroup":
            found.append((1, frozenset(options.split(",")) - {"rw", "ro"}, Path(mount), root))
    return found


def _own_paths(text: str) -> dict[str, str]:
    """Our group by controller; "" is version 2."""
    paths = {}
    for line in text.splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    return paths


def _below(mount: Path, root: str, path: str) -> Path:
    """Where a group is seen; the mount point itself if it is outside of what is mounted."""
    relative = os.path.relpath(path, root)
    own = mount if relative.startswith("..") else mount / relative
    return own.parent if own.name == LEAF else own


def _try(version: int, wanted: frozenset[str], mount: Path, own: Path, findings: dict[str, str]) -> Tree | None:
    """The lowest place, from our own group upwards, that allows most."""
    best: Tree | None = None
    while True:
        try:
            usable = _probe_v1(own, wanted) if version == 1 else _probe_v2(own, findings)
        except OSError as error:
            for name in wanted if version == 1 else CONTROLLERS:
                findings.setdefault(name, f"{own}: {error.strerror}")
        else:
            if best is None or len(usable) > len(best.controllers):
                best = Tree(own, version, usable)
            if set(CONTROLLERS) & wanted <= usable and (version == 1 or set(CONTROLLERS) <= usable):
                return best
        if own == mount:
            return best
        own = own.parent


@contextmanager
def _trial(base: Path) -> Iterator[str]:
    path = f"{base}/vf-trial-{os.getpid()}-{secrets.token_hex(4)}"
    os.mkdir(path)
    try:
        yield path
    finally:
        os.rmdir(path)


def _probe_v1(base: Path, wanted: frozenset[str]) -> frozenset[str]:
    tree = Tree(base, 1, wanted)
    with _trial(base) as path:
        swap = "memory" in wanted and os.path.exists(f"{path}/memory.memsw.limit_in_bytes")
        for file, value in _settings(tree, 64, 64, 1.0):
            _write(f"{path}/{file}", value)
    return wanted | ({"swap"} if swap else set())


def _probe_v2(base: Path, findings: dict[str, str]) -> frozenset[str]:
    """What a group below `base` can do. OSError: not even be made."""
    offered = _read(f"{base}/cgroup.controllers").split()
    for name in CONTROLLERS:
        if name in offered:
            try:
                _enable(base, name)
            except OSError as error:
                findings.setdefault(name, f"{base}/cgroup.subtree_control: {error.strerror}")
    usable = set()
    with _trial(base) as path:
        with suppress(OSError):  # since Linux 5.14
            _write(f"{path}/cgroup.kill", "1")
            usable.add("cgroup.kill")
        for name in CONTROLLERS:
            settings = list(_settings(Tree(base, 2, frozenset((name,))), 64, 64, 1.0))
            with suppress(OSError):
                for file, value in settings:
                    _write(f"{path}/{file}", value)
                usable.add(name)
        if os.path.exists(f"{path}/memory.swap.max"):
            usable.add("swap")
    return frozenset(usable)


def _enable(base: Path, controller: str) -> None:
    """Let groups below `base` use a controller. Processes in the way make room if all of them are our own."""
    if controller in _read(f"{base}/cgroup.subtree_control").split():
        return
    try:
        _write(f"{base}/cgroup.subtree_control", f"+{controller}")
    except OSError:
        inside = _pids(str(base))
        if not inside or any(not _is_ours(pid) for pid in inside):
            raise
        leaf = base / LEAF
        leaf.mkdir(exist_ok=True)
        for pid in inside:
            with suppress(ProcessLookupError):
                _write(f"{leaf}/cgroup.procs", str(pid))
        _write(f"{base}/cgroup.subtree_control", f"+{controller}")


def _is_ours(pid: int) -> bool:
    """Whether a process is this one or descends from it."""
    while pid > 1 and pid != os.getpid():
        try:
            pid = int(_read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1])
        except OSError:
            return True  # it has ended: nobody in the way
    return pid == os.getpid()


# --- files ----------------------------------------------------------------------------------------------------------


def _write(path: str, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # never makes one: outside a cgroup tree it fails
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def _read(path: str) -> str:
    with open(path, "rb", buffering=0) as file:
        return (file.readall() or b"").decode()


def _keyed(path: str, key: str) -> int | None:
    """A number out of lines `key number`."""
    try:
        pairs = (line.split() for line in _read(path).splitlines())
        return next((int(value) for name, value in pairs if name == key), None)
    except (OSError, ValueError):
        return None


def _pids(path: str) -> list[int]:
    try:
        return [int(pid) for pid in _read(f"{path}/cgroup.procs").split() if pid != "0"]
    except OSError:
        return []


def _kill_each(path: str) -> bool:
    """Kill what is in a group now; whether there was something."""
    found = _pids(path)
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
    return bool(found)


@contextmanager
def _frozen(path: str) -> Iterator[None]:
    """Stop all in a group of version 1's freezer, so that nothing forks away while it is killed; then let it end."""
    _write(f"{path}/freezer.state", "FROZEN")
    until = time.monotonic() + REMOVAL_S
    while _read(f"{path}/freezer.state").strip() == "FREEZING" and time.monotonic() < until:
        time.sleep(0.001)
    try:
        yield
    finally:
        _write(f"{path}/freezer.state", "THAWED")


def _removed(path: str, until: float) -> bool:
    while True:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.001)
        else:
            return True
