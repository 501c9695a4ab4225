"""What the agent does with single files, at once."""

import errno
import posix

from verifiers.sandboxes.guest.agent.wire import ENTRIES

TYPE_CHECKING = False
if TYPE_CHECKING:  # without `typing`, which would cost more than all the rest
    from collections.abc import Callable


REGULAR, FOLDER, LINK = 0o100000, 0o040000, 0o120000


def kind_of(mode: int) -> int:
    """The part of a mode that says what it is."""
    return mode & 0o170000


def parent_of(path: bytes) -> bytes:
    """The directory that a path's last part is in."""
    return path.rstrip(b"/").rpartition(b"/")[0] or b"/"


def refuse_special(mode: int) -> None:
    """Raise unless it is a regular file."""
    if kind_of(mode) != REGULAR:
        raise OSError(errno.EISDIR if kind_of(mode) == FOLDER else errno.EINVAL, "no regular file")


def open_file(path: bytes) -> int:
    """Open a regular file for reading, never waiting for one that is none."""
    fd = posix.open(path, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC)
    try:
        refuse_special(posix.fstat(fd).st_mode)
    except OSError:
        posix.close(fd)
        raise
    return fd


def read_file(path: bytes, offset: bytes, size: bytes) -> "list[bytes]":
    """Bytes from `offset`, at most `size`, and which file they are of."""
    fd = open_file(path)
    try:
        found = posix.fstat(fd)
        parts, at, left = [], int(offset), int(size)
        while left:
            data = posix.pread(fd, left, at)
            if not data:
                break
            parts.append(data)
            at += len(data)
            left -= len(data)
    finally:
        posix.close(fd)
    return [b"%d:%d" % (found.st_dev, found.st_ino), b"".join(parts)]


def resolved(path: bytes) -> bytes:
    """`path` with its last part's links followed: what is there is replaced, not the link."""
    for _ in range(40):
        try:
            target = posix.readlink(path)
        except OSError:
            return path
        path = target if target.startswith(b"/") else parent_of(path) + b"/" + target
    raise OSError(errno.ELOOP, "too many links")


def make_folders(path: bytes) -> "list[bytes]":
    """A directory and its parents."""
    try:
        posix.mkdir(path, 0o755)
    except FileNotFoundError:
        make_folders(parent_of(path))
        posix.mkdir(path, 0o755)
    except FileExistsError:
        if kind_of(posix.stat(path).st_mode) != FOLDER:
            raise
    return []


def partial(path: bytes, token: bytes) -> bytes:
    """Where a file is kept until it is whole: beside its place, so that it can be put there at once."""
    return parent_of(path) + b"/." + token


def write_part(path: bytes, token: bytes, offset: bytes, data: bytes) -> "list[bytes]":
    """Some of what is to be `path`."""
    path = resolved(path)
    flags = posix.O_WRONLY | posix.O_NOFOLLOW | posix.O_CLOEXEC
    if offset == b"0":
        if path.endswith(b"/"):
            raise OSError(errno.EISDIR, "no regular file")
        make_folders(parent_of(path))
        try:
            refuse_special(posix.stat(path).st_mode)
        except FileNotFoundError:
            pass
        flags |= posix.O_CREAT | posix.O_EXCL
    name = partial(path, token)
    fd = posix.open(name, flags, 0o600)
    try:
        at = int(offset)
        while data:
            sent = posix.pwrite(fd, data, at)
            at += sent
            data = data[sent:]
    except OSError:
        posix.unlink(name)
        raise
    finally:
        posix.close(fd)
    return []


def finish_file(path: bytes, token: bytes, mode: bytes) -> "list[bytes]":
    """Put what was written in its place."""
    path = resolved(path)
    name = partial(path, token)
    posix.chmod(name, int(mode))
    posix.rename(name, path)
    return []


def write_file(path: bytes, token: bytes, mode: bytes, data: bytes) -> "list[bytes]":
    """Make or replace a file at once."""
    write_part(path, token, b"0", data)
    return finish_file(path, token, mode)


def abandon_file(path: bytes, token: bytes) -> "list[bytes]":
    """Throw parts away."""
    posix.unlink(partial(resolved(path), token))
    return []


def described(path: bytes) -> "list[bytes]":
    """The fields of what is there, a link itself."""
    found = posix.lstat(path)
    return [path, b"%d %d %d" % (found.st_mode, found.st_size, max(0, int(found.st_mtime * 1e6)))]


def list_folder(path: bytes, first: bytes) -> "list[bytes]":
    """What a directory holds: how many there are, then some from number `first` on."""
    names = sorted(posix.listdir(path))
    out = [b"%d" % len(names)]
    for name in names[int(first) : int(first) + ENTRIES]:
        try:
            out += described(path.rstrip(b"/") + b"/" + name)
        except OSError:
            continue  # it has gone meanwhile
    return out


def remove_path(path: bytes) -> "list[bytes]":
    """A file, or an empty directory."""
    if kind_of(posix.lstat(path).st_mode) == FOLDER:
        posix.rmdir(path)
    else:
        posix.unlink(path)
    return []




OPERATIONS: "dict[bytes, Callable[..., list[bytes]]]" = {
    b"read": read_file,
    b"write": write_file,
    b"part": write_part,
    b"finish": finish_file,
    b"abandon": abandon_file,
    b"stat": described,
    b"list": list_folder,
    b"mkdir": make_folders,
    b"remove": remove_path,
}
