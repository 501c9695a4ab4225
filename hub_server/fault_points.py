"""Places at which a test may make this process stand still, to kill it there.

    HUB_FAULT_POINT=before-commit python -m hub_server serve

The process writes `fault point before-commit` to stderr and stops itself (SIGSTOP), with every lock and connection that
it holds; the test then sends SIGKILL, as a power cut would. For tests only.
"""

from __future__ import annotations

import os
import signal
import sys
import time

POINTS = ("after-temp-file", "after-blob", "before-commit", "after-commit", "during-sweep")

VARIABLE = "HUB_FAULT_POINT"
STANDSTILL = 600.0
"""Seconds in which the test must kill the process."""


def reach(point: str) -> None:
    """Stop here, if this is the point that was asked for."""
    if os.environ.get(VARIABLE) == point:
        sys.stderr.write(f"fault point {point}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(STANDSTILL)  # the kernel stops this thread only after another one has taken the signal
