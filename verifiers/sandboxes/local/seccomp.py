"""The system calls that a sandbox does without, as a filter for the kernel (classic BPF, seccomp(2)).

    program()      # bytes for this machine: an array of `struct sock_filter`, which bwrap's --seccomp FD takes

A list of what is denied, since programs of every kind run inside: what reaches into the kernel's rarely used parts,
into other processes or around the namespaces. It is generated from the tables below when a provider starts; there is
no library and no data file to fall out of step with them.

Denied calls answer EPERM. `clone3` answers ENOSYS: its flags lie in memory, which a filter cannot read, and libraries
then use `clone`, whose flags are looked at. Arguments are compared in their low 32 bits, which is all of them that the
kernel looks at (comparing 64 let TIOCSTI pass: CVE-2019-10063).
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from verifiers.errors import ConfigError, SandboxUnsupportedError


@dataclass(frozen=True)
class Architecture:
    """audit: AUDIT_ARCH_* of linux/audit.h; calls: numbers of asm/unistd.h of what some rule is about."""

    audit: int
    calls: Mapping[str, int]


_SHARED = {  # numbers since Linux 5.1 are the same everywhere
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "pidfd_getfd": 438,
    "mount_setattr": 442, "quotactl_fd": 443, "open_tree_attr": 467,
}  # fmt: skip
_X86_64 = {
    "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "ptrace": 101, "syslog": 103, "personality": 135,
    "vhangup": 153, "pivot_root": 155, "acct": 163, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168,
    "reboot": 169, "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179,
    "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
    "fanotify_init": 300, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311,
    "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144, "sched_setaffinity": 203, "ioprio_set": 251,
    "prlimit64": 302, "kcmp": 312, "finit_module": 313, "sched_setattr": 314, "kexec_file_load": 320,
    "bpf": 321, "userfaultfd": 323,
}  # fmt: skip
_AARCH64 = {
    "ioctl": 29, "umount2": 39, "mount": 40, "pivot_root": 41, "vhangup": 58, "quotactl": 60, "acct": 89,
    "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "syslog": 116,
    "ptrace": 117, "reboot": 142, "socket": 198, "socketpair": 199, "add_key": 217, "request_key": 218, "keyctl": 219,
    "clone": 220, "swapon": 224, "swapoff": 225, "perf_event_open": 241, "fanotify_init": 262,
    "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
    "ioprio_set": 30, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "setpriority": 140,
    "prlimit64": 261, "sched_setattr": 274, "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
}  # fmt: skip
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "x86_64": Architecture(0xC000003E, _X86_64 | _SHARED),
        "aarch64": Architecture(0xC00000B7, _AARCH64 | _SHARED),
    }
)
"""By the name that uname(2) has for the machine."""

DENIED = (
    *("mount", "umount2", "pivot_root", "setns"),  # namespaces and mounts; unshare and clone by their flags
    *("mount_setattr", "move_mount", "open_tree", "open_tree_attr", "fsopen", "fsconfig", "fsmount", "fspick"),
    *("add_key", "request_key", "keyctl"),  # keyrings know no namespace
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"),  # other processes
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot"),
    *("open_by_handle_at", "fanotify_init", "quotactl", "quotactl_fd", "swapon", "swapoff", "acct"),
    *("syslog", "vhangup", "iopl", "ioperm"),
)
"""Answered EPERM whatever their arguments are."""

FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)  # AF_NETLINK has no name off Linux
"""Families of sockets that there are inside: all others (AF_ALG, AF_VSOCK, AF_PACKET, …) are seldom used code."""

NEW_NAMESPACE = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET of linux/sched.h."""
NEW_TIME = 0x80
"""CLONE_NEWTIME, a flag of `unshare` only: for `clone` it would be part of the signal's number."""
OF_OTHERS = ("sched_setparam", "sched_setscheduler", "sched_setattr", "sched_setaffinity", "prlimit64")
"""Change a process that their first argument names; the first one, the agent, is nobody's to change."""
OF_A_KIND = {"setpriority": 0, "ioprio_set": 1}
"""The same by kind and number: of a single process, whose kind this is, and not of all of a user."""
_TERMINAL = (0x5412, 0x541C)  # TIOCSTI types into a terminal, TIOCLINUX pastes into a console
_PERSONALITIES = (0, 0x20000, 0xFFFFFFFF)  # Linux, UNAME26, and asking for the present one

# linux/bpf_common.h, linux/filter.h, linux/seccomp.h
_LOAD, _EQUAL, _ABOVE, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERRNO, _ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; both machines are little-endian
_X32 = 0x40000000  # marks calls of the x32 interface, which has numbers of its own

Instruction = tuple[int, int, int, int]


def program(
    machine: str | None = None, *, families: Collection[int] = FAMILIES, allowed: Collection[str] = ()
) -> bytes:
    """The filter for a machine, this one by default.

    families: of sockets that may be made; none of them leaves `socketpair` of AF_UNIX.
    allowed: names out of `DENIED` that are let through after all, for whoever debugs inside.
    SandboxUnsupportedError: there is no table for the machine. ConfigError: a name is not in `DENIED`.
    """
    name = machine or os.uname().machine
    if name not in ARCHITECTURES:
        hint = f"There is one for {', '.join(ARCHITECTURES)}."
        raise SandboxUnsupportedError(f"there is no filter of system calls for {name}", hint=hint)
    architecture = ARCHITECTURES[name]
    calls = architecture.calls
    if unknown := sorted(set(allowed) - set(DENIED)):
        raise ConfigError(f"nothing denies {', '.join(unknown)}", hint=f"Denied are {', '.join(DENIED)}.")
    code = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture.audit), (_RETURN, 0, 0, _KILL)]
    code.append((_LOAD, 0, 0, _NUMBER))
    if name == "x86_64":
        code += [(_ABOVE, 0, 1, _X32), _answer(errno.ENOSYS)]
    code += _rule(calls["clone3"], [_answer(errno.ENOSYS)])
    code += _rule(calls["clone"], _without_bits(0, NEW_NAMESPACE))
    code += _rule(calls["unshare"], _without_bits(0, NEW_NAMESPACE | NEW_TIME))
    code += _rule(calls["ioctl"], _none_of(1, _TERMINAL))
    code += _rule(calls["personality"], _one_of(0, _PERSONALITIES, errno.EPERM))
    code += _rule(calls["socket"], _one_of(0, families, errno.EAFNOSUPPORT))
    code += _rule(calls["socketpair"], _one_of(0, (socket.AF_UNIX,), errno.EAFNOSUPPORT))
    for call in OF_OTHERS:
        code += _rule(calls[call], _none_of(0, (1,)))
    for call, process in OF_A_KIND.items():
        first = [_argument(1), (_EQUAL, 0, 1, 1), _answer(errno.EPERM)]
        code += _rule(calls[call], [*first, *_one_of(0, (process,), errno.EPERM)])
    for call in DENIED:
        if call in calls and call not in allowed:
            code += _rule(calls[call], [_answer(errno.EPERM)])
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _answer(number: int) -> Instruction:
    return (_RETURN, 0, 0, _ERRNO | number)


def _rule(call: int, verdict: list[Instruction]) -> list[Instruction]:
    """`verdict`, which ends in a return, for this call; others skip it."""
    return [(_EQUAL, 0, len(verdict), call), *verdict]


def _argument(index: int) -> Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS + 8 * index)


def _without_bits(index: int, bits: int) -> list[Instruction]:
    return [_argument(index), (_BITS, 0, 1, bits), _answer(errno.EPERM), (_RETURN, 0, 0, _ALLOW)]


def _none_of(index: int, values: Iterable[int]) -> list[Instruction]:
    tests = [part for value in values for part in ((_EQUAL, 0, 1, value), _answer(errno.EPERM))]
    return [_argument(index), *tests, (_RETURN, 0, 0, _ALLOW)]


def _one_of(index: int, values: Iterable[int], otherwise: int) -> list[Instruction]:
    tests = [part for value in values for part in ((_EQUAL, 0, 1, int(value)), (_RETURN, 0, 0, _ALLOW))]
    return [_argument(index), *tests, _answer(otherwise)]


def open_program(code: bytes) -> int:
    """A descriptor from which `code` can be read once; for one launch, as its position moves. Close it afterwards."""
    reader, writer = os.pipe()  # a page at least, and the program is less
    try:
        os.write(writer, code)
    finally:
        os.close(writer)
    return reader
