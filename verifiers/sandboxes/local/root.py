"""What a sandbox on this machine sees as its files: bubblewrap's arguments, and what the spawner mounts for them."""

from __future__ import annotations

import os
import py_compile
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from verifiers.errors import SandboxUnsupportedError
from verifiers.sandboxes.local.spawner import STAGE
from verifiers.sandboxes.spec import MIB, SandboxSpec

AGENT = "/.agent/agent.pyc"
HOME = "/home/sandbox"
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
ETC = ("ld.so.cache", "ld.so.conf", "localtime", "mime.types", "protocols", "services", "shells", "bash.bashrc")
ETC_FOLDERS = ("alternatives", "ssl", "ca-certificates", "fonts", "ld.so.conf.d")
USER = "sandbox:x:{uid}:{gid}:sandbox:/home/sandbox:/bin/sh\n"


@dataclass(slots=True)
class Root:
    """`arguments` of bubblewrap, `binds` (source on the host, name below the spawner's stage) and `folders` there
    (name, mode) that the sandbox may write. tmpfs: options that cap what it writes."""

    arguments: list[str] = field(default_factory=list)
    binds: list[tuple[str, str]] = field(default_factory=list)
    folders: list[tuple[str, int]] = field(default_factory=list)
    tmpfs: str = ""

    def show(self, source: str, target: str, *, read_only: bool = True) -> None:
        """Let the sandbox see a path of the host at `target`, whoever may enter the folders above it."""
        name = f"b{len(self.binds)}"
        self.binds.append((source, name))
        self.arguments += ["--ro-bind" if read_only else "--bind", f"{STAGE}/{name}", target]

    def give(self, target: str, mode: int) -> None:
        """Let the sandbox write at `target`."""
        name = f"w{len(self.folders)}"
        self.folders.append((name, mode))
        self.arguments += ["--bind", f"{STAGE}/{name}", target]


class Builder:
    """Makes roots. What all have in common is made once, in `state`."""

    def __init__(self, state: Path, *, venv: bool) -> None:
        self._agent = state / "agent"
        self._agent.mkdir(mode=0o755)
        self.agent = self._agent / "agent.pyc"
        source = Path(__file__).parent.parent / "guest" / "agent.py"
        py_compile.compile(str(source), str(self.agent), dfile="agent.py", doraise=True, optimize=2)
        self._etc = state / "etc"
        _make_etc(self._etc)
        self.python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        self._prefixes = list(_prefixes(venv))
        folders = [f"{prefix}/bin" for prefix in self._prefixes]
        self.path = ":".join([*folders, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])

    def build(self, spec: SandboxSpec) -> Root:
        """The root for a specification. Raises `SandboxUnsupportedError` for an image or mount that is not there."""
        if spec.image != "host":
            raise SandboxUnsupportedError(
                f"there is no image {spec.image!r} on this machine",
                hint="Use docker_image='host', or say that this machine's system stands for it: "
                f"LocalProvider(images={{{spec.image!r}: 'host'}}).",
            )
        root = Root(_namespaces(spec), tmpfs=_caps(spec))
        root.give("/", 0o755)  # folders such as /app can be made there; what is bound over it is read-only
        root.arguments += ["--ro-bind", "/usr", "/usr"]
        for name in SYSTEM:
            path = Path("/", name)
            if path.is_symlink():
                root.arguments += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                root.arguments += ["--ro-bind", str(path), str(path)]
        root.show(str(self._etc), "/etc")
        for name in ETC_FOLDERS:
            if Path("/etc", name).is_dir():
                root.arguments += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
        root.arguments += ["--proc", "/proc", "--dev", "/dev"]
        for target, mode in (("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/dev/shm", 0o1777), (HOME, 0o755)):
            root.give(target, mode)
        for prefix in self._prefixes:
            root.show(prefix, prefix)
        root.show(str(self._agent), os.path.dirname(AGENT))
        if spec.workdir not in ("/", "/tmp", HOME):
            root.give(spec.workdir, 0o755)
        for mount in spec.mounts:
            if not os.path.exists(mount.source):
                raise SandboxUnsupportedError(f"there is no {mount.source!r} to mount at {mount.target!r}")
            root.show(os.path.realpath(mount.source), mount.target, read_only=mount.read_only)
        root.arguments += ["--remount-ro", "/dev"]
        return root


def _namespaces(spec: SandboxSpec) -> list[str]:
    shared = ["--share-net"] if spec.network == "open" else []
    own = ["--unshare-all", "--unshare-user", *shared]  # alone, the first would do without a user namespace
    own += ["--uid", "1000", "--gid", "1000"]
    return [*own, "--die-with-parent", "--as-pid-1", "--new-session", "--hostname", "sandbox", "--chdir", "/"]


def _caps(spec: SandboxSpec) -> str:
    disk = "" if spec.disk is None else f",size={spec.disk * MIB}"
    return disk if spec.inodes is None else f"{disk},nr_inodes={spec.inodes}"


def _prefixes(venv: bool) -> Iterator[str]:
    """Where this interpreter and its environment lie, as far as that is not below /usr."""
    prefixes = [sys.prefix, sys.base_prefix] if venv else [sys.base_prefix]
    for prefix in dict.fromkeys(prefixes):
        if not prefix.startswith("/usr/") and prefix != "/usr":
            yield prefix


def _make_etc(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    for name in ETC:
        if Path("/etc", name).is_file():
            shutil.copyfile(Path("/etc", name), folder / name)
    for name in ETC_FOLDERS:
        (folder / name).mkdir(mode=0o755)
    texts = {
        "passwd": "root:x:0:0:root:/root:/bin/sh\n" + USER.format(uid=1000, gid=1000),
        "group": "root:x:0:\nsandbox:x:1000:\n",
        "hosts": "127.0.0.1 localhost\n::1 localhost\n",
        "hostname": "sandbox\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
