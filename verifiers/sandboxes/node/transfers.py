"""Files and directories on their way between a node and its client: the rows of `verifiers.sandboxes.trees`, in pieces.

On the node they lie in a folder of their own for a moment, since a provider takes paths.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from verifiers.errors import SandboxPathError
from verifiers.sandboxes.trees import TreeError, TreeWriter, read_tree

PIECE = 1 << 18
"""Bytes sent at a time."""
PREFIX = "sandboxd-"


async def sent(source: Path) -> AsyncIterator[bytes]:
    """What `source` is, in pieces. FileNotFoundError, SandboxPathError."""
    rows = read_tree(source)
    while piece := await asyncio.to_thread(_next, rows):
        yield piece


def _next(rows: Iterator[bytes]) -> bytes:
    parts, size = [], 0
    for row in rows:
        parts.append(row)
        size += len(row)
        if size >= PIECE:
            break
    return b"".join(parts)


async def received(pieces: AsyncIterator[bytes], target: Path) -> None:
    """Make `target` out of pieces, whole or not at all. SandboxPathError for what may not leave or enter."""
    writer = await asyncio.to_thread(TreeWriter, target)
    try:
        async for piece in pieces:
            await asyncio.to_thread(writer.feed, piece)
        await asyncio.to_thread(writer.finish)
    except TreeError as error:
        raise SandboxPathError(f"what was sent is no tree: {error}") from None
    finally:
        await asyncio.to_thread(writer.close)


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
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)
