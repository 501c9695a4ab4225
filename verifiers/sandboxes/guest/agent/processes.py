"""Processes as the agent finds, starts and kills them."""

import _signal  # type: ignore[import-not-found]  # `signal` would cost more
import errno
import posix

SIGNALS = [number for number in range(1, 32) if number not in (9, 19)]
"""A command has the default for all of them, whatever those who started the sandbox ignore."""


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


def forked() -> None:
    """Undo in a fork what the agent does with signals."""
    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)


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
    try:
        return posix.posix_spawn(
            path, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=SIGNALS
        )
    except ValueError as error:  # words that no program can have
        raise OSError(errno.EINVAL, str(error)) from None
