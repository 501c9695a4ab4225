"""Which process has made a sandbox, so that others can tell later whether it is gone.

A process is its id and its start time, in one world: a number that is given out again is another process, and one of
another world cannot be seen from here.
"""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none, or no Linux to tell it."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    except OSError:
        return None


@cache
def world() -> str:
    """What process ids are told in: this boot and this PID namespace. Where there is no Linux, this computer."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()
