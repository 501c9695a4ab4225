"""Starts the agent without namespaces: a child gives up rights for good and runs it, the parent sees to its end.

    python -I -S confine.py '{"agent": "/…/agent.pyc", "uid": 1900000001, …}' 3

The first argument says what is given up (`Confined` of `verifiers/sandboxes/local/plain.py`), the others are the
agent's own. The agent's file is loaded before, and run after: neither it nor what it imports has to be readable for
the user that it becomes. The parent adopts what the agent's commands leave behind, and kills all of it when the agent
ends: it is what a PID namespace would have been. For Python 3.9 and later; standard library only.
"""

from __future__ import annotations

import ctypes
import json
import marshal
import os
import resource  # noqa: F401 - the agent imports it, and ctypes, when they may be out of reach
import signal
import sys
import types
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
PR_SET_SECCOMP, PR_CAPBSET_DROP, SECCOMP_MODE_FILTER = 22, 24, 2
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
PATH_BENEATH = 1
CAPSET = {"x86_64": 126, "aarch64": 91}
FILE_RIGHTS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
"""Of linux/landlock.h: the rights that a rule about a file, no directory, may have."""

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """Raise if a call failed: what cannot be given up stops the start."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, what + ": " + os.strerror(number))
    return result


class Ruleset(ctypes.Structure):
    """struct landlock_ruleset_attr"""

    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64)]


class Beneath(ctypes.Structure):
    """struct landlock_path_beneath_attr"""

    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def landlock(rules: list[tuple[str, int]], handled: int, scoped: int) -> int:
    """A ruleset: `rules` are pairs of a path and the rights below it; what is not there is left out."""
    attributes = Ruleset(handled, 0, scoped)
    size = 24 if scoped else 8
    ruleset = check(libc.syscall(CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0), "landlock")
    for path, rights in rules:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        rights &= handled if os.path.isdir(path) else handled & FILE_RIGHTS
        rule = Beneath(rights, fd)
        check(libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, ctypes.byref(rule), 0), "landlock rule for " + path)
        os.close(fd)
    return ruleset


def become(uid: int | None) -> None:
    """Another user, or the same one without capabilities."""
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)  # which drops capabilities
    elif os.geteuid() == 0:
        for capability in range(64):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        check(libc.syscall(CAPSET[os.uname().machine], header, (ctypes.c_uint32 * 6)()), "capset")


def filter_calls(code: bytes) -> None:
    """Install a filter of system calls."""

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]

    program = Program(len(code) // 8, code)
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def confine(config: dict[str, Any]) -> None:
    """Give up what `config` says."""
    os.setsid()
    os.umask(0o022)
    ruleset = landlock(config["rules"], config["handled"], config["scoped"]) if config["rules"] else None
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    become(config["uid"])
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "parent's death")
    os.chdir(config["directory"])
    if ruleset is not None:
        check(libc.syscall(RESTRICT_SELF, ruleset, 0), "landlock")
        os.close(ruleset)
    if config["filter"]:
        filter_calls(bytes.fromhex(config["filter"]))


def keep(agent: int, uid: int | None) -> int:
    """Wait for the agent's end, or for that of the process that started us, and leave no process of it; its status."""
    os.closerange(3, 256)  # the agent's connection ends with the agent
    signal.signal(signal.SIGTERM, lambda *_: os.kill(agent, signal.SIGKILL))
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    ended = status = 0
    while ended != agent:
        ended, status = os.wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if uid is not None and os.fork() == 0:
        become(uid)
        os.kill(-1, signal.SIGKILL)  # all of this user at once, and this process
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            for pid in file.read().split():
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return os.waitstatus_to_exitcode(status) & 0xFF


def main() -> None:
    config = json.loads(sys.argv[1])
    agent = types.ModuleType("agent")
    with open(config["agent"], "rb") as file:
        exec(marshal.loads(file.read()[16:]), agent.__dict__)  # noqa: S102, S302 - our own file
    check(libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")
    pid = os.fork()
    if pid:
        sys.exit(keep(pid, config["uid"]))
    confine(config)
    sys.argv = [config["agent"], *sys.argv[2:]]
    agent.main()


if __name__ == "__main__":
    main()
