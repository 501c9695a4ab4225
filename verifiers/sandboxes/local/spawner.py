"""Starts sandboxes for one provider: a small process with one thread, started as `python -I -S spawner.py FD PARENT`.

bubblewrap dies with the *thread* that started it (containers/bubblewrap#692), forking a process with many threads and
much memory is slow and unsafe, and mounts made here are seen by nobody else and vanish with the sandbox. A request is
one packet of JSON, the sandbox's connection beside it; answers are `{"id", "pid"}` and, when it is over,
`{"id", "status", "errors"}`. `{"kill": id}` ends one. When the provider's process ends, so do this and all sandboxes.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import sys
from typing import Any

PACKET = 1 << 18
STAGE = "/tmp"
"""Where a sandbox's writable files are mounted until bubblewrap has bound them: any directory that all may enter."""
ERRORS = 4096
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    result = _libc.mount(*words, ctypes.c_ulong(flags), None if options is None else options.encode())
    _check(result, f"cannot mount {target}")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


# --- in the child ---------------------------------------------------------------------------------------------------


def _own_mounts(privileged: bool) -> None:
    """Mounts from here on are this process's alone."""
    uid, gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(CLONE_NEWNS | (0 if privileged else CLONE_NEWUSER)), "cannot unshare")
    if not privileged:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    _mount(None, "/", None, MS_REC | MS_PRIVATE)


def _make_folder(path: str, mode: int, uid: int, gid: int) -> None:
    """A directory of the sandbox's own, and its parents."""
    if not os.path.isdir(path):
        _make_folder(os.path.dirname(path), 0o755, uid, gid)
        os.mkdir(path)
        os.chown(path, uid, gid)
        os.chmod(path, mode)


def _stage(request: dict[str, Any], uid: int, gid: int) -> None:
    """Mount what the sandbox may write, make its directories, and bind what it sees of the host below `STAGE`."""
    sources = [(os.open(source, os.O_PATH), name) for source, name in request["binds"]]
    options = f"mode=0755,uid={uid},gid={gid}{request['tmpfs']}"
    _mount("tmpfs", STAGE, "tmpfs", MS_NOSUID | MS_NODEV, options)
    for name, mode in request["folders"]:
        _make_folder(f"{STAGE}/{name}", mode, uid, gid)
    for fd, name in sources:
        path = f"{STAGE}/{name}"
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.mkdir(path, 0o755)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        _mount(f"/proc/self/fd/{fd}", path, None, MS_BIND | MS_REC)
        os.close(fd)


def _become(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _run(request: dict[str, Any], connection: int, arguments: int, errors: int) -> None:
    """Become bubblewrap, or the command itself where there is no `program`. Never returns."""
    try:
        for path in request["cgroups"]:
            _write(path, "0")
        privileged = os.geteuid() == 0 and request["uid"] is not None
        uid = request["uid"] if privileged else os.geteuid()
        gid = request["gid"] if privileged else os.getegid()
        keep = [connection]
        if request["program"]:
            keep += [arguments, os.open(request["seccomp"], os.O_RDONLY)]
            _own_mounts(privileged)
            _stage(request, uid, gid)
        for name, (soft, hard) in request["rlimits"].items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (soft, hard))
        if privileged and request["program"]:
            _become(uid, gid)
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 16) for fd in keep]  # out of the way of 3, 4 and 5, and of each other
        os.dup2(errors, 2)
        for index, fd in enumerate(high):
            os.dup2(fd, 3 + index)
            os.close(fd)
        os.chdir("/")
        if not request["program"]:  # no namespaces: it gives up its rights itself
            os.execve(request["command"][0], request["command"], {})
        os.execve(request["program"], ["bwrap", "--args", "4", "--seccomp", "5", "--", *request["command"]], {})
    except BaseException as error:  # boundary: the only way to tell what went wrong
        os.write(errors, (str(error) or repr(error)).encode())
    finally:
        os._exit(125)


# --- the loop -------------------------------------------------------------------------------------------------------


class Spawner:
    """Children by the id of their sandbox."""

    def __init__(self, link: socket.socket, owner: int) -> None:
        self.link = link
        self.owner = owner
        self.pids: dict[str, int] = {}
        self.running: dict[int, tuple[str, int]] = {}

    def serve(self) -> None:
        """Until the provider hangs up."""
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the provider's to handle; it hangs up when it ends
        poll = select.poll()
        poll.register(self.link, select.POLLIN)
        poll.register(woken, select.POLLIN)
        # Forks of the provider's process may hold its end of the connection for longer than it lives.
        with contextlib.suppress(OSError):
            poll.register(os.pidfd_open(self.owner), select.POLLIN)
        while True:
            for fd, _ in poll.poll():
                if fd == woken:
                    os.read(woken, 4096)
                    self.reap()
                elif fd != self.link.fileno() or not self.take():
                    return

    def take(self) -> bool:
        """One request; False when there will be none."""
        data, fds, _, _ = socket.recv_fds(self.link, PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return False
        request = json.loads(data)
        if "kill" in request:
            self.kill(request["kill"])
            return True
        try:
            self.spawn(request, fds)
        except OSError as error:  # no more processes or files: this one alone is not started
            self.tell({"id": request["id"], "status": 125, "errors": f"no room for it: {error}"})
        except Exception as error:  # boundary: all other sandboxes would end with this process
            self.tell({"id": request["id"], "status": 125, "errors": f"{type(error).__name__}: {error}"})
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        """Start one. If it raises, there is nothing of it."""
        if not fds:
            raise OSError("its connection did not arrive")
        arguments, errors = os.memfd_create("arguments"), os.memfd_create("errors")
        try:
            os.write(arguments, b"".join(os.fsencode(word) + b"\0" for word in request["arguments"]))
            os.lseek(arguments, 0, os.SEEK_SET)
            pid = os.fork()
        except BaseException:
            os.close(arguments)
            os.close(errors)
            raise
        if pid == 0:
            _run(request, fds[0], arguments, errors)
        os.close(arguments)
        self.pids[request["id"]] = pid
        self.running[pid] = (request["id"], errors)
        self.tell({"id": request["id"], "pid": pid})

    def kill(self, sandbox: str) -> None:
        """Kill its first process: the kernel ends the others with it, and bubblewrap outside ends after them."""
        pid = self.pids.get(sandbox)
        if pid is None:
            return
        try:
            with open(f"/proc/{pid}/task/{pid}/children") as file:
                inner = [int(word) for word in file.read().split()]
        except OSError:
            inner = []
        for target in inner or [pid]:
            try:
                os.kill(target, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def reap(self) -> None:
        """Take in what has ended, and tell the provider."""
        while self.running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            sandbox, errors = self.running.pop(pid)
            del self.pids[sandbox]
            text = os.pread(errors, ERRORS, 0).decode(errors="replace")
            os.close(errors)
            self.tell({"id": sandbox, "status": os.waitstatus_to_exitcode(status), "errors": text})

    def tell(self, message: dict[str, Any]) -> None:
        self.link.send(json.dumps(message).encode())


def main() -> None:
    """Serve the provider that the arguments name."""
    os.umask(0o022)  # what is made here is the sandboxes' to read
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each sandbox is one open file here
    link = socket.socket(fileno=int(sys.argv[1]))
    link.set_inheritable(False)  # else code in a sandbox could take the connections of all that start after it
    Spawner(link, int(sys.argv[2])).serve()


if __name__ == "__main__":
    main()
