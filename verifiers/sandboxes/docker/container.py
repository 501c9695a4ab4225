"""What a container is made of: a specification in the words of the engine, and how the agent starts in it.

The agent comes over the container's own input, so that nothing of it lies in the image, whose root may be read-only:
the command line holds only the few words that read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verifiers.sandboxes.guest.program import OWN_MEMORY, OWN_PIDS, agent_source
from verifiers.sandboxes.spec import MIB, SandboxSpec

HOME = "/home/sandbox"
OWNER_LABEL = "verifiers.owner"
BOOT = (
    "import sys,posix\n"
    "if sys.version_info < (3, 9): sys.exit('its python3 is '+sys.version.split()[0])\n"
    "left=int(sys.argv[3]);got=[]\n"
    "while left:\n"
    " got.append(posix.read(0,left));left-=len(got[-1])\n"
    " if not got[-1]: sys.exit('the agent did not arrive')\n"
    "exec(compile(b''.join(got),'agent','exec'),{'__name__':'__main__'})\n"
)
"""Reads the agent from stdin and becomes it; its arguments: the two ends of its connection, the agent's length."""


def described(
    spec: SandboxSpec,
    image: str,
    *,
    owner: str,
    user: str | None,
    runtime: str | None,
    inodes: bool,
) -> dict[str, Any]:
    """The body of `POST /containers/create`. inodes: whether the engine takes a limit of files for a tmpfs."""
    host: dict[str, Any] = {
        "AutoRemove": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "NetworkMode": "none" if spec.network == "none" else "bridge",
        "IpcMode": "private",
        "LogConfig": {"Type": "none", "Config": {}},  # else the engine would keep each byte of the connection
        "RestartPolicy": {"Name": "no"},
        "Mounts": [
            {"Type": "bind", "Source": one.source, "Target": one.target, "ReadOnly": one.read_only}
            for one in spec.mounts
        ],
    }
    if spec.memory is not None:
        size = (spec.memory + OWN_MEMORY) * MIB
        host |= {"Memory": size, "MemorySwap": size}  # both: no swap
    if spec.cpu is not None:
        host["NanoCpus"] = int(spec.cpu * 1e9)
    if spec.pids is not None:
        host["PidsLimit"] = spec.pids + OWN_PIDS
    if spec.disk is not None:
        host |= {"ReadonlyRootfs": True, "Tmpfs": _writable(spec, inodes=inodes)}
    if runtime is not None:
        host["Runtime"] = runtime
    body: dict[str, Any] = {
        "Image": image,
        "Entrypoint": ["python3", "-I", "-S", "-c", BOOT, "0", "1", str(len(agent_source()))],
        "Cmd": [],
        "WorkingDir": "/",
        "Labels": {OWNER_LABEL: owner, **{f"verifiers.label.{name}": text for name, text in spec.labels.items()}},
        "OpenStdin": True,
        "StdinOnce": True,  # when our connection ends, its input does, and the agent with all that runs
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }
    if user is not None:
        body["User"] = user
    return body


def _writable(spec: SandboxSpec, *, inodes: bool) -> Mapping[str, str]:
    """The directories that can be written to when the disk has a limit: each has that limit."""
    options = f"rw,exec,nosuid,nodev,size={(spec.disk or 0) * MIB},mode=1777"
    if inodes and spec.inodes is not None:
        options += f",nr_inodes={spec.inodes}"
    places = ["/tmp", "/var/tmp", HOME]
    workdir = spec.workdir.rstrip("/") or "/"
    if workdir != "/" and not any(workdir == place or workdir.startswith(f"{place}/") for place in places):
        places.append(workdir)
    return dict.fromkeys(places, options)
