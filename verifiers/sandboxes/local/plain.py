"""The levels without namespaces: `landlock`, for machines that refuse user namespaces, and `none`.

Both have a session, a directory and limits, and a user id where ids can be given. Landlock adds the rest, with a filter
of system calls. Of the host's files a sandbox of that level sees the system, read-only, and writes to one directory.
It has no mounts of its own, so paths are the host's (`folders` says which stand for /workspace and others); it sees the
host's processes, but can neither signal nor trace them. Landlock says nothing of UDP, nor of sockets that are files,
such as a container engine's: without a network there are no sockets at all but pairs, and with one no unix sockets.

    line = launcher(interpreter, agent, confined(…), "3")   # starts the agent: guest/confine.py

See landlock(7). Signals are confined since ABI 6 (Linux 6.12); before, a user id of its own does it.
"""

from __future__ import annotations

import ctypes
import json
import os
import site
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from verifiers.sandboxes.local import seccomp
from verifiers.sandboxes.local.root import HOME

GUEST = Path(__file__).parent.parent / "guest" / "confine.py"

_CREATE_RULESET, _VERSION = 444, 1
_READ = 1 << 0 | 1 << 2 | 1 << 3  # EXECUTE, READ_FILE, READ_DIR
_DEVICE = 1 << 1 | 1 << 2 | 1 << 14  # WRITE_FILE, READ_FILE, TRUNCATE
_SCOPES = 1 << 0 | 1 << 1  # abstract unix sockets, signals
SCOPES_ABI = 6
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""By ABI, how many rights about files there are, from the lowest bit on."""

READABLE = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/proc"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/ssl/certs"),
    *("/etc/ssl/openssl.cnf", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/localtime", "/etc/timezone"),
    *("/etc/mime.types", "/etc/hosts", "/etc/resolv.conf", "/etc/protocols", "/etc/services", "/etc/java-17-openjdk"),
    *("/dev/random", "/dev/urandom"),
)
"""What is read of the host: the system's programs, and configuration that holds no secrets."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/full")


@dataclass(frozen=True, kw_only=True)
class Confined:
    """What a process gives up before it becomes the agent. None and empty: it keeps that.

    directory: where it starts, and the only place it can write to. uid: who it becomes. rules: paths and rights of
    Landlock; handled, scoped: what there are rules about. filter: of system calls, in hex.
    """

    directory: str
    uid: int | None = None
    rules: tuple[tuple[str, int], ...] = ()
    handled: int = 0
    scoped: int = 0
    filter: str = ""


def abi() -> tuple[int, str]:
    """The version of Landlock's interface, 0 for none, and then why."""
    libc = ctypes.CDLL(None, use_errno=True)
    version: int = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION)
    return (version, "") if version > 0 else (0, os.strerror(ctypes.get_errno()))


def folders(directory: Path, workdir: str, uid: int | None) -> dict[str, str]:
    """Make the directories that a sandbox can write to; what a path inside begins with → what it is on the host."""
    places = {HOME: "home", "/tmp": "tmp", workdir.rstrip("/"): "workspace"}
    for name in set(places.values()):
        path = directory / name
        path.mkdir(mode=0o700)
        if uid is not None:
            os.chown(path, uid, uid)
    inmost_first = sorted(places.items(), key=lambda pair: -len(pair[0]))
    return {inside: str(directory / name) for inside, name in inmost_first}


def environment(places: Mapping[str, str]) -> dict[str, str]:
    """Variables that name the directories."""
    return {"HOME": places[HOME], "TMPDIR": places["/tmp"]} if places else {}


def confined(directory: Path, *, uid: int | None, network: bool, version: int) -> Confined:
    """Everything that `landlock` takes away, with `version` of its interface."""
    handled = (1 << _RIGHTS[min(version, max(_RIGHTS))]) - 1
    python = {sys.prefix, sys.base_prefix, *site.getsitepackages()}
    rules = [(path, _READ) for path in (*READABLE, *sorted(python))]
    rules += [(path, _DEVICE) for path in DEVICES]
    rules.append((str(directory), handled))
    families = [family for family in seccomp.FAMILIES if network and family != 1]  # AF_UNIX
    return Confined(
        directory=str(directory),
        uid=uid,
        rules=tuple(rules),
        handled=handled,
        scoped=_SCOPES if version >= SCOPES_ABI else 0,
        filter=seccomp.program(families=families).hex(),
    )


def launcher(interpreter: str, agent: Path, limits: Confined, *words: str) -> list[str]:
    """The command line of a process that gives up what `limits` says and is the agent then, with these words."""
    config = json.dumps({"agent": str(agent), **asdict(limits)})
    return [interpreter, "-I", "-S", "-B", str(GUEST), config, *words]
