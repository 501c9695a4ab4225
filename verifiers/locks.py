"""File locks between processes and threads, of files that may be removed or replaced while others wait for them.

    with turn(folder / "one.lock"):
        ...     # nobody else who names this path is here; the file is gone afterwards

A lock belongs to the file that was opened (flock(2)), not to its path. So whoever waited looks again whether the path
still leads to what it locked.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_at(descriptor: int, path: Path) -> bool:
    """Whether the path leads to the open file, at this moment."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def turn(path: Path) -> Iterator[None]:
    """Wait for the lock of this name, hold it, and remove it: a name that is used once leaves no file behind."""
    while True:
        with path.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not is_at(file.fileno(), path):
                continue  # who had it has removed the file: another one is the lock by now
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
