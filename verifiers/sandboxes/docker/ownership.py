"""Whose a container is: a label with the process that made it, and whether that process is gone.

A process of this machine's present boot and PID namespace is looked for. One of elsewhere cannot be seen from here, but
a container ends with the connection to its owner: one that does not run, and is old, is nobody's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from verifiers.sandboxes.docker.container import OWNER_LABEL
from verifiers.sandboxes.host.owner import start_time, world

OLD_S = 3600.0


def mine() -> str:
    """This process, for the label."""
    pid = os.getpid()
    return f"{pid} {start_time(pid) or 0} {world()}"


def is_gone(container: Mapping[str, Any], now: float) -> bool:
    """Whether the owner of a container is, as the engine lists it; now: seconds since the epoch."""
    words = str(container.get("Labels", {}).get(OWNER_LABEL, "")).split(" ", 2)
    if len(words) == 3 and words[2] == world() and words[0].isdigit():
        if words[1] == "0":
            return not _is_there(int(words[0]))
        return str(start_time(int(words[0]))) != words[1]
    return container.get("State") != "running" and now - float(container.get("Created") or now) > OLD_S


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
