"""Sandboxes that are containers: `DockerProvider`, for Docker and Podman.

    async with DockerProvider() as provider:
        sandbox = await provider.create(SandboxSpec(image="python:3.12-slim"))
        result = await sandbox.exec("echo hi")

The container's first process is our agent, which this process speaks to over the container's own input and output: a
time-out kills what runs inside, not only the client. When the connection ends, the agent does, and so the container.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Literal

from verifiers.errors import (
    SandboxBusyError,
    SandboxCreationError,
    SandboxDiedError,
    SandboxError,
    SandboxNotReadyError,
    SandboxUnsupportedError,
)
from verifiers.loops import shielded
from verifiers.sandboxes.docker import ownership
from verifiers.sandboxes.docker.container import HOME, OWNER_LABEL, described
from verifiers.sandboxes.docker.engine import Engine, find, message_of
from verifiers.sandboxes.docker.sandbox import DockerSandbox
from verifiers.sandboxes.docker.stream import Attached
from verifiers.sandboxes.guest.program import agent_source
from verifiers.sandboxes.host.channel import Channel
from verifiers.sandboxes.host.provider import GuestProvider, Life
from verifiers.sandboxes.results import Capabilities
from verifiers.sandboxes.spec import SandboxSpec

IMAGE = "python:3.11-slim"
"""What `SandboxSpec(image="host")`, the default, stands for: there is no host's system in a container."""
READY_S = 60.0
"""How long a container may take from its start to the agent's first word."""
PULL_S = 1800.0
REMOVE_TRIES = 5
NO_PYTHON = ("executable file not found", "no such file or directory", "not found in $path")


class DockerProvider(GuestProvider):
    """Containers of one engine.

    engine: whose variables and socket say where it answers, unless address does (unix:///PATH, tcp://HOST:PORT).
    image: what stands for "host". user: who commands run as (`UID:GID`); None: whom the image says. runtime: an OCI
    runtime that the engine knows, as "runsc". pull: whether images that the engine has not are fetched.

    With a limit for the disk, the default, the image is read-only and the workdir, /tmp, /var/tmp and the home are in
    memory, each with that limit; with `SandboxSpec(disk=None)` the image's own files can be written to, without one.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        engine: Literal["docker", "podman"] = "docker",
        image: str = IMAGE,
        user: str | None = "65534:65534",
        runtime: str | None = None,
        pull: bool = True,
    ) -> None:
        super().__init__()
        self.name = engine
        self.engine = Engine(address or find(engine), kind=engine)
        self._image, self._user, self._runtime, self._pull = image, user, runtime, pull
        self._capabilities: Capabilities | None = None
        self._podman = False
        self._environments: dict[str, asyncio.Task[dict[str, str]]] = {}

    async def capabilities(self) -> Capabilities:
        if self._capabilities is None:
            version = await self.engine.begin()
            _, info = await self.engine.ask("GET", "/info")
            names = " ".join(str(part.get("Name")) for part in version.get("Components") or [])
            self._podman = "podman" in names.lower()
            enforced = {"memory": "MemoryLimit", "cpu": "CpuCfsQuota", "pids": "PidsLimit"}
            limits = {name for name, field in enforced.items() if info.get(field)}
            limits |= {"disk", "lifetime", "idle_lifetime"} | (set() if self._podman else {"inodes"})
            weak = {"disk": "each of the workdir, /tmp, /var/tmp and the home has the limit"}
            self._capabilities = Capabilities(
                isolation="namespace",
                limits=frozenset(limits),
                weak=weak,
                network=frozenset({"none", "open"}),
                images=True,
                mounts=self.engine.local,
            )
        return self._capabilities

    # --- making

    async def make(self, name: str, channel: Channel, spec: SandboxSpec) -> DockerSandbox:
        environment = await self._environment(spec.image)
        body = described(
            spec,
            spec.image,
            owner=ownership.mine(),
            user=self._user,
            runtime=self._runtime,
            inodes=not self._podman,
        )
        # Not cut short: a container that is made after we had looked for it would stay.
        making = asyncio.ensure_future(
            self.engine.ask("POST", "/containers/create", query={"name": name}, body=body, also=(400, 404, 409))
        )
        status, made = await shielded(making)
        if status in (400, 404):
            raise SandboxUnsupportedError(f"the container engine refuses the sandbox: {message_of(made)}")
        streams = Attached(channel)
        transport = await self.engine.attach(name, streams)
        try:
            async with asyncio.timeout(READY_S):
                await streams.open
                await self._run(name, spec)
                transport.write(agent_source())
                await channel.started
        except TimeoutError:
            raise SandboxNotReadyError(f"the container did not answer within {READY_S:g} seconds") from None
        except SandboxDiedError:
            raise self._silent(spec, streams.words) from None
        except BaseException:
            transport.abort()
            raise
        life = Life(name, channel, self.discard)
        sandbox = DockerSandbox(life, self.engine, spec, {**environment, "HOME": HOME, "USER": "sandbox"})
        try:
            await sandbox.prepare()
        except SandboxError as error:
            raise SandboxCreationError(f"the container has ended while it started: {streams.words}") from error
        return sandbox

    async def _run(self, name: str, spec: SandboxSpec) -> None:
        status, told = await self.engine.ask("POST", f"/containers/{name}/start", also=(400, 404, 409, 500))
        if status < 400:
            return
        what = message_of(told)
        if "python3" in what and any(words in what.lower() for words in NO_PYTHON):
            raise self._silent(spec, "there is no python3 in it")
        raise SandboxCreationError(f"the container of the image {spec.image!r} does not start: {what}")

    def _silent(self, spec: SandboxSpec, words: str) -> SandboxCreationError:
        """The agent did not come up."""
        if "python3" in words:
            what = f"the image {spec.image!r} cannot run the agent: {words}"
            return SandboxUnsupportedError(what, hint="Take an image with Python 3.9 or newer, or install it in yours.")
        what = f"the container of the image {spec.image!r} has ended at once"
        return SandboxCreationError(f"{what}: {words or 'it said nothing'}")

    async def check(self, spec: SandboxSpec) -> SandboxSpec:
        if not isinstance(spec.network, str):
            raise SandboxUnsupportedError("a container engine cannot enforce a list of hosts that may be reached")
        if spec.image.startswith("/"):
            raise SandboxUnsupportedError(
                f"the image {spec.image!r} is a directory", hint="Give the name of an image of the container engine."
            )
        able = await self.capabilities()
        if spec.mounts and not able.mounts:
            raise SandboxUnsupportedError(f"{self.engine.address} does not see this machine's files: no mounts")
        image = self._image if spec.image == "host" else spec.image
        await self._environment(image)  # fetched before it is its turn to start
        return replace(spec, image=image)

    # --- images

    async def _environment(self, image: str) -> dict[str, str]:
        """The variables of an image, fetched if need be; asked for once however many need it at once."""
        task = self._environments.get(image)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._environments[image] = asyncio.ensure_future(self._inspect(image))
        return await asyncio.shield(task)

    async def _inspect(self, image: str) -> dict[str, str]:
        status, found = await self.engine.ask("GET", f"/images/{image}/json", also=(404,))
        if status == 404 and self._pull:
            await self._fetch(image)
            status, found = await self.engine.ask("GET", f"/images/{image}/json", also=(404,))
        if status == 404:
            raise SandboxCreationError(f"the container engine has no image {image!r}", hint=f"{self.name} pull {image}")
        pairs = ((found or {}).get("Config") or {}).get("Env") or []
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    async def _fetch(self, image: str) -> None:
        name = image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"
        status, told = await self.engine.ask(
            "POST", "/images/create", query={"fromImage": name}, also=(400, 403, 404, 500), seconds=PULL_S
        )
        lines = told if isinstance(told, list) else [told]
        errors = [str(line["error"]) for line in lines if isinstance(line, dict) and line.get("error")]
        if status < 400 and not errors:
            return
        what = f"the image {image!r} cannot be fetched: {errors[-1] if errors else message_of(told)}"
        if "toomanyrequests" in what.lower():
            raise SandboxBusyError(what)
        raise SandboxCreationError(what, hint=f"Check its name; if it is private: {self.name} login, {self.name} pull.")

    # --- removing

    async def remove(self, name: str) -> None:
        """Until the engine says that there is none of this name."""
        for attempt in range(REMOVE_TRIES):
            status, _ = await self.engine.ask(
                "DELETE", f"/containers/{name}", query={"force": "true", "v": "true"}, also=(404, 409)
            )
            if status != 409:
                return
            await asyncio.sleep(0.05 * 2**attempt)  # its removal is in progress
        status, _ = await self.engine.ask("GET", f"/containers/{name}/json", also=(404,))
        if status != 404:
            raise SandboxError(f"the container {name} cannot be removed", hint=f"{self.name} rm --force {name}")

    async def reap_orphans(self) -> int:
        await self.capabilities()
        filters = json.dumps({"label": [OWNER_LABEL]})
        _, found = await self.engine.ask("GET", "/containers/json", query={"all": "true", "filters": filters})
        gone = [one["Id"] for one in found or [] if ownership.is_gone(one, time.time())]
        await asyncio.gather(*(self.remove(name) for name in gone))
        return len(gone)

    async def disconnect(self) -> None:
        for asking in self._environments.values():
            asking.cancel()
        await asyncio.gather(*self._environments.values(), return_exceptions=True)
        await self.engine.close()
