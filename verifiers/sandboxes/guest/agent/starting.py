"""Starting what a job describes; and supervisors, each a process that does so for the agent, one job at a time."""

import _socket
import errno
import posix
import sys
import time

from verifiers.sandboxes.guest.agent.processes import (
    Native,
    close_all,
    forked,
    launch,
    open_preference,
    prefer_to_kill,
)
from verifiers.sandboxes.guest.agent.trees import do_tree
from verifiers.sandboxes.guest.agent.wire import TELL_PID, TREE, unpack

JOB_BYTES = 1 << 16
"""A larger command goes to a new supervisor, which has it from its birth."""
ROOM_SECONDS = 2.0
"""How long a command waits for its first process where the last ones, of a fork bomb say, are only just ending."""


class NoFolderError(OSError):
    """A command's directory can not be entered."""


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
