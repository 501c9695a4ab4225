"""The limits of one provider's sandboxes, by whatever this machine has for it.

    confiner = Confiner(state, level="namespace")   # looks, once
    confinement = confiner.prepare("ab12", spec)    # before the first process: a group, a user id, rlimits, the filter
    confinement.evidence(); confinement.kill(); confinement.release()

Each sandbox gets a control group and a user id of its own where this process may give them, and limits of processes
for what groups do not limit. Whatever is made carries the owner's name, so that a later process can remove it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from verifiers.errors import SandboxCreationError
from verifiers.sandboxes.guest.program import OWN_MEMORY, OWN_PIDS
from verifiers.sandboxes.local import cgroups, limits, owners, seccomp
from verifiers.sandboxes.local.cgroups import Group
from verifiers.sandboxes.local.identity import Identities, may_mount
from verifiers.sandboxes.results import Capabilities, Usage
from verifiers.sandboxes.spec import Isolation, SandboxSpec

FILTER = "filter"
"""Name of the file with the compiled filter in the provider's state."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """How often limits were met so far: processes killed for memory, processes that were not started."""

    oom_kills: int = 0
    pids_refused: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """One sandbox's.

    directory: on the host, for what is the sandbox's where it has no mounts. uid: of the host, which it runs as; None:
    that of this process. cgroups: `cgroup.procs` files that its first process writes itself to. rlimits: soft and hard
    limit by name (`NOFILE`, as in `resource.RLIMIT_NOFILE`). seccomp: file of the compiled filter for bubblewrap.
    """

    confiner: Confiner
    group: Group
    directory: Path
    uid: int | None
    cgroups: tuple[str, ...]
    rlimits: dict[str, tuple[int, int]]
    seccomp: str

    def evidence(self) -> Evidence:
        """Read after every command: fast, and never waits."""
        return Evidence(self.group.oom_kills() or 0, self.group.pids_refused() or 0)

    def usage(self) -> Usage:
        """What it uses now."""
        group = self.group
        return Usage(
            memory=group.memory(), peak_memory=group.peak_memory(), pids=group.pids(), cpu_seconds=group.cpu_seconds()
        )

    def kill(self) -> None:
        """Kill all its processes at once, where there is a way beside the namespace's own; else nothing."""
        with suppress(OSError):
            self.group.kill()

    def release(self) -> bool:
        """Free what was prepared, once no process of it is left or none was started. False: the kernel is not done
        with its last process yet; try again a moment later, and at last `linger`."""
        return self.confiner.take_back(self)

    def linger(self) -> None:
        """Have it freed some time: with the next sandbox, or at the provider's end."""
        self.confiner.linger(self)


class Confiner:
    """Prepares confinements for sandboxes of one level that live below `state`, a directory of the provider's own.

    allowed_calls: names out of `seccomp.DENIED` that the filter lets through.
    """

    def __init__(self, state: Path, *, level: Isolation = "namespace", allowed_calls: Sequence[str] = ()) -> None:
        self.level = level
        self._allowed = sorted(allowed_calls)
        self.cgroups = cgroups.find()
        self.identities = Identities.claim() if level != "namespace" or may_mount() else None
        self.owner = owners.register(state, self.cgroups)
        self.owner.folder.mkdir(exist_ok=True)
        self.owner.folder.chmod(0o711)  # whatever this process's umask is
        self._filter = state / FILTER
        self._filter.write_bytes(seccomp.program(allowed=allowed_calls))
        self._sized = level == "namespace"
        # To write to, or to be known by if nothing else shows that it is there; on a disk each costs milliseconds.
        self._needs_directory = level != "namespace" or not self.cgroups.trees
        self._lingering: list[Confinement] = []

    def capabilities(self) -> Capabilities:
        """What it can limit, and how."""
        grouped, own_user = self.cgroups.limits, self.identities is not None
        weak = limits.weaknesses(grouped, own_user=own_user, sized=self._sized)
        if self._allowed:
            weak["seccomp"] = f"lets through what is denied otherwise: {', '.join(self._allowed)}"
        return Capabilities(isolation=self.level, limits=limits.enforced(grouped, sized=self._sized), weak=weak)

    def prepare(self, sandbox_id: str, spec: SandboxSpec) -> Confinement:
        """Everything that is needed before the first process starts. Leaves nothing if it raises."""
        self._retry()
        uid = None if self.identities is None else self.identities.take()
        directory = self.owner.folder / sandbox_id
        try:
            group = self.cgroups.make(
                self.owner.group_name(sandbox_id),
                memory=None if spec.memory is None else spec.memory + OWN_MEMORY,
                pids=None if spec.pids is None else spec.pids + OWN_PIDS,
                cpu=spec.cpu,
            )
        except OSError as error:
            self._give_back(uid)
            raise SandboxCreationError(f"its limits could not be set: {error}", cause=error) from error
        if self._needs_directory:
            directory.mkdir(mode=0o700)
            if uid is not None:
                os.chown(directory, uid, uid)
        return Confinement(
            confiner=self,
            group=group,
            directory=directory,
            uid=uid,
            cgroups=tuple(f"{path}/cgroup.procs" for _, path in group.places),
            rlimits=limits.rlimits(spec, self.cgroups.limits, own_user=uid is not None, sized=self._sized),
            seccomp=str(self._filter),
        )

    def take_back(self, confinement: Confinement) -> bool:
        """Free what a sandbox had; whether all of it is."""
        gone = confinement.group.remove(seconds=0) and self._cleared(confinement)
        if gone:
            self._give_back(confinement.uid)
        return gone

    def _cleared(self, confinement: Confinement) -> bool:
        return not self._needs_directory or owners.remove_tree(confinement.directory)

    def linger(self, confinement: Confinement) -> None:
        """Free it a little later."""
        self._lingering.append(confinement)

    def _give_back(self, uid: int | None) -> None:
        if self.identities is not None and uid is not None:
            self.identities.give_back(uid)

    def _retry(self) -> None:
        self._lingering = [one for one in self._lingering if not self.take_back(one)]

    def close(self) -> None:
        """Free what is left, waiting for it, and forget the owner; if something resists, a later sweep tries again."""
        for name in self.owner.sandboxes():
            owners.remove_sandbox(self.owner, name)
        if self.identities is not None:
            self.identities.close()
        if not self.owner.sandboxes():
            self.owner.leave()
