"""Limits of processes and users, for machines where no control group may be made.

They are weaker, each in a way that `weaknesses` puts into words for `Capabilities.weak`: memory is limited for each
process, processes for each user, files for each file. What nothing can limit is not claimed to be.
"""

from __future__ import annotations

import resource
from collections.abc import Collection

from verifiers.sandboxes.guest.program import OWN_PIDS
from verifiers.sandboxes.spec import MIB, SandboxSpec

SHARED_PIDS = 4096
"""Processes of a user of whom sandboxes share the id: enough for hundreds of them, too few to take a machine down."""
OPEN_FILES = 4096


def rlimits(
    spec: SandboxSpec, grouped: Collection[str], *, own_user: bool, sized: bool
) -> dict[str, tuple[int, int]]:
    """Soft and hard limits, named as in `resource` but for the prefix RLIMIT_.

    grouped: limits that a control group enforces. own_user: the sandbox has a user id to itself. sized: what it
    writes goes to a file system that is no larger than `spec.disk`.
    """
    limits = {"CORE": 0, "NOFILE": OPEN_FILES}
    if spec.memory is not None and "memory" not in grouped:
        limits["DATA"] = spec.memory * MIB  # not AS: Java and Node reserve much more than they use
    if spec.pids is not None and "pids" not in grouped:
        limits["NPROC"] = (spec.pids if own_user else max(spec.pids, SHARED_PIDS)) + OWN_PIDS
    if spec.disk is not None and not sized:
        limits["FSIZE"] = spec.disk * MIB
    return {name: _within(name, value) for name, value in limits.items()}


def _within(name: str, value: int) -> tuple[int, int]:
    """No more than this process may have: raising a hard limit needs a right."""
    hard = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    return value, value


def weaknesses(grouped: Collection[str], *, own_user: bool, sized: bool) -> dict[str, str]:
    """Of the limits that `rlimits` stands in for: how they are enforced."""
    weak = {}
    if "memory" not in grouped:
        weak["memory"] = "of each process, not of all together (RLIMIT_DATA); running out is an error in the program"
    if "pids" not in grouped:
        shared = f"of the user that all sandboxes share, at least {SHARED_PIDS} (RLIMIT_NPROC)"
        weak["pids"] = "of the sandbox's own user (RLIMIT_NPROC)" if own_user else shared
    if not sized:
        weak["disk"] = "of each file (RLIMIT_FSIZE)"
    return weak


def enforced(grouped: Collection[str], *, sized: bool) -> frozenset[str]:
    """Names of the limits of a spec that hold, weakly or not."""
    always = {"memory", "pids", "disk", "lifetime", "idle_lifetime"}
    return frozenset(always | ({"cpu"} & set(grouped)) | ({"inodes"} if sized else set()))
