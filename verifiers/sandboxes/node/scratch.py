"""A node's folder for files and directories on their way between it and its clients, since a provider takes paths."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from verifiers.locks import is_at

PREFIX = "sandboxd-"


@contextmanager
def scratch(root: Path | None = None) -> Iterator[Path]:
    """A folder for what passes through, below `root` (None: the system's for temporary files).

    Its owner holds a lock on it: folders without one were left by daemons that were killed, and are removed.
    """
    base = root or Path(tempfile.gettempdir())
    for left in base.glob(PREFIX + "*"):
        with suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left)
            finally:
                os.close(lock)
    folder, lock = _locked_folder(base)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(base: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        with suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if is_at(lock, folder):
                return folder, lock
            os.close(lock)  # another daemon that begins has taken it for one that was left, and removed it
