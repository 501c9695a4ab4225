"""Files of JSON lines that grow: one writer at a time, whole lines only, whatever happens to the process."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path

from verifiers.errors import StoreError
from verifiers.locks import is_at
from verifiers.rollouts.encoding import from_json

logger = logging.getLogger(__name__)


def open_for_appending(path: Path) -> int:
    """A descriptor that appends to the file, which is made if missing, and holds its lock. StoreError if taken."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise store_error(f"can not open {path}", error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise _taken(path) from error
    except OSError as error:
        # Some network file systems have no locks; two writers would still append whole lines.
        logger.warning("can not lock %s (%s)", path, error.strerror)
    if not is_at(descriptor, path):
        # Between opening and locking, `drop` of another process has put its own file here, which it holds.
        os.close(descriptor)
        raise _taken(path)
    return descriptor


def write_whole(descriptor: int, line: bytes) -> None:
    """Write all of it, or raise OSError."""
    # One call, so that no other record can come between; a short write (a disk that is about to be full, or
    # more than 2 GiB) is finished or fails with its reason.
    view = memoryview(line)
    while view:
        view = view[os.write(descriptor, view) :]


def _taken(path: Path) -> StoreError:
    return StoreError(f"another process is writing to {path.parent}", hint="Wait for it to end, or end it.")


def cut_torn_line(descriptor: int, path: Path, then: str) -> None:
    """Make the file end with a whole line: a complete record only lacks its newline, anything else is cut off.

    `then` ends the warning about the cut.
    """
    size = os.fstat(descriptor).st_size
    start, tail = size, b""
    while start > 0 and b"\n" not in tail:
        step = min(start, 1 << 16)
        start -= step
        tail = os.pread(descriptor, step, start) + tail
    torn = tail[tail.rfind(b"\n") + 1 :]
    if not torn:
        return
    try:
        whole = isinstance(from_json(torn), dict)
    except ValueError:
        whole = False
    if whole:
        os.write(descriptor, b"\n")
        return
    logger.warning("%s: a torn last line of %d bytes is cut off; %s", path, len(torn), then)
    os.ftruncate(descriptor, size - len(torn))


def store_error(what: str, error: OSError) -> StoreError:
    """The error of a file system as ours."""
    hint = None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        hint = "Free some space, then continue with --resume: everything saved before is intact."
    return StoreError(f"{what}: {error.strerror or error}", hint=hint, cause=error)
