"""The first process of a sandbox: runs commands and touches files for whoever holds the other end of its connection.

    python -I -S agent.py 3          # one connected socket
    python -I -S agent.py 0 1        # where only two pipes can be had

It lives beside hostile code of the same user, so: nothing is imported after the first command (what that wrote would
run), it cannot be traced, it never opens a connection, and it ends with all of its processes when the connection does.
A frame is a body's length and an id (4 bytes each, little-endian), a kind (1 byte) and the body; `sandboxes/channel.py`
is the other side.

A command is a child of the agent itself, which adopts what that leaves behind (prctl(2), PR_SET_CHILD_SUBREAPER): no
process can leave its ancestors, `wait` says when nothing is left, and killing goes by descent. So that this stays exact
while several commands run, the others are children of *supervisors*: forks of the agent that do the same for one
command each, and then for the next. A command can kill its supervisor, being of the same user: the agent hears of it at
once, and kills what the supervisor had.
For Python 3.9 and later; one file, since it is put into foreign roots; no modules but C ones, since starting it is most
of a sandbox's start.
"""

import _signal  # type: ignore[import-not-found]  # `signal` would cost more
import _socket
import errno
import gc
import posix
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # without `typing`, which would cost more than all the rest
    from collections.abc import Callable

RUN, STDIN, SIGNAL, KILL, FILE, PING = 1, 2, 3, 4, 5, 6
READY, OUT, ERR, END, CREDIT, REPLY, FAIL, PONG, STARTED, GONE = 16, 17, 18, 19, 20, 21, 22, 23, 24, 25
EXITED, TIMEOUT, SILENCE, OUTPUT, CANCELLED, LOST = 0, 1, 2, 3, 4, 5
TELL_PID, KILL_LEFTOVERS, PIPED, TREE = 1, 2, 4, 8
VERSION = 1

CHUNK = 1 << 16
HIGH = 1 << 20
"""With so many bytes waiting to be sent, no more output is read."""
JOB_BYTES = 1 << 16
"""A larger command goes to a new supervisor, which has it from its birth."""
LAST_READS = 17
"""A pipe holds at most 1 MiB: so many reads get all that was written before the command's end."""
QUICK = 0.002
"""A command that ends sooner is read once, when it has ended: most of the cost of watching it is saved."""
IDLE_SUPERVISORS = 2
KILL_SECONDS = 0.3
"""Afterwards the supervisor itself is killed, and what it had adopted with it; after three times as long, all is."""
ENTRIES = 2000
"""Of a directory, in one answer."""
ROOM_SECONDS = 2.0
"""How long a command waits for its first process where the last ones, of a fork bomb say, are only just ending."""

SIGNALS = [number for number in range(1, 32) if number not in (9, 19)]
"""A command has the default for all of them, whatever those who started the sandbox ignore."""

READ_EVENTS = select.EPOLLIN | select.EPOLLHUP


def pack(parts: "list[bytes]") -> bytes:
    """Byte strings as one."""
    out = [len(parts).to_bytes(4, "little")]
    out += [len(part).to_bytes(4, "little") for part in parts]
    return b"".join(out + parts)


def unpack(body: bytes) -> "list[bytes]":
    """What `pack` was given."""
    count = int.from_bytes(body[:4], "little")
    at = 4 + 4 * count
    parts = []
    for index in range(count):
        size = int.from_bytes(body[4 + 4 * index : 8 + 4 * index], "little")
        parts.append(body[at : at + size])
        at += size
    return parts


# --- processes ----------------------------------------------------------------------------------------------------


def parents() -> "dict[int, int]":
    """Parent by process, of all that can be seen and have not ended."""
    found = {}
    for name in posix.listdir("/proc"):
        if name.isdigit():
            try:
                fd = posix.open("/proc/" + name + "/stat", posix.O_RDONLY | posix.O_CLOEXEC)
            except OSError:
                continue
            try:
                text = posix.read(fd, 1024)
            except OSError:
                continue
            finally:
                posix.close(fd)
            state, parent = text[text.rfind(b")") + 2 :].split(None, 2)[:2]
            if state != b"Z":
                found[int(name)] = int(parent)
    return found


def descendants(root: int, known: "dict[int, int]") -> "list[int]":
    """Of process `root`, in the map `known`."""
    by_parent: dict[int, list[int]] = {}
    for pid, parent in known.items():
        by_parent.setdefault(parent, []).append(pid)
    found: list[int] = []
    todo = [root]
    while todo:
        below = by_parent.get(todo.pop(), [])
        found += below
        todo += below
    return found


def send_signal(pid: int, number: int) -> None:
    """Send it; a process that has gone is success, one of another user is not ours."""
    try:
        posix.kill(pid, number)
    except OSError:
        pass


class Native:
    """prctl(2), which Python has no other way to."""

    def __init__(self) -> None:
        # Here: after the handshake and before the first command, since both take time.
        import _ctypes
        import resource  # noqa: F401 - wait4 answers with a type of it

        self._call = _ctypes.call_function
        self._prctl = _ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl")  # type: ignore[arg-type]

    def prctl(self, option: int, value: int) -> None:
        """Set one thing of this process."""
        self._call(self._prctl, (option, value, 0, 0, 0))

    def adopt(self) -> None:
        """Become the parent of what descendants leave behind."""
        self.prctl(36, 1)

    def dumpable(self, yes: bool) -> None:
        """Whether processes of this user may trace this one and open its /proc entries."""
        self.prctl(4, 1 if yes else 0)


# --- files --------------------------------------------------------------------------------------------------------

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

# --- trees: commands of the agent's own, since they may take long -------------------------------------------------
# A tree is a row of entries: kind (1 byte: f, d, l, e for the end), mode (4), length of the path (4) and of what
# follows (8), the path, and a file's bytes or a link's target. The root's path is empty.


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


# --- supervisors: each is a process of its own --------------------------------------------------------------------


class NoFolderError(OSError):
    """A command's directory can not be entered."""


def forked() -> None:
    """Undo in a fork what the agent does with signals."""
    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)


def supervise(native: "Native | None", link: _socket.socket, job: "list[bytes]", fds: "list[int]") -> None:
    """Run jobs, one at a time, until the agent hangs up. Never returns."""
    try:
        assert native is not None
        forked()
        native.adopt()
        native.dumpable(True)  # else the next file is not its own
        prefer_to_kill(open_preference())
        native.dumpable(False)
        while True:
            carry_out(link, job, fds)
            body, ancillary, _, _ = link.recvmsg(JOB_BYTES + 1024, _socket.CMSG_SPACE(12))
            if not body:
                break
            job = unpack(body)
            data = ancillary[0][2]
            fds = [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data) - 3, 4)]
    finally:
        posix._exit(0)


def carry_out(link: _socket.socket, job: "list[bytes]", fds: "list[int]") -> None:
    """Start a command, wait for it and for what it leaves, and tell the agent of both."""
    try:
        pid = start_soon(job, fds)
    except OSError as error:
        link.send(b"F %d %s" % (error.errno or errno.EIO, stage(error)))
        return
    finally:
        close_all(fds)
    if int(job[0].split()[4]) & TELL_PID:
        link.send(b"S %d" % pid)
    cpu, peak, status = 0.0, 0, -1
    left = True
    while left:
        try:
            ended, code, usage = posix.wait4(-1, posix.WNOHANG if status >= 0 else 0)
        except ChildProcessError:
            left = False
            break
        if ended == 0:
            break
        cpu += usage[0] + usage[1]
        peak = max(peak, usage[2])
        if ended == pid:
            status = code
    link.send(b"E %d %d %d %d" % (status, cpu * 1e6, peak, left))
    if left:
        try:
            while True:
                posix.waitpid(-1, 0)
        except ChildProcessError:
            link.send(b"Z")


def stage(error: OSError) -> bytes:
    """What failed."""
    return b"cwd" if isinstance(error, NoFolderError) else b"start"


def start_soon(job: "list[bytes]", fds: "list[int]") -> int:
    """Start a command; where there is no room for one more process, a little later."""
    until = time.monotonic() + ROOM_SECONDS
    while True:
        try:
            return start(job, fds)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.005)


def start(job: "list[bytes]", fds: "list[int]") -> int:
    """Start a command; its number."""
    options = job[0].split()
    words = 2 + int(options[5])
    try:
        posix.chdir(job[1])
    except OSError as error:
        raise NoFolderError(error.errno, "cannot enter") from None
    if int(options[4]) & TREE:
        return do_tree(job[2:words], fds)
    return launch(job[2:words], dict(pair.split(b"=", 1) for pair in job[words:]), fds)


def open_preference() -> int:
    """The file that says how gladly the kernel kills this process when memory runs out; -1 if there is none."""
    try:
        return posix.open("/proc/self/oom_score_adj", posix.O_RDWR | posix.O_CLOEXEC)
    except OSError:
        return -1


def prefer_to_kill(fd: int, value: bytes = b"1000") -> None:
    """Commands inherit it: the kernel takes them before the agent."""
    if fd >= 0:
        posix.pwrite(fd, value, 0)


def close_all(fds: "list[int]") -> None:
    """Close them."""
    for fd in fds:
        posix.close(fd)


def launch(argv: "list[bytes]", env: "dict[bytes, bytes]", fds: "list[int]") -> int:
    """Start a program in a session of its own; its number."""
    path = argv[0]
    if b"/" not in path:
        for folder in env.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin").split(b":"):
            path = (folder or b".") + b"/" + argv[0]
            if posix.access(path, posix.X_OK):
                break
        else:
            raise OSError(errno.ENOENT, "not found")
    pairs = zip(fds[::-1], (2, 1, 0))  # noqa: B905 - of Python 3.10
    actions = [(posix.POSIX_SPAWN_DUP2, fd, target) for fd, target in pairs]
    return posix.posix_spawn(
        path, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=SIGNALS
    )


class Supervisor:
    """The agent's view of one: its process and the connection to it."""

    def __init__(self, pid: int, link: _socket.socket) -> None:
        self.pid = pid
        self.link = link
        self.job: Job | None = None


# --- commands -----------------------------------------------------------------------------------------------------


class Job:
    """A command that runs. `told`: the host has its end, but it has left something that runs."""

    def __init__(self, number: int, options: bytes) -> None:
        timeout, silence, keep, limit, self.flags, _ = [int(part) for part in options.split()]
        self.number = number
        self.began = self.heard = time.monotonic()
        self.deadline = self.began + timeout / 1e6 if timeout else None
        self.silence = silence / 1e6 if silence else None
        self.keep = keep
        self.limit = limit
        self.waiting: tuple[bytes, list[int]] | None = None
        self.watched = False
        self.supervisor: Supervisor | None = None
        self.pid = 0
        self.signals: list[int] = []
        self.streams: dict[int, int] = {}
        self.counts = [0, 0]
        self.stdin = -1
        self.input: list[bytes] = []
        self.input_ends = False
        self.reason = EXITED
        self.ended: tuple[int, int, int] | None = None
        self.seconds = 0.0
        self.killing = 0.0
        self.next_round = 0.0
        self.killed = 0
        self.told = False
        self.status = -1
        self.cpu = 0.0
        self.peak = 0

    def wakes(self) -> "float | None":
        """When something is to be done for it next, None for never."""
        if self.killing or self.waiting:
            return self.next_round
        if not self.watched:
            return self.began + QUICK
        if self.ended is not None:
            return None
        if self.silence is None:
            return self.deadline
        quiet = self.heard + self.silence
        return quiet if self.deadline is None else min(quiet, self.deadline)


class Agent:
    """The loop: `inward` and `outward` are the connection."""

    def __init__(self, inward: int, outward: int) -> None:
        self.inward = inward
        self.outward = outward
        self.buffer = bytearray()
        self.queue: list[bytes] = []
        self.queued = 0
        self.paused = False
        self.writing = False
        self.jobs: dict[int, Job] = {}
        self.idle: list[Supervisor] = []
        self.supervisors: dict[int, Supervisor] = {}
        self.direct: Job | None = None
        """The command whose processes are the agent's own children."""
        self.preference = -1
        self.own_preference = b"0"
        self.orphans = 0.0
        self.first_orphan = 0.0
        self.poll = select.epoll()
        self.handlers: dict[int, Callable[[int], object]] = {inward: self.receive}
        self.native: Native | None = None
        self.poll.register(inward, select.EPOLLIN)

    # --- the connection

    def send(self, kind: int, number: int, body: bytes = b"") -> None:
        """Queue a frame."""
        self.queue.append(len(body).to_bytes(4, "little") + number.to_bytes(4, "little") + bytes((kind,)) + body)
        self.queued += len(body) + 9

    def flush(self) -> None:
        """Send what can be sent."""
        data = b"".join(self.queue)
        try:
            sent = posix.write(self.outward, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.die()
        rest = data[sent:]
        self.queue = [rest] if rest else []
        self.queued = len(rest)
        if bool(rest) != self.writing:
            self.writing = bool(rest)
            self.watch_out()
        if self.paused and self.queued < HIGH // 2:
            self.paused = False
            for job in self.jobs.values():
                if job.watched:
                    self.watch_streams(job)

    def watch_out(self) -> None:
        """Wake up when more can be sent, if there is more."""
        if self.outward == self.inward:
            self.poll.modify(self.inward, select.EPOLLIN | (select.EPOLLOUT if self.writing else 0))
        elif self.writing:
            self.watch(self.outward, select.EPOLLOUT, lambda events: None)
        else:
            self.unwatch(self.outward)

    def watch(self, fd: int, events: int, handler: "Callable[[int], object]") -> None:
        """Call `handler` at these events."""
        self.handlers[fd] = handler
        self.poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """No more, if it was watched."""
        if self.handlers.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def receive(self, events: int) -> None:
        """Take in frames."""
        if not events & ~select.EPOLLOUT:
            return
        try:
            data = posix.read(self.inward, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.die()
        buffer = self.buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 9:
            end = at + 9 + int.from_bytes(buffer[at : at + 4], "little")
            if len(buffer) < end:
                break
            number = int.from_bytes(buffer[at + 4 : at + 8], "little")
            self.take(buffer[at + 8], number, bytes(buffer[at + 9 : end]))
            at = end
        del buffer[:at]

    def take(self, kind: int, number: int, body: bytes) -> None:
        """Do what a frame asks for."""
        if kind == RUN:
            self.run(number, body)
        elif kind == FILE:
            self.file(number, unpack(body))
        elif kind == PING:
            self.send(PONG, number)
        elif number in self.jobs:
            job = self.jobs[number]
            if kind == STDIN:
                if body:
                    job.input.append(body)
                else:
                    job.input_ends = True
                self.feed(job)
            elif kind == SIGNAL and job.ended is None:
                job.signals.append(int(body))
                self.signal(job)
            elif kind == KILL:
                self.kill(job, CANCELLED)
        elif kind == KILL:
            self.send(GONE, number)

    def signal(self, job: Job) -> None:
        """Send it what it was sent, once its number is known: to all of its process group, as a terminal does."""
        while job.pid and job.signals:
            send_signal(-job.pid, job.signals.pop(0))

    def die(self) -> None:
        """End with all processes: of a namespace the kernel ends them."""
        me = posix.getpid()
        while me != 1:
            found = descendants(me, parents())
            if not found:
                break
            for pid in found:
                send_signal(pid, _signal.SIGKILL)
            self.reap()
        posix._exit(0)

    # --- files

    def file(self, number: int, parts: "list[bytes]") -> None:
        """Do something with a file, and answer if an answer is waited for."""
        try:
            kind, body = REPLY, pack(OPERATIONS[parts[0]](*parts[1:]))
        except OSError as error:
            kind, body = FAIL, b"%d file" % (error.errno or errno.EIO)
        if number:
            self.send(kind, number, body)

    # --- running

    def run(self, number: int, body: bytes) -> None:
        """Start a command."""
        first = 4 + 4 * int.from_bytes(body[:4], "little")
        job = self.jobs[number] = Job(number, body[first : first + int.from_bytes(body[4:8], "little")])
        mine: list[int] = []
        theirs: list[int] = []
        try:
            for piped, write in ((job.flags & PIPED, True), (True, False), (True, False)):
                if piped:
                    ends = posix.pipe2(posix.O_CLOEXEC)
                    mine.append(ends[write])
                    theirs.append(ends[not write])
                    posix.set_blocking(ends[write], False)
        except OSError as error:
            close_all(mine + theirs)
            self.fail(job, error.errno or errno.EIO, b"start")
            return
        if job.flags & PIPED:
            job.stdin = mine.pop(0)
        for index, fd in enumerate(mine):
            job.streams[fd] = index
        job.waiting = (body, theirs)
        self.begin(job)

    def begin(self, job: Job) -> None:
        """Find a supervisor for it; where there is no room for one more process, try again a little later."""
        assert job.waiting is not None
        body, fds = job.waiting
        now = time.monotonic()
        try:
            if self.direct is None and not self.orphans:
                self.start_direct(job, body, fds)
            else:
                self.hand_over(job, body, fds)
        except BlockingIOError as error:
            job.next_round = now + 0.005
            if now - job.began < ROOM_SECONDS:
                return
            self.fail(job, error.errno or errno.EAGAIN, b"start")
        except OSError as error:
            self.fail(job, error.errno or errno.EIO, stage(error))
        if job.waiting:  # else it was dropped
            job.waiting = None
            close_all(fds)
            if job.deadline is not None:
                job.deadline += now - job.began
            job.began = job.heard = now

    def start_direct(self, job: Job, body: bytes, fds: "list[int]") -> None:
        """Start it as a child of the agent."""
        prefer_to_kill(self.preference)
        try:
            job.pid = start(unpack(body), fds)
        finally:
            prefer_to_kill(self.preference, self.own_preference)
            posix.chdir("/")
        self.direct = job
        if job.flags & TELL_PID:
            self.send(STARTED, job.number, b"%d" % job.pid)

    def hand_over(self, job: Job, body: bytes, fds: "list[int]") -> None:
        """Give it to an idle supervisor, or to a new one."""
        rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
        while self.idle and len(body) <= JOB_BYTES:
            supervisor = self.idle.pop()
            try:
                supervisor.link.sendmsg(
                    [body],
                    [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)],
                    _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL,
                )
            except OSError:
                self.dismiss(supervisor)
                continue
            break
        else:
            supervisor = self.new_supervisor(body, fds)
        supervisor.job = job
        job.supervisor = supervisor

    def new_supervisor(self, body: bytes, fds: "list[int]") -> Supervisor:
        """Fork one, which has its first job."""
        ours, link = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        pid = posix.fork()
        if pid == 0:
            below = 3
            for fd in sorted([link.fileno(), *fds]):
                posix.closerange(below, fd)
                below = fd + 1
            posix.closerange(below, 1 << 16)
            supervise(self.native, link, unpack(body), fds)
        link.close()
        supervisor = Supervisor(pid, ours)
        self.supervisors[pid] = supervisor
        self.watch(ours.fileno(), select.EPOLLIN, lambda events: self.hear(supervisor))
        return supervisor

    def dismiss(self, supervisor: Supervisor) -> None:
        """Hang up: it ends."""
        self.unwatch(supervisor.link.fileno())
        supervisor.link.close()
        if supervisor in self.idle:
            self.idle.remove(supervisor)

    def hear(self, supervisor: Supervisor) -> None:
        """A message of a supervisor."""
        try:
            message = supervisor.link.recv(256).split()
        except OSError:
            message = []
        job = supervisor.job
        if not message or job is None:
            self.lose(supervisor)
        elif message[0] == b"S":
            job.pid = int(message[1])
            self.signal(job)
            self.send(STARTED, job.number, message[1])
        elif message[0] == b"F":
            self.rest(supervisor)
            self.fail(job, int(message[1]), message[2])
        elif message[0] == b"E":
            job.ended = (int(message[1]), int(message[2]), int(message[3]))
            if message[4] == b"0":
                self.rest(supervisor)
            self.end(job, [] if message[4] == b"0" else descendants(supervisor.pid, parents()))
        else:  # nothing is left of it
            self.rest(supervisor)
            self.finish(job, 0)

    def end(self, job: Job, left: "list[int]") -> None:
        """Its first process has ended; `left` are those that have not."""
        self.close_input(job)
        job.seconds = time.monotonic() - job.began
        if left and (job.flags & KILL_LEFTOVERS or job.killing):
            self.kill(job, job.reason)
        else:
            self.finish(job, len(left))

    def lose(self, supervisor: Supervisor) -> None:
        """Something has killed it: what it had adopted is the agent's now."""
        self.dismiss(supervisor)
        self.orphans = self.first_orphan = time.monotonic()
        job, supervisor.job = supervisor.job, None
        if job is not None:
            job.supervisor = None
            job.reason = job.reason or LOST
            job.killing = job.killing or self.orphans
            job.next_round = self.orphans
        if self.direct is not None:  # its processes and those orphans cannot be told apart
            self.kill(self.direct, LOST)

    def rest(self, supervisor: Supervisor) -> None:
        """It has nothing to do."""
        if supervisor.job is not None:
            supervisor.job.supervisor = None
        supervisor.job = None
        if len(self.idle) < IDLE_SUPERVISORS:
            self.idle.append(supervisor)
        else:
            self.dismiss(supervisor)

    def fail(self, job: Job, number: int, stage: bytes) -> None:
        """It could not be started."""
        self.drop(job)
        self.send(FAIL, job.number, b"%d %s" % (number, stage))

    def finish(self, job: Job, left: int) -> None:
        """It has ended: send its last output and how it ended. `left`: processes that live on."""
        if job.told:
            self.send(GONE, job.number)
            self.drop(job)
            return
        for fd in list(job.streams):
            for _ in range(LAST_READS):
                if not self.read(job, fd):
                    break
        status, cpu, peak = job.ended or (int(_signal.SIGKILL), 0, 0)
        numbers = (status, *job.counts, job.seconds * 1e6, cpu, peak, job.reason, left, job.killed)
        self.send(END, job.number, b"%d %d %d %d %d %d %d %d %d" % numbers)
        job.told = True
        job.killing = 0.0
        if left:  # they may write on: nobody listens, but nobody is killed by it either
            job.keep = 0
        else:
            self.drop(job)

    def drop(self, job: Job) -> None:
        """Forget it."""
        if self.direct is job:
            self.direct = None
        if job.waiting:
            close_all(job.waiting[1])
            job.waiting = None
        self.close_input(job)
        for fd in list(job.streams):
            self.close_stream(job, fd)
        self.jobs.pop(job.number, None)

    # --- streams

    def watch_streams(self, job: Job) -> None:
        """Read its output as it comes."""
        for fd in job.streams:
            self.watch(fd, READ_EVENTS, self.reader(job, fd))

    def reader(self, job: Job, fd: int) -> "Callable[[int], object]":
        """What to call when there is output."""
        return lambda events: self.read(job, fd)

    def read(self, job: Job, fd: int) -> bool:
        """Some output; False if there is no more now."""
        try:
            data = posix.read(fd, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close_stream(job, fd)
            return False
        index = job.streams[fd]
        before = job.counts[index]
        job.counts[index] = before + len(data)
        job.heard = time.monotonic()
        if before < job.keep:
            self.send(ERR if index else OUT, job.number, data[: job.keep - before])
            if self.queued > HIGH and not self.paused:
                self.pause()
        if job.limit and sum(job.counts) > job.limit:
            if job.ended is None:
                self.kill(job, OUTPUT)
            elif job.told:
                self.close_stream(job, fd)
            return False
        return True

    def pause(self) -> None:
        """Read no more output until some is sent."""
        self.paused = True
        for job in self.jobs.values():
            for fd in job.streams:
                self.unwatch(fd)

    def close_stream(self, job: Job, fd: int) -> None:
        """One of its outputs has ended."""
        del job.streams[fd]
        self.unwatch(fd)
        posix.close(fd)

    def feed(self, job: Job) -> None:
        """Give a command its input. What it does not want is dropped."""
        while job.input and job.stdin >= 0:
            data = job.input[0]
            try:
                sent = posix.write(job.stdin, data)
            except BlockingIOError:
                if job.stdin not in self.handlers:
                    self.watch(job.stdin, select.EPOLLOUT, lambda events: self.feed(job))
                return
            except OSError:
                self.close_input(job)
                break
            self.send(CREDIT, job.number, b"%d" % sent)
            job.input[0] = data[sent:]
            if sent == len(data):
                del job.input[0]
        if job.stdin < 0 or job.input_ends:
            self.close_input(job)
        else:
            self.unwatch(job.stdin)

    def close_input(self, job: Job) -> None:
        """Its input ends here."""
        if job.stdin >= 0:
            self.unwatch(job.stdin)
            posix.close(job.stdin)
            job.stdin = -1
        if job.input:
            self.send(CREDIT, job.number, b"%d" % sum(map(len, job.input)))
            job.input.clear()

    # --- killing

    def kill(self, job: Job, reason: int) -> None:
        """Kill a command with all that descends from it; `finish` follows when nothing is left."""
        if job.waiting:  # it never begins
            close_all(job.waiting[1])
            job.waiting = None
        if not job.killing:
            job.reason = job.reason if job.told else job.reason or reason
            job.killing = time.monotonic()
            self.round(job)

    def round(self, job: Job) -> None:
        """Kill what is there now; there may be more the next time."""
        now = time.monotonic()
        spent = now - job.killing
        job.next_round = now + min(0.05, max(0.002, spent))
        supervisor = job.supervisor
        if self.direct is job:
            found = self.own_processes()
        elif supervisor is not None:
            found = descendants(supervisor.pid, parents())
        else:  # it has not begun, or is lost: see `sweep`
            if not self.orphans:
                job.seconds = job.seconds or now - job.began
                self.finish(job, 0)
            return
        if job.pid and job.ended is None:
            send_signal(-job.pid, _signal.SIGKILL)
        for pid in found:
            send_signal(pid, _signal.SIGKILL)
        if job.ended is not None and not job.told:
            job.killed = max(job.killed, len(found))
        if supervisor is not None:
            send_signal(supervisor.pid, _signal.SIGCONT)  # something may have stopped it
            if spent > KILL_SECONDS:
                send_signal(supervisor.pid, _signal.SIGKILL)
        elif spent > KILL_SECONDS and posix.getpid() == 1:
            send_signal(-1, _signal.SIGKILL)  # they breed faster than they are found: at one stroke, all

    def own_processes(self) -> "list[int]":
        """The agent's descendants but for supervisors and theirs: of `direct`, and of supervisors that were killed."""
        me, known = posix.getpid(), parents()
        for pid in self.supervisors:
            known.pop(pid, None)
        return descendants(me, known)

    def sweep(self) -> None:
        """Kill what killed supervisors had adopted."""
        now = time.monotonic()
        found = self.own_processes()
        if not found:
            self.orphans = 0.0
            return
        if posix.getpid() == 1 and now - self.first_orphan > 2 * KILL_SECONDS:
            send_signal(-1, _signal.SIGKILL)
        for pid in found:
            send_signal(pid, _signal.SIGKILL)
        self.orphans = now + 0.002

    def children_ended(self, woken: int) -> None:
        """The kernel has said so."""
        posix.read(woken, CHUNK)
        self.reap()

    def reap(self) -> None:
        """Take in what has ended, and see whether a command has."""
        job, alone = self.direct, False
        try:
            while True:
                pid, status, usage = posix.wait4(-1, posix.WNOHANG)
                if pid == 0:
                    break
                if self.supervisors.pop(pid, None) is None and job is not None:
                    job.cpu += usage[0] + usage[1]
                    job.peak = max(job.peak, usage[2])
                    if pid == job.pid:
                        job.status = status
        except ChildProcessError:
            alone = True
        if job is None or job.status < 0:
            return
        left = [] if alone else self.own_processes()
        if job.ended is None:
            job.ended = (job.status, int(job.cpu * 1e6), job.peak)
            self.end(job, left)
        elif not left:
            self.finish(job, 0)

    # --- the loop

    def tick(self) -> float:
        """Do what is due; seconds until the next time, -1 for none."""
        now = time.monotonic()
        if self.orphans and self.orphans <= now:
            self.sweep()
        times = [self.orphans] if self.orphans else []
        for job in list(self.jobs.values()):
            when = job.wakes()
            if when is not None and when <= now:
                if job.waiting:
                    self.begin(job)
                elif job.killing:
                    self.round(job)
                elif not job.watched:
                    job.watched = True
                    if not self.paused:
                        self.watch_streams(job)
                else:
                    self.kill(job, TIMEOUT if job.deadline is not None and job.deadline <= now else SILENCE)
                when = job.wakes() if job.number in self.jobs else None
            if when is not None:
                times.append(when)
        return max(0.0, min(times) - time.monotonic()) if times else -1

    def serve(self) -> None:
        """Until the connection ends."""
        while True:
            wait = self.tick() if self.jobs or self.orphans else -1
            if self.queue:
                self.flush()
            for fd, events in self.poll.poll(wait):
                handler = self.handlers.get(fd)  # an earlier event's may have closed it
                if handler is not None:
                    handler(events)


def main() -> None:
    """Serve the connection that the arguments name."""
    fds = [int(word) for word in sys.argv[1:3]]
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # the kernel drops what the first process has no handler for
    gc.disable()
    posix.umask(0o022)
    agent = Agent(fds[0], fds[-1])
    null = posix.open("/dev/null", posix.O_RDWR)
    for fd in {0, 1, 2} - set(fds):
        posix.dup2(null, fd)
    for fd in fds:
        posix.set_inheritable(fd, False)
        posix.set_blocking(fd, False)
    agent.send(READY, 0, b"%d %d" % (VERSION, posix.getpid()))
    agent.flush()
    woken, wake = posix.pipe2(posix.O_NONBLOCK | posix.O_CLOEXEC)
    _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
    _signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    agent.watch(woken, select.EPOLLIN, lambda events: agent.children_ended(woken))
    agent.native = Native()
    agent.preference = open_preference()
    if agent.preference >= 0:
        agent.own_preference = posix.pread(agent.preference, 16, 0).strip()
    agent.native.dumpable(False)
    agent.native.adopt()
    for place in (sys.path, sys.path_hooks, sys.meta_path, sys.path_importer_cache):
        place.clear()
    agent.serve()


if __name__ == "__main__":
    main()
