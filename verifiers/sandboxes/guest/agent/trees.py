"""Whole trees of files: commands of the agent's own, since they may take long. `wire` has their form."""

import errno
import posix

from verifiers.sandboxes.guest.agent.files import (
    FOLDER,
    LINK,
    finish_file,
    kind_of,
    make_folders,
    open_file,
    write_part,
)
from verifiers.sandboxes.guest.agent.processes import forked
from verifiers.sandboxes.guest.agent.wire import CHUNK


def remove_tree(path: bytes) -> None:
    """A directory with all in it, or a file."""
    if kind_of(posix.lstat(path).st_mode) != FOLDER:
        posix.unlink(path)
        return
    todo = [path]
    while todo:
        below = []
        for entry in posix.scandir(todo[-1]):
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
            else:
                posix.unlink(entry.path)
        if below:
            todo += below
        else:
            posix.rmdir(todo.pop())


def put(data: bytes) -> None:
    """Write all of it to stdout."""
    while data:
        data = data[posix.write(1, data) :]


def get(size: int) -> bytes:
    """So much of stdin, which must be there."""
    parts = []
    while size:
        data = posix.read(0, min(size, CHUNK))
        if not data:
            raise OSError(errno.EPIPE, "the rest is missing")
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def put_head(kind: bytes, mode: int, path: bytes, size: int) -> None:
    """The head of an entry."""
    numbers = mode.to_bytes(4, "little") + len(path).to_bytes(4, "little") + size.to_bytes(8, "little")
    put(kind + numbers + path)


def send_tree(path: bytes) -> None:
    """A file or directory, to stdout. What is neither, below it, is an error."""
    root = posix.stat(path)
    if kind_of(root.st_mode) == FOLDER:
        put_head(b"d", root.st_mode & 0o777, b"", 0)
        send_folder(path.rstrip(b"/") + b"/", b"")
    else:
        send_file(path, b"")
    put_head(b"e", 0, b"", 0)


def send_folder(path: bytes, name: bytes) -> None:
    """What is in a directory."""
    for part in sorted(posix.listdir(path + name)):
        below = name + part
        found = posix.lstat(path + below)
        kind = kind_of(found.st_mode)
        if kind == FOLDER:
            put_head(b"d", found.st_mode & 0o777, below, 0)
            send_folder(path, below + b"/")
        elif kind == LINK:
            target = posix.readlink(path + below)
            put_head(b"l", 0o777, below, len(target))
            put(target)
        else:
            send_file(path + below, below)


def send_file(path: bytes, name: bytes) -> None:
    """One file. Its size is told first: if it shrinks meanwhile, zeros follow."""
    fd = open_file(path)
    found = posix.fstat(fd)
    left = found.st_size
    put_head(b"f", found.st_mode & 0o777, name, left)
    while left:
        data = posix.read(fd, min(left, CHUNK)) or bytes(min(left, CHUNK))
        put(data)
        left -= len(data)
    posix.close(fd)


def receive_tree(path: bytes) -> None:
    """Put what comes from stdin at `path`."""
    while True:
        head = get(17)
        kind, mode = head[:1], int.from_bytes(head[1:5], "little")
        name = get(int.from_bytes(head[5:9], "little"))
        size = int.from_bytes(head[9:], "little")
        target = path + b"/" + name if name else path
        if kind == b"e":
            return
        if kind == b"d":
            make_folders(target)
            posix.chmod(target, mode)
        elif kind == b"l":
            posix.symlink(get(size), target)
        else:
            receive_file(target, mode, size)


def receive_file(target: bytes, mode: int, size: int) -> None:
    """One file: it is in its place when it is whole."""
    token, at = b"%d.part" % posix.getpid(), 0
    while True:
        data = get(min(size - at, CHUNK))
        write_part(target, token, b"%d" % at, data)
        at += len(data)
        if at == size:
            break
    finish_file(target, token, b"%d" % mode)




TREES = {b"remove": remove_tree, b"send": send_tree, b"receive": receive_tree}


def do_tree(words: "list[bytes]", fds: "list[int]") -> int:
    """Do it in a process of its own, whose number this is. It exits with the number of an error."""
    pid = posix.fork()
    if pid:
        return pid
    code = errno.EIO
    try:
        forked()
        posix.setsid()
        for fd, target in zip(fds[::-1], (2, 1, 0)):  # noqa: B905 - of Python 3.10
            posix.dup2(fd, target)
        posix.closerange(3, 1 << 16)
        TREES[words[0]](words[1])
        code = 0
    except OSError as error:
        code = error.errno or errno.EIO
    finally:
        posix._exit(code)
