"""A container engine for tests: Docker's HTTP interface on a unix socket, whose containers are run by bubblewrap.

Streams, exit, limits and removal are real: a container's first process runs in namespaces and control groups of its own
and speaks over the hijacked connection. `faults` says what goes wrong: (method, a part of the path) → what, once.
"""

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import struct
import time
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from verifiers.sandboxes.local import cgroups, probe
from verifiers.sandboxes.local.launch import find_bubblewrap

IMAGE = "python:3.11-slim"
ENTER = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs"; shift; done; shift; exec "$@"'
SYSTEM = ("/etc/ld.so.cache", "/etc/alternatives", "/etc/passwd", "/etc/group")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
DROP_BEFORE, DROP_AFTER, HALF = "drop before", "drop after", "half"


class Container:
    """One container, from its creation to its removal."""

    def __init__(self, name, body, group):
        self.id, self.name, self.body, self.group = secrets.token_hex(32), name, body, group
        self.created = time.time()
        self.process = None
        self.frozen = False
        self.attached = None
        self.pumps = []

    @property
    def state(self):
        if self.process is None:
            return "created"
        return "running" if self.process.returncode is None else "exited"


class FakeEngine:
    """`async with FakeEngine(path) as engine: …`; kind: "docker" or "podman", as it says of itself."""

    def __init__(self, socket, *, kind="podman", limits=True):
        self.socket, self.kind = socket, kind
        self.images = {IMAGE: [f"PATH={PATH}", "IMAGE_SAYS=hello"], "no-python:1": [], "old-python:1": []}
        self.registry = {"fetched:1"}
        self.containers = {}
        self.faults = []
        self.requests = []
        self.starts = 0
        self._groups = cgroups.find() if limits else None
        self._server = None
        self._connections = set()

    @property
    def address(self):
        return f"unix://{self.socket}"

    async def __aenter__(self):
        self._server = await asyncio.start_unix_server(self._serve, self.socket, limit=1 << 22)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for name in list(self.containers):
            await self._remove(self.containers[name])
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    # --- HTTP

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._connections.add(task)
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _one(self, reader, writer):
        """Answer a request; whether another may follow."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        line, *headers = head.split("\r\n")
        method, target, _ = line.split(" ")
        fields = {name.lower(): text.strip() for name, _, text in (header.partition(":") for header in headers)}
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        parts = urlsplit(target)
        path = re.sub(r"^/v[0-9.]+", "", parts.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.requests.append((method, path))
        fault = self._fault(method, path)
        if fault == DROP_BEFORE:
            return False
        if isinstance(fault, int):
            status, answer = fault, {"message": "a fault"}
        elif path.endswith("/attach"):
            return await self._attach(unquote(path.split("/")[2]), reader, writer)
        else:
            status, answer = await self._answer(method, path, query, json.loads(body) if body else None)
        if fault == DROP_AFTER:
            return False
        data = b"" if answer is None else answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode())
        writer.write(data[: len(data) // 2] if fault == HALF else data)
        await writer.drain()
        return fault != HALF

    def _fault(self, method, path):
        for number, (at, part, what) in enumerate(self.faults):
            if at == method and part in path:
                del self.faults[number]
                return what
        return None

    async def _answer(self, method, path, query, body):
        match (method, path.strip("/").split("/")):
            case ("GET", ["version"]):
                name = "Podman Engine" if self.kind == "podman" else "Engine"
                return 200, {"ApiVersion": "1.44", "MinAPIVersion": "1.24", "Components": [{"Name": name}]}
            case ("GET", ["info"]):
                able = self._groups.limits if self._groups else frozenset()
                return 200, {"MemoryLimit": "memory" in able, "PidsLimit": "pids" in able,
                             "CpuCfsQuota": "cpu" in able, "CgroupVersion": "2"}  # fmt: skip
            case ("GET", ["images", *name, "json"]):
                name = unquote("/".join(name))
                if name not in self.images:
                    return 404, {"message": f"No such image: {name}"}
                return 200, {"Id": name, "Config": {"Env": self.images[name]}}
            case ("POST", ["images", "create"]):
                return self._fetch(query["fromImage"])
            case ("POST", ["containers", "create"]):
                return self._create(query["name"], body)
            case ("GET", ["containers", "json"]):
                return 200, self._list(query)
            case (_, ["containers", name, *rest]):
                found = self.containers.get(name) or next((c for c in self.containers.values() if c.id == name), None)
                if found is None:
                    return 404, {"message": f"No such container: {name}"}
                return await self._of_container(method, rest, found)
        return 404, {"message": "page not found"}

    async def _of_container(self, method, rest, found):
        match (method, rest):
            case ("POST", ["start"]):
                return await self._start(found)
            case ("GET", ["json"]):
                return 200, {"Id": found.id, "State": {"Status": found.state}}
            case ("GET", ["stats"]):
                group = found.group
                return 200, {"pids_stats": {"current": group.pids() if group else None},
                             "memory_stats": {"usage": group.memory() if group else None}}  # fmt: skip
            case ("DELETE", []):
                await self._remove(found)
                return 204, None
        return 404, {"message": "page not found"}

    # --- images

    def _fetch(self, name):
        lines = [{"status": f"Pulling from {name}"}]
        if name in self.registry:
            self.images[name] = [f"PATH={PATH}"]
            lines.append({"status": f"Downloaded {name}"})
        else:
            lines.append({"errorDetail": {"message": "x"}, "error": f"manifest for {name} not found: manifest unknown"})
        return 200, b"\r\n".join(json.dumps(line).encode() for line in lines)

    # --- containers

    def _create(self, name, body):
        if body["Image"] not in self.images:
            return 404, {"message": f"No such image: {body['Image']}"}
        if name in self.containers:
            return 409, {"message": f"The container name {name} is already in use"}
        for mount in body["HostConfig"]["Mounts"]:
            if not Path(mount["Source"]).exists():
                return 400, {"message": f"bind source path does not exist: {mount['Source']}"}
        host, group = body["HostConfig"], None
        if self._groups is not None:
            memory, cpu = host.get("Memory"), host.get("NanoCpus")
            group = self._groups.make(f"fake-{name}", memory=memory and memory >> 20, pids=host.get("PidsLimit"),
                                      cpu=cpu and cpu / 1e9)  # fmt: skip
        self.containers[name] = made = Container(name, body, group)
        return 201, {"Id": made.id, "Warnings": []}

    def _list(self, query):
        wanted = json.loads(query.get("filters", "{}")).get("label", [])
        found = [one for one in self.containers.values() if all(label in one.body["Labels"] for label in wanted)]
        return [{"Id": one.id, "Names": [f"/{one.name}"], "Labels": one.body["Labels"], "State": one.state,
                 "Created": int(one.created)} for one in found]  # fmt: skip

    async def _start(self, found):
        if found.process is not None:
            return 304, None
        image = found.body["Image"]
        if image == "no-python:1":
            return 400, {"message": 'OCI runtime create failed: exec: "python3": executable file not found in $PATH'}
        self.starts += 1
        line = [*found.body["Entrypoint"], *found.body["Cmd"]]
        if image == "old-python:1":
            line[4] = "import sys; sys.version_info = (3, 8); sys.version = '3.8.0 (old)'\n" + line[4]
        groups = [path for _, path in found.group.places] if found.group else []
        found.process = await asyncio.create_subprocess_exec(
            "sh", "-c", ENTER, "sh", *groups, "--", *_bubblewrap(found), "--", *line,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={},
            start_new_session=True,
        )  # fmt: skip
        found.pumps = [asyncio.ensure_future(self._run(found))]
        return 204, None

    async def _run(self, found):
        process = found.process
        reader, writer = found.attached or (None, None)
        inward = asyncio.ensure_future(_feed(reader, process.stdin)) if reader else None
        await asyncio.gather(_frames(found, process.stdout, 1, writer), _frames(found, process.stderr, 2, writer))
        await process.wait()
        if inward is not None:
            inward.cancel()
        if writer is not None:
            writer.close()
        if found.body["HostConfig"]["AutoRemove"]:
            self._forget(found)

    async def _attach(self, name, reader, writer):
        found = self.containers.get(name)
        if found is None:
            writer.write(b'HTTP/1.1 404 X\r\nContent-Type: application/json\r\n\r\n{"message": "No such container"}')
            return False
        found.attached = (reader, writer)
        writer.write(b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.multiplexed-stream\r\n"
                     b"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n")  # fmt: skip
        await writer.wait_closed()
        return False

    async def _remove(self, found):
        if found.group is not None:
            with contextlib.suppress(OSError):
                found.group.kill()
        if found.process is not None and found.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(found.process.pid, signal.SIGKILL)  # not its own `kill`, which may take its status from asyncio
            await asyncio.wait(found.pumps, timeout=10)
        elif found.attached is not None:
            found.attached[1].close()
        self._forget(found)

    def _forget(self, found):
        if self.containers.pop(found.name, None) is not None and found.group is not None:
            found.group.remove()

    def kill(self, name):
        """The container dies, as when its memory is gone."""
        self.containers[name].group.kill() if self.containers[name].group else self.containers[name].process.kill()


def _bubblewrap(found):
    """The command line that gives a container what it was created with."""
    host, base = found.body["HostConfig"], find_bubblewrap()
    uid, _, gid = found.body.get("User", "0:0").partition(":")
    line = [f"{base[0]}/{base[1]}", "--unshare-all", "--unshare-user", "--uid", uid, "--gid", gid, "--cap-drop", "ALL",
            "--die-with-parent", "--as-pid-1", "--clearenv", "--setenv", "PATH", PATH, "--new-session"]  # fmt: skip
    if host["NetworkMode"] != "none":
        line.append("--share-net")
    line += ["--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"]
    for name in ("bin", "sbin", "lib", "lib64"):
        line += ["--symlink", f"usr/{name}", f"/{name}"]
    for path in SYSTEM:
        line += ["--ro-bind-try", path, path]
    for path, options in host.get("Tmpfs", {}).items():
        size = re.search(r"size=(\d+)", options)[1]
        line += ["--size", size, "--perms", "1777", "--tmpfs", path]
    for tree, path in found.group.places if found.group else []:  # as a container sees its own
        for name in ("memory", "pids") if tree.version == 1 else ():
            if name in tree.controllers:
                line += ["--ro-bind", path, f"/sys/fs/cgroup/{name}"]
        if tree.version == 2 and "memory" in tree.controllers:
            line += ["--ro-bind", path, "/sys/fs/cgroup"]
    for mount in host["Mounts"]:
        line += ["--ro-bind" if mount["ReadOnly"] else "--bind", mount["Source"], mount["Target"]]
    return [*line, "--remount-ro", "/", "--chdir", found.body["WorkingDir"]]


async def _feed(reader, stdin):
    """The client's words are the container's input, and their end is its end."""
    with contextlib.suppress(ConnectionError, OSError):
        while data := await reader.read(1 << 16):
            stdin.write(data)
            await stdin.drain()
    stdin.close()


async def _frames(found, stream, number, writer):
    while data := await stream.read(1 << 16):
        if writer is not None and not found.frozen:
            with contextlib.suppress(ConnectionError):
                writer.write(struct.pack(">BxxxI", number, len(data)) + data)
                await writer.drain()


def unusable():
    """Why this machine cannot run it, or None."""
    if probe.failed("namespace") or find_bubblewrap() is None or shutil.which("python3", path=PATH) is None:
        return "a fake engine's containers need user namespaces, bubblewrap and the system's python3"
    return None
