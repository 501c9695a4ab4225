"""What keeps a sandbox within its bounds beside its namespaces: limits of the kernel, a user of its own, a filter.

A `Confiner` prepares a `Confinement` for each sandbox before it starts, and is asked afterwards what the limits did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from verifiers.sandboxes.results import Capabilities, Usage
from verifiers.sandboxes.spec import MIB, SandboxSpec

OPEN_FILES = 4096


@dataclass(frozen=True, slots=True)
class Evidence:
    """How often limits were met so far: processes killed for memory, processes that were not started."""

    oom_kills: int = 0
    pids_refused: int = 0


@dataclass(slots=True, kw_only=True)
class Confinement:
    """One sandbox's. This class itself: limits of each process alone, by rlimits.

    uid, gid: of the host, which the sandbox runs as; None: those of this process. cgroups: `cgroup.procs` files that
    its first process writes itself to. rlimits: soft and hard limit by name (`NOFILE`, as in `resource.RLIMIT_NOFILE`).
    seccomp: file of a compiled filter that bubblewrap loads. arguments: more arguments of bubblewrap.
    """

    uid: int | None = None
    gid: int | None = None
    cgroups: tuple[str, ...] = ()
    rlimits: dict[str, tuple[int, int]] = field(default_factory=dict)
    seccomp: str | None = None
    arguments: tuple[str, ...] = ()

    def evidence(self) -> Evidence:
        """Read after every command: fast, and never waits."""
        return Evidence()

    def usage(self) -> Usage:
        """What it uses now."""
        return Usage()

    def kill(self) -> None:
        """Kill all its processes at once, where there is a way beside the namespace's own; else nothing."""

    def release(self) -> None:
        """Free what was prepared. Called once, when no process of it is left, or none was started."""


class Confiner(Protocol):
    """Makes confinements."""

    def capabilities(self) -> Capabilities:
        """What it can limit, and how."""

    def prepare(self, sandbox_id: str, spec: SandboxSpec) -> Confinement:
        """Everything that is needed before the first process starts. Leaves nothing if it raises."""

    def reap_orphans(self) -> int:
        """Remove what sandboxes of processes that are gone have left; how many there were."""

    def close(self) -> None:
        """Free what is shared by all."""


class RlimitConfiner:
    """The weakest: limits of each process. Works everywhere."""

    def capabilities(self) -> Capabilities:
        weak = {"memory": "of each process, not of all together (RLIMIT_DATA)"}
        return Capabilities(isolation="namespace", limits=frozenset({"memory", "disk", "inodes"}), weak=weak)

    def prepare(self, sandbox_id: str, spec: SandboxSpec) -> Confinement:
        rlimits = {"CORE": (0, 0), "NOFILE": (OPEN_FILES, OPEN_FILES)}
        if spec.memory is not None:
            rlimits["DATA"] = (spec.memory * MIB, spec.memory * MIB)
        return Confinement(rlimits=rlimits)

    def reap_orphans(self) -> int:
        return 0

    def close(self) -> None:
        pass
