"""Files and folders on their way between a node and its client: tar archives in temporary files.

Both sides unpack with the filter of PEP 706 (`data`) into a new place: links out, absolute names, devices and set-id
bits do not pass. Everything here blocks: call it from a thread.
"""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from verifiers.errors import SandboxPathError

PIECE = 1 << 18
"""Bytes sent at a time."""
MEMBER = "tree"


def spooled() -> IO[bytes]:
    """A temporary file without a name."""
    return tempfile.TemporaryFile()


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder of this user's."""
    with tempfile.TemporaryDirectory(prefix="verifiers-node-") as folder:
        yield Path(folder)


def refuse_taken(target: Path) -> None:
    """FileExistsError if there is something."""
    if target.exists() or target.is_symlink():
        raise FileExistsError(f"{target} is there already")


def pack(source: Path, archive: IO[bytes]) -> None:
    """Write a file or folder into the archive. FileNotFoundError; SandboxPathError for what is neither."""
    if not source.is_dir() and not source.is_file():
        source.stat()
        raise SandboxPathError(f"{source} is no file or folder")
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT, dereference=False) as tar:
        tar.add(source.resolve(), MEMBER)


def unpack(archive: IO[bytes], target: Path) -> None:
    """Read the archive into a place that must not exist; whole or not at all. SandboxPathError for what is refused."""
    refuse_taken(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    archive.seek(0)
    with tempfile.TemporaryDirectory(prefix=".verifiers-", dir=target.parent) as folder:
        try:
            with tarfile.open(fileobj=archive, mode="r:") as tar:
                tar.extractall(folder, filter="data")
        except (tarfile.TarError, UnicodeError) as error:
            raise SandboxPathError(f"an archive holds what may not leave or enter: {error}") from error
        made = Path(folder) / MEMBER
        if not made.is_symlink() and made.exists():
            shutil.move(made, target)
            return
    raise SandboxPathError("an archive does not hold what was asked for")
