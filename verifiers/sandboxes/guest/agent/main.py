"""The first process of a sandbox: runs commands and touches files for whoever holds the other end of its connection.

    python -I -S agent.py 3          # one connected socket
    python -I -S agent.py 0 1        # where only two pipes can be had

It lives beside hostile code of the same user, so: nothing is imported after the first command (what that wrote would
run), it cannot be traced, it never opens a connection, and it ends with all of its processes when the connection does.
For Python 3.9 and later; one file when it runs, since it is put into foreign roots; no modules but C ones, since
starting it is most of a sandbox's start.
"""

import _signal  # type: ignore[import-not-found]
import gc
import posix
import select
import sys

from verifiers.sandboxes.guest.agent.agent import Agent
from verifiers.sandboxes.guest.agent.processes import Native, open_preference
from verifiers.sandboxes.guest.agent.wire import READY, VERSION


def main() -> None:
    """Serve the connection that the arguments name."""
    fds = [int(word) for word in sys.argv[1:3]]
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # the kernel drops what the first process has no handler for
    gc.disable()
    posix.umask(0o022)
    posix.closerange(max(2, *fds) + 1, 1 << 12)  # whatever it was started with is none of the commands' business
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
