"""What a sandbox on this machine sees as its files: bubblewrap's arguments, and what the spawner mounts for them."""

from __future__ import annotations

import os
import posixpath
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from verifiers.errors import SandboxUnsupportedError
from verifiers.sandboxes.guest.program import agent_code, agent_source
from verifiers.sandboxes.local.spawner import STAGE
from verifiers.sandboxes.spec import MIB, SandboxSpec

AGENT = "/.agent/agent.pyc"
SOURCE = "/.agent/agent.py"
HOME = "/home/sandbox"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IMAGE_PYTHONS = ("usr/bin/python3", "usr/local/bin/python3", "bin/python3")
SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
PYTHON = "/.agent/python"
"""Where an image sees the interpreter of this machine."""
ETC = (
    *("ld.so.cache", "ld.so.conf", "localtime", "mime.types", "protocols", "services", "shells", "bash.bashrc"),
    *("ca-certificates", "fonts", "ld.so.conf.d"),
)
"""What a sandbox has of the host's /etc."""
TEXTS = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n",
    "group": "root:x:0:\nsandbox:x:1000:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "resolv.conf": "",
}
ETC_BOUND = ("alternatives", "ssl/certs")
"""The same, too many links to make for each provider."""


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
        self.agent.write_bytes(agent_code())
        (self._agent / "agent.py").write_bytes(agent_source())
        (self._agent / "python").mkdir(mode=0o755)
        self._etc = state / "etc"
        _make_etc(self._etc)
        for folder in (self._agent, self._etc):
            _open_to_all(folder)
        self.python = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
        self._prefixes = list(_prefixes(venv))
        folders = [f"{prefix}/bin" for prefix in self._prefixes]
        self._path = ":".join([*folders, PATH])
        self._working: dict[str, list[str]] = {}

    def path(self, spec: SandboxSpec) -> str:
        """Where programs are looked for."""
        return self._path if spec.image == "host" else PATH

    def agents(self, spec: SandboxSpec) -> list[list[str]]:
        """Command lines that may start the agent, the best first; one alone if it is known to."""
        options = ["-I", "-S", "-B"]
        if spec.image == "host":
            return [[self.python, *options, AGENT, "3"]]
        if spec.image in self._working:
            return [self._working[spec.image]]
        ours = PYTHON + "/" + os.path.relpath(self.python, os.path.realpath(sys.base_prefix))
        theirs = [f"/{name}" for name in IMAGE_PYTHONS if os.path.lexists(f"{spec.image}/{name}")]
        return [[ours, *options, AGENT, "3"], *([one, *options, SOURCE, "3"] for one in theirs)]

    def knows(self, spec: SandboxSpec) -> bool:
        """Whether it is known what starts the agent in the image."""
        return spec.image in self._working

    def works(self, spec: SandboxSpec, agent: list[str]) -> None:
        """Remember which of the agents an image can run."""
        self._working[spec.image] = agent

    def build(self, spec: SandboxSpec) -> Root:
        """The root for a specification. Raises `SandboxUnsupportedError` for an image or mount that is not there."""
        for place in (spec.workdir, *(mount.target for mount in spec.mounts)):
            _check_place(place, spec.image)
        if spec.image == "host":
            self._check_pythons(spec)
        root = Root(_namespaces(spec), tmpfs=_caps(spec))
        if spec.image == "host":
            self._host(root, spec)
        else:
            self._image(root, spec)
        for mount in spec.mounts:
            if not os.path.exists(mount.source):
                raise SandboxUnsupportedError(f"there is no {mount.source!r} to mount at {mount.target!r}")
            root.show(os.path.realpath(mount.source), mount.target, read_only=mount.read_only)
        root.arguments += ["--remount-ro", "/dev"]
        return root

    def _check_pythons(self, spec: SandboxSpec) -> None:
        """Refuse a working directory below this Python, and a mount that would hide it."""
        for prefix in self._prefixes:
            if _is_below(spec.workdir, prefix):
                raise SandboxUnsupportedError(f"{spec.workdir!r} can not be written: {prefix!r} is Python's")
            for mount in spec.mounts:
                if _is_below(prefix, mount.target):
                    raise SandboxUnsupportedError(f"a mount at {mount.target!r} would hide Python, in {prefix!r}")

    def _host(self, root: Root, spec: SandboxSpec) -> None:
        """The system of this machine."""
        root.give("/", 0o755)  # folders such as /app can be made there; what is bound over it is read-only
        root.arguments += ["--ro-bind", "/usr", "/usr"]
        for name in SYSTEM:
            path = Path("/", name)
            if path.is_symlink():
                root.arguments += ["--symlink", os.readlink(path), str(path)]
            elif path.is_dir():
                root.arguments += ["--ro-bind", str(path), str(path)]
        root.show(str(self._etc), "/etc")
        for name in ETC_BOUND:
            if os.path.isdir(f"/etc/{name}"):
                root.arguments += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
        self._common(root, spec)
        root.folders.append((f"w0{HOME}", 0o755))
        root.arguments += ["--symlink", "/tmp", "/var/tmp"]
        root.give("/tmp", 0o1777)
        if spec.workdir not in ("/", "/tmp", HOME):
            root.give(spec.workdir, 0o755)
        for prefix in self._prefixes:  # after the working directory, which may be a folder above them, such as /root
            root.show(prefix, prefix)
        root.show(str(self._agent), os.path.dirname(AGENT))

    def _image(self, root: Root, spec: SandboxSpec) -> None:
        """A directory with a root file system, and a layer over it that takes what is written."""
        if not (os.path.isabs(spec.image) and os.path.isdir(f"{spec.image}/usr")):
            raise SandboxUnsupportedError(
                f"there is no image {spec.image!r} on this machine",
                hint="Use docker_image='host', or the path of a directory that holds a root file system, or say what "
                f"stands for it: LocalProvider(images={{{spec.image!r}: 'host'}}).",
            )
        root.binds.append((os.path.realpath(spec.image), "image"))
        # Folders that mounts need are made in the upper layer, since those below may belong to other users.
        places = ("", "/.agent", "/proc", "/dev", HOME, spec.workdir, *(mount.target for mount in spec.mounts))
        folders = {f"upper{place.rstrip('/')}": 0o755 for place in places if not os.path.isfile(spec.image + place)}
        root.folders += [*folders.items(), ("upper/tmp", 0o1777), ("work", 0o700)]
        layers = ["--overlay-src", f"{STAGE}/image", "--overlay", f"{STAGE}/upper", f"{STAGE}/work", "/"]
        root.arguments += layers
        self._common(root, spec)
        root.show(str(self._agent), os.path.dirname(AGENT))
        root.show(sys.base_prefix, PYTHON)

    def _common(self, root: Root, spec: SandboxSpec) -> None:
        root.arguments += ["--proc", "/proc", "--dev", "/dev"]
        root.give("/dev/shm", 0o1777)
        if spec.network == "open":
            root.arguments += ["--ro-bind-try", os.path.realpath("/etc/resolv.conf"), "/etc/resolv.conf"]


def _check_place(place: str, image: str) -> None:
    """Refuse what bubblewrap would only stumble over: a folder that cannot be made where it is asked for."""
    if not place.startswith("/") or ".." in place.split("/"):
        raise SandboxUnsupportedError(f"{place!r} is no absolute path without '..'")
    name = "/" + posixpath.normpath(place).lstrip("/")  # which keeps two slashes at the beginning
    if place != "/" and place.rstrip("/") != name:
        raise SandboxUnsupportedError(f"{place!r} has another name: {name!r}")
    taken = ("proc", "dev", ".agent") if image != "host" else ("proc", "dev", ".agent", "usr", "etc", *SYSTEM)
    if place.split("/")[1] in taken:
        raise SandboxUnsupportedError(f"{place!r} cannot be a folder of the sandbox: what is there is the system's")


def _is_below(place: str, folder: str) -> bool:
    return f"{place.rstrip('/')}/".startswith(f"{folder.rstrip('/')}/")


def _namespaces(spec: SandboxSpec) -> list[str]:
    shared = ["--share-net"] if spec.network == "open" else []
    own = ["--unshare-all", "--unshare-user", *shared]  # alone, the first would do without a user namespace
    own += ["--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]  # a host's root would keep them all
    return [*own, "--die-with-parent", "--as-pid-1", "--new-session", "--hostname", "sandbox", "--chdir", "/"]


def _caps(spec: SandboxSpec) -> str:
    disk = "" if spec.disk is None else f",size={spec.disk * MIB}"
    return disk if spec.inodes is None else f"{disk},nr_inodes={spec.inodes}"


def _prefixes(venv: bool) -> Iterator[str]:
    """Where this interpreter and its environment lie, as far as that is not below /usr."""
    own = [sys.base_prefix, os.path.realpath(sys.base_prefix)]  # tools that install Pythons link one to the other
    for prefix in dict.fromkeys([sys.prefix, *own] if venv else own):
        if not prefix.startswith("/usr/") and prefix != "/usr":
            yield prefix


def _open_to_all(folder: Path) -> None:
    """Let other users read it: this process may be set to make files that nobody else can."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def _make_etc(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    for name in ETC:
        source = Path("/etc", name)
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True)
        elif source.is_file():
            shutil.copyfile(source, folder / name)
    for name in ETC_BOUND:
        (folder / name).mkdir(parents=True)
    for name, text in TEXTS.items():
        (folder / name).write_text(text)
