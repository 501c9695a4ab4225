"""A user id of the host for each sandbox, where we have the right to give one.

    identities = Identities.claim()    # a block of ids that no other process uses; None without the rights
    uid = identities.take(); identities.give_back(uid)

The kernel counts processes (RLIMIT_NPROC) and allows signals by user id, across user namespaces: sandboxes that share
an id can starve each other of processes. Ids are taken in blocks, and a block is a lock that the kernel frees when its
holder ends, however it ends: there is nothing to sweep.
"""

from __future__ import annotations

import fcntl
import os
from collections import deque
from pathlib import Path

from verifiers.errors import SandboxBusyError
from verifiers.sandboxes.local.owners import registry

FIRST = 1_900_000_000
"""Above what systemd and container engines give out (see systemd's UIDS-GIDS); in a container less is mapped."""
BLOCK = 4096
BLOCKS = 1024
_CAPABILITIES = (0, 5, 6, 7)  # CHOWN, KILL, SETGID, SETUID of linux/capability.h
_SYS_ADMIN = 21


class Identities:
    """The ids of one provider. An id is also a group id; nobody else on the machine has it."""

    def __init__(self, first: int, lock: int) -> None:
        self._lock = lock
        self._free = deque(range(first, first + BLOCK))

    @classmethod
    def claim(cls) -> Identities | None:
        """Take a block. None: this process may not become other users. SandboxBusyError: all blocks are taken."""
        first, blocks = blocks_here()
        if not blocks:
            return None
        folder = registry() / "ids"
        folder.mkdir(mode=0o700, exist_ok=True)
        for number in range(blocks):
            lock = os.open(folder / str(number), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
            else:
                return cls(first + number * BLOCK, lock)
        raise SandboxBusyError(f"all {blocks} blocks of user ids are taken", hint="Close providers of other processes.")

    def take(self) -> int:
        """An id that no sandbox has; the one that has been free for longest."""
        if not self._free:
            raise SandboxBusyError(f"all {BLOCK} user ids of this provider are taken")
        return self._free.popleft()

    def give_back(self, uid: int) -> None:
        """It is free again: no process and no file of it is left."""
        self._free.append(uid)

    def close(self) -> None:
        """Free the block."""
        os.close(self._lock)


def blocks_here() -> tuple[int, int]:
    """First id and number of blocks that this process can give out."""
    if not may_change_user():
        return 0, 0
    extents = [_extents(Path(f"/proc/self/{kind}_map").read_text()) for kind in ("uid", "gid")]
    if all(any(first <= FIRST and end >= FIRST + BLOCKS * BLOCK for first, end in kind) for kind in extents):
        return FIRST, BLOCKS
    first, end = max(extents[0], key=lambda extent: extent[1] - extent[0])
    middle = (first + end) // 2  # accounts are given out from below, and `nobody` is at the top
    blocks = min(BLOCKS, (end - middle) // BLOCK - 1)
    if blocks < 1 or not any(low <= middle and middle + blocks * BLOCK <= high for low, high in extents[1]):
        return 0, 0
    return middle, blocks


def may_change_user() -> bool:
    """Whether this process may become other users and own what is theirs."""
    return _has(*_CAPABILITIES)


def may_mount() -> bool:
    """Whether this process may mount without a user namespace; one of those knows a single user only."""
    return _has(_SYS_ADMIN)


def _has(*capabilities: int) -> bool:
    status = Path("/proc/self/status").read_text()
    effective = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff"))
    return all(effective >> number & 1 for number in capabilities)


def _extents(text: str) -> list[tuple[int, int]]:
    rows = [[int(part) for part in line.split()] for line in text.splitlines()]
    return [(inside, inside + count) for inside, _, count in rows]
