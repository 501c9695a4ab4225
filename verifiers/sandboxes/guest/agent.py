# mypy: ignore-errors
"""The first process of a sandbox: runs commands and touches files for whoever holds the other end of its connection.

    python -I -S agent.py 3          # one connected socket
    python -I -S agent.py 0 1        # where only two pipes can be had

It lives beside hostile code of the same user, so: nothing is imported after the first command (what that wrote would
run), it cannot be traced, it never opens a connection, and it ends with all of its processes when the connection does.
A frame is a body's length and an id (4 bytes each, little-endian), a kind (1 byte) and the body; `sandboxes/channel.py`
is the other side and has the list of kinds.

Commands are children of *supervisors*: forks of the agent that adopt what their command leaves behind
(PR_SET_CHILD_SUBREAPER, prctl(2)), one command each. `wait` says ECHILD when nothing is left, and then a supervisor
takes the next command. All killing is done here, by descent from the supervisor, which a process cannot leave.
For Python 3.9 and later; no module but built-in ones, since starting this file is most of a sandbox's start.
"""

import _signal
import _socket
import errno
import gc
import posix
import select
import sys
import time

RUN, STDIN, SIGNAL, KILL, FILE, PING = 1, 2, 3, 4, 5, 6
READY, OUT, ERR, END, CREDIT, REPLY, FAIL, PONG, STARTED, GONE = 16, 17, 18, 19, 20, 21, 22, 23, 24, 25
EXITED, TIMEOUT, SILENCE, OUTPUT, CANCELLED, LOST = range(6)
VERSION = 1

CHUNK = 1 << 16
WINDOW = 1 << 18
"""Bytes of a command's input that may be here and not yet read by it."""
HIGH = 1 << 20
"""With so many bytes waiting to be sent, no more output is read."""
JOB_BYTES = 1 << 16
"""A larger command goes to a new supervisor, which has it from its birth."""
IDLE_SUPERVISORS = 2
KILL_SECONDS = 0.3
"""Afterwards the supervisor itself is killed, and what it had adopted with it."""

ROOM_SECONDS = 0.5
"""How long a command waits for its first process where the last ones, of a fork bomb say, are only just ending."""

READ_EVENTS = select.EPOLLIN | select.EPOLLHUP


def pack(parts):
    """Byte strings as one."""
    out = [len(parts).to_bytes(4, "little")]
    out += [len(part).to_bytes(4, "little") for part in parts]
    return b"".join(out + list(parts))


def unpack(body):
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


def parents():
    """Parent by process, of all that can be seen."""
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


def descendants(root, known):
    """Of process `root`, in the map `known`."""
    by_parent = {}
    for pid, parent in known.items():
        by_parent.setdefault(parent, []).append(pid)
    found, todo = [], [root]
    while todo:
        below = by_parent.get(todo.pop(), ())
        found += below
        todo += below
    return found


def send_signal(pid, number):
    """Send it; a process that has gone is success, one of another user is not ours."""
    try:
        posix.kill(pid, number)
    except OSError:
        pass


class Native:
    """prctl(2), which Python has no other way to."""

    def __init__(self):
        import _ctypes  # here: after the handshake and before the first command, since both take time
        import resource  # noqa: F401 - wait4 answers with a type of it

        self._call = _ctypes.call_function
        self._prctl = _ctypes.dlsym(_ctypes.dlopen(None, 2), "prctl")

    def prctl(self, option, value):
        """0 if it was done."""
        return self._call(self._prctl, (option, value, 0, 0, 0))

    def adopt(self):
        """Become the parent of what descendants leave behind."""
        self.prctl(36, 1)

    def dumpable(self, yes):
        """Whether processes of this user may trace this one and open its /proc entries."""
        self.prctl(4, 1 if yes else 0)


# --- files --------------------------------------------------------------------------------------------------------

REGULAR, FOLDER, LINK = 0o100000, 0o040000, 0o120000


def kind_of(mode):
    """The part of a mode that says what it is."""
    return mode & 0o170000


def open_file(path, flags):
    """Open a regular file, never waiting for one that is none."""
    fd = posix.open(path, flags | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC)
    kind = kind_of(posix.fstat(fd).st_mode)
    if kind != REGULAR:
        posix.close(fd)
        raise OSError(errno.EISDIR if kind == FOLDER else errno.EINVAL, "no regular file")
    return fd


def read_file(path, offset, size):
    """(size of the file as the system tells, which file it is, bytes from `offset`, at most `size`)."""
    fd = open_file(path, posix.O_RDONLY)
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
    return [b"%d" % found.st_size, b"%d:%d" % (found.st_dev, found.st_ino), b"".join(parts)]


def resolved(path):
    """`path` with its last part's links followed: what is there is replaced, not the link."""
    for _ in range(40):
        try:
            target = posix.readlink(path)
        except OSError:
            return path
        path = target if target.startswith(b"/") else path[: path.rfind(b"/") + 1] + target
    raise OSError(errno.ELOOP, "too many links")


def make_folders(path):
    """`path` and its parents."""
    try:
        posix.mkdir(path, 0o755)
    except FileNotFoundError:
        make_folders(path[: path.rstrip(b"/").rfind(b"/")] or b"/")
        posix.mkdir(path, 0o755)
    except FileExistsError:
        if kind_of(posix.stat(path).st_mode) != FOLDER:
            raise


def write_part(path, token, offset, data):
    """Some of what is to be `path`, kept beside it under another name."""
    path = resolved(path)
    if offset == b"0":
        folder = path[: path.rfind(b"/")] or b"/"
        make_folders(folder)
        try:
            kind = kind_of(posix.stat(path).st_mode)
        except FileNotFoundError:
            kind = REGULAR
        if kind != REGULAR:
            raise OSError(errno.EISDIR if kind == FOLDER else errno.EINVAL, "no regular file")
    name = path + b"." + token
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_CLOEXEC
    fd = posix.open(name, flags | (posix.O_EXCL if offset == b"0" else 0), 0o600)
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


def finish_file(path, token, mode):
    """Put what was written in its place."""
    path = resolved(path)
    name = path + b"." + token
    posix.chmod(name, int(mode))
    posix.rename(name, path)
    return []


def write_file(path, token, mode, data):
    """Make or replace a file at once."""
    write_part(path, token, b"0", data)
    return finish_file(path, token, mode)


def abandon_file(path, token):
    """Throw parts away."""
    posix.unlink(resolved(path) + b"." + token)
    return []


def described(path, found):
    """The fields of a stat."""
    return [path, b"%d %d %d" % (found.st_mode, found.st_size, int(found.st_mtime * 1e6))]


def stat_file(path):
    """What is there."""
    return described(path, posix.lstat(path))


def list_folder(path):
    """What a directory holds."""
    out = []
    for name in sorted(posix.listdir(path)):
        full = path.rstrip(b"/") + b"/" + name
        try:
            out += described(full, posix.lstat(full))
        except OSError:
            continue
    return out


def make_folder(path):
    """A directory and its parents."""
    make_folders(path)
    return []


def remove_path(path, recursive):
    """A file, or a directory with all in it."""
    if kind_of(posix.lstat(path).st_mode) != FOLDER:
        posix.unlink(path)
        return []
    todo = [path]
    while todo and recursive == b"1":
        folder = todo[-1]
        below = []
        for entry in posix.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                below.append(entry.path)
            else:
                posix.unlink(entry.path)
        if not below:
            posix.rmdir(todo.pop())
        todo += below
    if recursive != b"1":
        posix.rmdir(path)
    return []


OPERATIONS = {
    b"read": read_file,
    b"write": write_file,
    b"part": write_part,
    b"finish": finish_file,
    b"abandon": abandon_file,
    b"stat": stat_file,
    b"list": list_folder,
    b"mkdir": make_folder,
    b"remove": remove_path,
}


# --- supervisors: each is a process of its own --------------------------------------------------------------------


def supervise(native, link, job, fds):
    """Run jobs, one at a time, until the agent hangs up. Never returns."""
    try:
        native.adopt()
        native.dumpable(True)  # else the next file is not its own
        try:
            fd = posix.open("/proc/self/oom_score_adj", posix.O_WRONLY)
            posix.write(fd, b"1000")  # commands inherit it: the kernel takes them before the agent
            posix.close(fd)
        except OSError:
            pass
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


def carry_out(link, job, fds):
    """Start a command, wait for it and for what it leaves, and tell the agent of both."""
    tell, cwd, argv, env = read_job(job)
    try:
        pid = launch(cwd, argv, env, fds)
    except OSError as error:
        stage = b"cwd" if getattr(error, "filename2", None) == "cwd" else b"start"
        link.send(b"F %d %s" % (error.errno or 5, stage))
        return
    finally:
        for fd in fds:
            posix.close(fd)
    if tell:
        link.send(b"S %d" % pid)
    cpu, peak, status = 0.0, 0, None
    while True:
        try:
            ended, code, usage = posix.wait4(-1, 0 if status is None else posix.WNOHANG)
        except ChildProcessError:
            break
        if ended == 0:
            break
        cpu += usage[0] + usage[1]
        peak = max(peak, usage[2])
        if ended == pid:
            status = code
    left = status_left()
    link.send(b"E %d %d %d %d" % (status or 0, cpu * 1e6, peak, left))
    if left:
        while True:
            try:
                posix.waitpid(-1, 0)
            except ChildProcessError:
                break
        link.send(b"Z")


def status_left():
    """1 if there is a child still."""
    try:
        return 1 if posix.waitpid(-1, posix.WNOHANG) is not None else 0
    except ChildProcessError:
        return 0


def read_job(job):
    """(whether to tell its number, directory, program and arguments, environment) of a RUN frame's parts."""
    options, cwd = job[0].split(), job[1]
    words = int(options[5])
    return int(options[4]) & 1, cwd, job[2 : 2 + words], dict(pair.split(b"=", 1) for pair in job[2 + words :])


def launch(cwd, argv, env, fds):
    """Start it in a session of its own; its number."""
    try:
        posix.chdir(cwd)
    except OSError as error:
        raise OSError(error.errno, "cannot enter", cwd, None, "cwd") from None
    actions = [(posix.POSIX_SPAWN_DUP2, fd, target) for fd, target in zip(fds[::-1], (2, 1, 0))]  # noqa: B905 - of Python 3.10
    path = argv[0]
    if b"/" not in path:
        for folder in env.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin").split(b":"):
            path = (folder or b".") + b"/" + argv[0]
            if posix.access(path, posix.X_OK):
                break
        else:
            raise OSError(errno.ENOENT, "not found")
    until = time.monotonic() + ROOM_SECONDS
    while True:
        try:
            return posix.posix_spawn(
                path, argv, env, file_actions=actions, setsid=True, setsigdef=(_signal.SIGPIPE, _signal.SIGXFSZ)
            )
        except BlockingIOError:  # EAGAIN: no more processes
            if time.monotonic() > until:
                raise
            time.sleep(0.005)


class Supervisor:
    """The agent's view of one: its process and the connection to it."""

    def __init__(self, pid, link):
        self.pid = pid
        self.link = link
        self.job = None


# --- commands -----------------------------------------------------------------------------------------------------


class Job:
    """A command that runs."""

    def __init__(self, number, options):
        timeout, silence, keep, limit, flags = [int(part) for part in options.split()[:5]]
        self.number = number
        self.began = self.heard = time.monotonic()
        self.deadline = self.began + timeout / 1e6 if timeout else None
        self.silence = silence / 1e6 if silence else None
        self.keep = keep
        self.limit = limit
        self.kill_rest = flags & 2
        self.piped = flags & 4
        self.supervisor = None
        self.pid = 0
        self.streams = {}
        self.counts = [0, 0]
        self.stdin = -1
        self.input = []
        self.input_ends = False
        self.reason = EXITED
        self.ended = None
        self.seconds = 0.0
        self.killing = 0.0
        self.next_round = 0.0
        self.killed = 0
        self.told = False

    def wakes(self):
        """When something is to be done for it next, None for never."""
        if self.killing:
            return self.next_round
        if self.ended is not None:
            return None
        if self.silence is None:
            return self.deadline
        quiet = self.heard + self.silence
        return quiet if self.deadline is None else min(quiet, self.deadline)


class Agent:
    """The loop."""

    def __init__(self, inward, outward):
        self.inward = inward
        self.outward = outward
        self.buffer = bytearray()
        self.queue = []
        self.queued = 0
        self.paused = False
        self.jobs = {}
        self.idle = []
        self.supervisors = {}
        self.orphans = 0.0
        self.poll = select.epoll()
        self.handlers = {inward: self.receive}
        self.poll.register(inward, select.EPOLLIN)
        self.writing = False
        self.native = None
        self.files = {}

    # --- the connection

    def send(self, kind, number, body=b""):
        """Queue a frame."""
        head = len(body).to_bytes(4, "little") + number.to_bytes(4, "little") + bytes((kind,))
        self.queue.append(head + body)
        self.queued += len(body) + 9

    def flush(self):
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
                for fd in job.streams:
                    self.poll.register(fd, READ_EVENTS)

    def watch_out(self):
        if self.outward == self.inward:
            self.poll.modify(self.inward, select.EPOLLIN | (select.EPOLLOUT if self.writing else 0))
        elif self.writing:
            self.handlers[self.outward] = lambda events: None
            self.poll.register(self.outward, select.EPOLLOUT)
        else:
            self.poll.unregister(self.outward)

    def receive(self, events):
        """Take in frames."""
        if not events & ~select.EPOLLOUT:
            return
        try:
            data = posix.read(self.inward, WINDOW)
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
            size = int.from_bytes(buffer[at : at + 4], "little")
            if len(buffer) - at < 9 + size:
                break
            number = int.from_bytes(buffer[at + 4 : at + 8], "little")
            kind, body = buffer[at + 8], bytes(buffer[at + 9 : at + 9 + size])
            at += 9 + size
            self.take(kind, number, body)
        del buffer[:at]

    def take(self, kind, number, body):
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
            elif kind == SIGNAL and job.ended is None and job.pid:
                send_signal(job.pid, int(body))
            elif kind == KILL:
                self.kill(job, CANCELLED)

    def die(self):
        """End with all processes: of a namespace the kernel ends them."""
        me = posix.getpid()
        if me != 1:
            while True:
                found = descendants(me, parents())
                if not found:
                    break
                for pid in found:
                    send_signal(pid, _signal.SIGKILL)
                self.reap()
        posix._exit(0)

    # --- files

    def file(self, number, parts):
        """Do something with a file and answer."""
        try:
            self.send(REPLY, number, pack(OPERATIONS[parts[0]](*parts[1:])))
        except OSError as error:
            self.send(FAIL, number, b"%d file" % (error.errno or errno.EIO))

    # --- running

    def run(self, number, body):
        """Start a command."""
        parts = unpack(body)
        job = self.jobs[number] = Job(number, parts[0])
        mine, theirs = [], []
        try:
            if job.piped:
                read, write = posix.pipe2(posix.O_CLOEXEC)
                theirs.append(read)
                mine.append(write)
            for _ in range(2):
                read, write = posix.pipe2(posix.O_CLOEXEC)
                theirs.append(write)
                mine.append(read)
            for fd in mine:
                posix.set_blocking(fd, False)
            self.hand_over(job, parts, len(body), theirs)
        except OSError as error:
            for fd in mine:
                posix.close(fd)
            self.fail(job, error.errno or errno.EIO, b"start")
            return
        finally:
            for fd in theirs:
                posix.close(fd)
        if job.piped:
            job.stdin = mine.pop(0)
        for index, fd in enumerate(mine):
            job.streams[fd] = index
            self.handlers[fd] = lambda events, fd=fd: self.read(job, fd)
            if not self.paused:
                self.poll.register(fd, READ_EVENTS)

    def hand_over(self, job, parts, size, fds):
        """Give it to an idle supervisor, or to a new one."""
        while self.idle and size <= JOB_BYTES:
            supervisor = self.idle.pop()
            rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
            try:
                supervisor.link.sendmsg(
                    [pack(parts)],
                    [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)],
                    _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL,
                )
            except OSError:
                self.dismiss(supervisor)
                continue
            break
        else:
            supervisor = self.new_supervisor(parts, fds)
        supervisor.job = job
        job.supervisor = supervisor

    def new_supervisor(self, parts, fds):
        """Fork one, which has its first job."""
        ours, link = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        pid = posix.fork()
        if pid == 0:
            kept = sorted([link.fileno(), *fds])
            below = 3
            for fd in kept:
                posix.closerange(below, fd)
                below = fd + 1
            posix.closerange(below, 1 << 16)
            supervise(self.native, link, parts, fds)
        link.close()
        supervisor = Supervisor(pid, ours)
        fd = ours.fileno()
        self.supervisors[pid] = supervisor
        self.handlers[fd] = lambda events: self.hear(supervisor)
        self.poll.register(fd, select.EPOLLIN)
        return supervisor

    def dismiss(self, supervisor):
        """Hang up: it ends."""
        fd = supervisor.link.fileno()
        if fd >= 0:
            self.poll.unregister(fd)
            del self.handlers[fd]
            supervisor.link.close()
        if supervisor in self.idle:
            self.idle.remove(supervisor)

    def hear(self, supervisor):
        """A message of a supervisor."""
        try:
            message = supervisor.link.recv(256).split()
        except OSError:
            message = []
        job = supervisor.job
        if not message:  # something of this user has killed it
            self.dismiss(supervisor)
            self.reap()
            self.orphans = time.monotonic()
            if job is not None and job.supervisor is supervisor:
                job.reason = job.reason or LOST
                job.killing = job.killing or self.orphans
                job.supervisor = None
            return
        kind = message[0]
        if kind == b"S":
            job.pid = int(message[1])
            self.send(STARTED, job.number, message[1])
        elif kind == b"F":
            self.fail(job, int(message[1]), message[2])
            self.rest(supervisor)
        elif kind == b"E":
            self.close_input(job)
            job.ended = (int(message[1]), int(message[2]), int(message[3]))
            job.seconds = time.monotonic() - job.began
            if message[4] == b"0":
                self.rest(supervisor)
                self.finish(job, 0)
            elif job.kill_rest or job.killing:
                self.kill(job, job.reason)
            else:
                self.finish(job, len(descendants(supervisor.pid, parents())))
        else:  # Z: nothing is left of it
            self.rest(supervisor)
            if job.told:
                self.send(GONE, job.number)
                self.drop(job)
            else:
                self.finish(job, 0)

    def rest(self, supervisor):
        """It has nothing to do."""
        supervisor.job = None
        if len(self.idle) < IDLE_SUPERVISORS:
            self.idle.append(supervisor)
        else:
            self.dismiss(supervisor)

    def fail(self, job, number, stage):
        """It could not be started."""
        self.drop(job)
        self.send(FAIL, job.number, b"%d %s" % (number, stage))

    def finish(self, job, left):
        """It has ended: send its last output and how it ended. `left`: processes that live on."""
        for fd in list(job.streams):
            while self.read(job, fd, True):
                pass
        status, cpu, peak = job.ended or (_signal.SIGKILL, 0, 0)
        numbers = (status, *job.counts, job.seconds * 1e6, cpu, peak, job.reason, left, job.killed)
        self.send(END, job.number, b"%d %d %d %d %d %d %d %d %d" % numbers)
        job.told = True
        job.killing = 0.0
        if left:  # they may write on: nobody listens, but nobody is killed by it either
            job.keep = 0
        else:
            self.drop(job)

    def drop(self, job):
        """Forget it."""
        self.close_input(job)
        for fd in list(job.streams):
            self.close_stream(job, fd)
        self.jobs.pop(job.number, None)

    # --- streams

    def read(self, job, fd, last=False):
        """Some output; False if there is none now."""
        try:
            data = posix.read(fd, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close_stream(job, fd)
            if job.told and not job.streams:
                self.drop(job)
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
            if job.told:
                self.drop(job)
            elif not job.killing and job.ended is None:
                self.kill(job, OUTPUT)
            elif last:
                return False
        return True

    def pause(self):
        """Read no more output until some is sent."""
        self.paused = True
        for job in self.jobs.values():
            for fd in job.streams:
                self.poll.unregister(fd)

    def close_stream(self, job, fd):
        del job.streams[fd]
        del self.handlers[fd]
        if not self.paused:
            self.poll.unregister(fd)
        posix.close(fd)

    def feed(self, job, events=0):
        """Give a command its input."""
        if job.stdin < 0:
            job.input.clear()
            return
        while job.input:
            data = job.input[0]
            try:
                sent = posix.write(job.stdin, data)
            except BlockingIOError:
                if job.stdin not in self.handlers:
                    self.handlers[job.stdin] = lambda events: self.feed(job)
                    self.poll.register(job.stdin, select.EPOLLOUT)
                return
            except OSError:  # it does not read any more: its own affair
                self.close_input(job)
                return
            self.send(CREDIT, job.number, b"%d" % sent)
            if sent < len(data):
                job.input[0] = data[sent:]
            else:
                job.input.pop(0)
        if job.stdin in self.handlers:
            self.poll.unregister(job.stdin)
            del self.handlers[job.stdin]
        if job.input_ends:
            self.close_input(job)

    def close_input(self, job):
        if job.stdin >= 0:
            if job.stdin in self.handlers:
                self.poll.unregister(job.stdin)
                del self.handlers[job.stdin]
            posix.close(job.stdin)
            job.stdin = -1
        job.input.clear()

    # --- killing

    def kill(self, job, reason):
        """Kill a command with all that descends from it; `finish` follows when nothing is left."""
        if job.told and not job.supervisor:
            return
        if not job.killing:
            job.reason = job.reason or reason
            job.killing = time.monotonic()
            self.round(job)

    def round(self, job):
        """Kill what is there now; there may be more the next time."""
        now = time.monotonic()
        job.next_round = now + min(0.05, max(0.002, now - job.killing))
        supervisor = job.supervisor
        if supervisor is None:  # lost: what it had adopted is the agent's, see `sweep`
            if not self.orphans:
                job.seconds = job.seconds or now - job.began
                self.finish(job, 0)
            return
        if job.pid and job.ended is None:
            send_signal(-job.pid, _signal.SIGKILL)
        found = descendants(supervisor.pid, parents())
        for pid in found:
            send_signal(pid, _signal.SIGKILL)
        job.killed = max(job.killed, len(found)) if job.ended is not None else job.killed
        send_signal(supervisor.pid, _signal.SIGCONT)  # something may have stopped it
        if now - job.killing > KILL_SECONDS:
            send_signal(supervisor.pid, _signal.SIGKILL)

    def sweep(self):
        """Kill what killed supervisors had adopted: nothing else has the agent for its parent."""
        self.reap()
        me = posix.getpid()
        known = parents()
        strangers = [pid for pid, parent in known.items() if parent == me and pid not in self.supervisors]
        if not strangers:
            self.orphans = 0.0
            return
        for stranger in strangers:
            for pid in [stranger, *descendants(stranger, known)]:
                send_signal(pid, _signal.SIGKILL)
        self.orphans = time.monotonic() + 0.002

    def reap(self):
        """Take in what has ended."""
        try:
            while True:
                pid, _ = posix.waitpid(-1, posix.WNOHANG)
                if pid == 0:
                    return
                self.supervisors.pop(pid, None)
        except ChildProcessError:
            pass

    # --- the loop

    def tick(self):
        """Do what is due; seconds until the next time, -1 for none."""
        soonest = None
        now = time.monotonic()
        if self.orphans and self.orphans <= now:
            self.sweep()
        for job in list(self.jobs.values()):
            when = job.wakes()
            if when is not None and when <= now:
                if job.killing:
                    self.round(job)
                elif job.deadline is not None and job.deadline <= now:
                    self.kill(job, TIMEOUT)
                else:
                    self.kill(job, SILENCE)
                when = job.wakes() if job.number in self.jobs else None
            if when is not None:
                soonest = when if soonest is None else min(soonest, when)
        if self.orphans:
            soonest = self.orphans if soonest is None else min(soonest, self.orphans)
        return -1 if soonest is None else max(0.0, soonest - time.monotonic())

    def serve(self):
        """Until the connection ends."""
        while True:
            wait = self.tick() if self.jobs or self.orphans else -1
            if self.queue:
                self.flush()
            for fd, events in self.poll.poll(wait):
                handler = self.handlers.get(fd)
                if handler is not None:
                    handler(events)
            if len(self.supervisors) > len(self.idle):
                self.reap_dismissed()

    def reap_dismissed(self):
        for supervisor in list(self.supervisors.values()):
            if supervisor.link.fileno() < 0:
                self.reap()
                return


def main():
    fds = [int(word) for word in sys.argv[1:3]]
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # the kernel drops what the first process has no handler for
    gc.disable()
    agent = Agent(fds[0], fds[-1])
    for fd in fds:
        posix.set_inheritable(fd, False)
        posix.set_blocking(fd, False)
    null = posix.open("/dev/null", posix.O_RDWR)
    for fd in {0, 1, 2} - set(fds):
        posix.dup2(null, fd)
    agent.send(READY, 0, b"%d %d" % (VERSION, posix.getpid()))
    agent.flush()
    agent.native = Native()
    agent.native.dumpable(False)
    agent.native.adopt()
    sys.path.clear()
    sys.path_hooks.clear()
    sys.meta_path.clear()
    sys.path_importer_cache.clear()
    agent.serve()


if __name__ == "__main__":
    main()
