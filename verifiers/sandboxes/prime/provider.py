"""Sandboxes of Prime Intellect's service: `PrimeProvider`.

    async with PrimeProvider() as provider:          # PRIME_API_KEY
        sandbox = await provider.create(SandboxSpec(image="python:3.12-slim", network=("pypi.org",)))
        result = await sandbox.exec("echo hi")

Virtual machines, with our agent as a live process in them: so commands have the same limits, kills and sessions as
everywhere, and nothing rests on files that they could change. One request makes a machine, others look whether it runs,
and every command goes straight to the gateway.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import platform
import random
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from verifiers.errors import (
    SandboxBusyError,
    SandboxCreationError,
    SandboxDiedError,
    SandboxError,
    SandboxNotReadyError,
    SandboxUnreachableError,
    SandboxUnsupportedError,
)
from verifiers.loops import shielded
from verifiers.sandboxes.guest.program import agent_source
from verifiers.sandboxes.host.channel import Channel
from verifiers.sandboxes.host.owner import start_time, world
from verifiers.sandboxes.host.provider import GuestProvider, Life, RemoteSandbox
from verifiers.sandboxes.prime.api import KEY_HINT, Api, Patience
from verifiers.sandboxes.prime.deleting import Deleter
from verifiers.sandboxes.prime.session import BOOT, Gateway, Session
from verifiers.sandboxes.results import Capabilities, ExecResult, Usage
from verifiers.sandboxes.spec import SandboxSpec

URL = "https://api.primeintellect.ai"
IMAGE = "python:3.11-slim"
"""What `SandboxSpec(image="host")`, the default, stands for."""
MOST_MINUTES = 24 * 60
"""No machine lives longer."""
MOST_HOSTS = 256
ENDED = ("ERROR", "TERMINATED", "TIMEOUT")
LABEL = "verifiers"
READY_S = 60.0
PAGE = 100


class PrimeSandbox(RemoteSandbox):
    """A machine, as its user has it."""

    def judge(self, result: ExecResult) -> ExecResult:
        return result

    async def usage(self) -> Usage:
        if self.channel.error is not None:
            raise self.channel.error.with_traceback(None)
        return Usage()


class PrimeProvider(GuestProvider):
    """Machines of one account.

    key, team, url: PRIME_API_KEY, PRIME_TEAM_ID and PRIME_API_BASE_URL if None. image: what stands for "host".
    Limits of memory, disk and time are what the service takes: it refuses what it does not give.
    """

    name = "prime"
    starts = 64

    def __init__(
        self,
        key: str | None = None,
        *,
        team: str | None = None,
        url: str | None = None,
        image: str = IMAGE,
        region: str | None = None,
        patience: Patience | None = None,
    ) -> None:
        super().__init__()
        self._key = key or os.environ.get("PRIME_API_KEY") or ""
        self._team = team or os.environ.get("PRIME_TEAM_ID") or None
        url = url or os.environ.get("PRIME_API_BASE_URL") or os.environ.get("PRIME_BASE_URL") or URL
        self._api = Api(url, self._key, patience=patience or Patience())
        self.ping_s = self._api.patience.ping
        self._deleter = Deleter(self._api)
        self._image, self._region = image, region
        self._ids: dict[str, str | None] = {}
        """By name, from before a machine is asked for; None: it is not known whether there is one."""

    async def capabilities(self) -> Capabilities:
        weak = {"memory": "a command that ran out of memory is not told from another that was killed"}
        return Capabilities(
            isolation="namespace",
            limits=frozenset({"cpu", "memory", "disk", "lifetime", "idle_lifetime"}),
            weak=weak,
            network=frozenset({"none", "open", "hosts"}),
            images=True,
        )

    async def check(self, spec: SandboxSpec) -> SandboxSpec:
        if not self._key:
            raise SandboxUnsupportedError("there is no key for Prime's sandboxes", hint=KEY_HINT)
        if spec.mounts:
            raise SandboxUnsupportedError("Prime's machines see no files of this one: no mounts", hint="Upload them.")
        if spec.image.startswith("/"):
            raise SandboxUnsupportedError(f"the image {spec.image!r} is a directory", hint="Give an image's name.")
        if not isinstance(spec.network, str) and len(spec.network) > MOST_HOSTS:
            raise SandboxUnsupportedError(f"Prime takes at most {MOST_HOSTS} hosts that may be reached")
        if spec.lifetime is not None and spec.lifetime > MOST_MINUTES * 60:
            raise SandboxUnsupportedError(f"Prime's machines live for {MOST_MINUTES // 60} hours at most")
        return replace(spec, image=self._image if spec.image == "host" else spec.image)

    # --- making

    async def make(self, name: str, channel: Channel, spec: SandboxSpec) -> PrimeSandbox:
        self._ids[name] = None
        body = self._described(name, spec)
        # Not cut short: a machine whose number never came would be found by its label only.
        asking = asyncio.ensure_future(self._api.ask("POST", "/sandbox", body=body, also=(404,)))
        try:
            status, made = await shielded(asking)
        except SandboxUnsupportedError:
            del self._ids[name]  # it was refused: there is nothing to look for
            raise
        if status == 404:
            raise SandboxCreationError(f"Prime has no image {spec.image!r}: {made}")
        number = self._ids[name] = str(made["id"])
        await self._running(number, spec)
        gateway = Gateway(self._api, number)
        session = Session(gateway, channel, _namer(gateway))
        source = agent_source()
        line = f'exec python3 -I -S -c "$0" 0 1 {len(source)}'
        try:
            await session.open("/bin/sh", ["-c", line, BOOT], seconds=READY_S)
            session.write(source)
            async with asyncio.timeout(READY_S):
                await channel.started
            life = Life(name, channel, self.discard)
            sandbox = PrimeSandbox(life, spec, {"HOME": "/root"})
            await sandbox.mkdir(spec.workdir)
        except TimeoutError:
            raise SandboxNotReadyError(f"the agent did not answer within {READY_S:g} seconds") from None
        except SandboxDiedError as error:
            raise _silent(spec, session.words or str(error)) from None
        return sandbox

    def _described(self, name: str, spec: SandboxSpec) -> dict[str, Any]:
        """The body of `POST /sandbox`. Secrets and variables are given to commands, by the agent."""
        minutes = MOST_MINUTES if spec.lifetime is None else math.ceil(spec.lifetime / 60)
        labels = [LABEL, f"{LABEL}-name={name}", f"{LABEL}-owner={_owner()}"]
        body: dict[str, Any] = {
            "name": name,
            "docker_image": spec.image,
            "vm": True,  # only these have live processes
            "timeout_minutes": minutes,
            "labels": labels + [f"{key}={value}" for key, value in spec.labels.items()],
            "idempotency_key": uuid.uuid4().hex,
        }
        if spec.cpu is not None:
            body["cpu_cores"] = spec.cpu
        if spec.memory is not None:
            body["memory_gb"] = spec.memory / 1024
        if spec.disk is not None:
            body["disk_size_gb"] = spec.disk / 1024
        if spec.idle_lifetime is not None:
            body["idle_timeout_minutes"] = min(minutes, math.ceil(spec.idle_lifetime / 60))
        if spec.network != "open":
            body["network_allowlist"] = [] if spec.network == "none" else list(spec.network)
        if self._team is not None:
            body["team_id"] = self._team
        if self._region is not None:
            body["region"] = self._region
        return body

    async def _running(self, number: str, spec: SandboxSpec) -> None:
        """Wait until it runs. One look that fails says nothing about it."""
        loop, patience = asyncio.get_running_loop(), self._api.patience
        begun, building, delay = loop.time(), 0.0, patience.poll
        status = "PENDING"
        while True:
            try:
                _, found = await self._api.ask("GET", f"/sandbox/{number}")
            except (SandboxUnreachableError, SandboxBusyError) as error:
                found = {"status": status}
                if loop.time() - begun > patience.create:
                    raise SandboxNotReadyError(f"it cannot be told whether the sandbox runs: {error}") from error
            status = found["status"]
            if status == "RUNNING":
                return
            if status in ENDED:
                why = f"{found.get('errorType') or ''} {found.get('errorMessage') or ''}".strip()
                raise SandboxCreationError(f"Prime did not start the image {spec.image!r} ({status}): {why}")
            pause = delay * random.uniform(0.9, 1.1)
            delay = min(1.5 * delay, patience.longest_poll)
            if found.get("pendingImageBuildId"):
                building += pause
            limit = patience.create + min(building, patience.build)
            if loop.time() - begun + pause > limit:
                raise SandboxNotReadyError(f"the sandbox is {status} after {limit:.0f} seconds")
            await asyncio.sleep(pause)

    # --- removing

    async def remove(self, name: str) -> None:
        if name not in self._ids:
            return  # it was never asked for
        number = self._ids[name]
        if number is not None:
            await self._deleter.delete(number)
        else:
            await self._api.ask("DELETE", "/sandbox", body={"labels": [f"{LABEL}-name={name}"]}, also=(404,))
        self._ids.pop(name, None)

    async def reap_orphans(self) -> int:
        """Delete machines of processes of this computer that are gone. Those of others end with their lifetime."""
        gone = []
        page, more = 1, True
        while more:
            query = {"labels": LABEL, "is_active": "true", "page": str(page), "per_page": str(PAGE)}
            if self._team is not None:
                query["team_id"] = self._team
            _, found = await self._api.ask("GET", "/sandbox", query=query)
            gone += [one["id"] for one in found["sandboxes"] if _is_orphan(one["labels"])]
            page, more = page + 1, found.get("hasNext", False)
        await asyncio.gather(*(self._deleter.delete(one) for one in gone))
        return len(gone)

    async def disconnect(self) -> None:
        await self._api.close()


def _namer(gateway: Gateway) -> Callable[[str], Awaitable[SandboxError]]:
    """Finds the error to tell when the connection has broken."""

    async def name(what: str) -> SandboxError:
        status, why = await gateway.context()
        if status in ENDED:
            return SandboxDiedError(f"Prime has ended the sandbox ({status}): {why}")
        return SandboxUnreachableError(
            f"the connection to the sandbox broke, and it is ended: {what}",
            hint="Let failed rollouts be tried again (--max-retries).",
        )

    return name


def _silent(spec: SandboxSpec, words: str) -> SandboxCreationError:
    """The agent did not come up."""
    if "python3" in words:
        what = f"the image {spec.image!r} cannot run the agent: {words}"
        return SandboxUnsupportedError(what, hint="Take an image with Python 3.9 or newer, or install it in yours.")
    return SandboxCreationError(f"the agent has ended at once: {words}")


def _world() -> str:
    return hashlib.sha256(f"{platform.node()} {world()}".encode()).hexdigest()[:16]


def _owner() -> str:
    """This process, for a label."""
    pid = os.getpid()
    return f"{pid}-{start_time(pid) or 0}-{_world()}"


def _is_orphan(labels: list[str]) -> bool:
    prefix = f"{LABEL}-owner="
    words = next((one.removeprefix(prefix).split("-") for one in labels if one.startswith(prefix)), [])
    if len(words) != 3 or words[2] != _world() or not words[0].isdigit() or words[1] == "0":
        return False  # not of this computer, as far as can be told
    return str(start_time(int(words[0]))) != words[1]
