"""Workers on the machines of a Ray cluster: the connection, what each worker gets there, what is sent along.

    async with connected(RayOptions("auto"), load) as cluster:
        pool = WorkerPool(cluster.link, workers=cluster.workers)
        ...                                     # as with workers on this machine

Each worker is the process that it would be on one machine, reached through one Ray actor (`ray.RayLink`). Leaving the
block ends every actor; when this process dies, Ray ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib
import logging
import os
import queue
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from verifiers.errors import (
    ClusterError,
    ConfigError,
    MissingExtraError,
    MissingKeyError,
)
from verifiers.loops import shielded
from verifiers.rollouts.workers.messages import Load
from verifiers.rollouts.workers.ray import RayLink
from verifiers.rollouts.workers.relay import Relay
from verifiers.threads import run_beside
from verifiers.types import ClientConfig

T = TypeVar("T")

REACH_SECONDS = 10.0
"""How long a cluster's machine may take to answer at all."""

CONNECT_SECONDS = 120.0
"""Deadline of reaching a cluster, or of starting one here."""

PLACE_SECONDS = 300.0
"""How long a worker may wait for a machine with room; clusters that grow need minutes."""

LOCAL = "local"
_LOCAL_STORE_BYTES = 100_000_000
"""Shared memory of a local cluster. Messages are small; what does not fit goes through a file."""

_NOT_SENT = ["outputs/", ".venv/", ".git/", "__pycache__/"]
"""What stays behind when the folder of an environment is sent to the machines."""

RESOURCES = ("num_cpus", "num_gpus", "memory", "resources")


@dataclass(frozen=True, slots=True)
class RayOptions:
    """Which cluster, and what each worker gets there.

    address: "local" starts a cluster on this machine for as long as it is needed; "auto" is the one that runs on this
        machine; HOST:PORT one that this machine is a node of; ray://HOST:PORT any, through its client port.
    workers: how many; None is one for each machine.
    num_cpus, num_gpus, memory (bytes), resources: what Ray reserves for each worker.
    runtime_env: Ray's description of what workers find on their machines, such as `{"uv": ["my-env==1.0"]}`.
    pass_env: variables whose values workers get from here. That of the endpoint's key is always passed.
    folder: where the environment lies, if it is not installed; it is sent to the machines.
    """

    address: str = LOCAL
    workers: int | None = None
    num_cpus: float = 1
    num_gpus: float = 0
    memory: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    pass_env: Sequence[str] = ()
    folder: Path | None = None

    @classmethod
    def read(cls, address: str, table: Mapping[str, Any], **more: Any) -> RayOptions:
        """From a table of settings. ConfigError for an unknown one."""
        known = {*RESOURCES, "runtime_env", "pass_env"}
        unknown = sorted(set(table) - known)
        if unknown:
            raise ConfigError(
                f"unknown Ray option {unknown[0]!r}", hint=f"There are: {', '.join(sorted(known))}."
            )
        return cls(address, **table, **more)

    @property
    def is_here(self) -> bool:
        """Whether workers have the very paths of this process: on this machine, with nothing else described."""
        return self.address == LOCAL and not self.runtime_env

    @property
    def per_worker(self) -> dict[str, Any]:
        """The keywords that Ray knows these resources by."""
        reserved = {name: getattr(self, name) for name in RESOURCES}
        return {
            name: dict(value) if name == "resources" else value for name, value in reserved.items() if value
        }


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise MissingExtraError("ray", "playing on a Ray cluster (--ray)") from error


# --- a cluster ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def connected(options: RayOptions, load: Load) -> AsyncIterator[RayCluster]:
    """A cluster for workers that load `load`. MissingExtraError without Ray, ClusterError if it can not be reached.

    In a program that has called `ray.init`, that connection is used, whatever the address, and left as it is.
    """
    environ = _passed(options, load)
    if options.address == LOCAL:
        # Read when ray is imported: without it Ray would listen on the machine's outer address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = _import_ray()
    thread = _RayThread()
    ours = not ray.is_initialized()  # else the program that this is a part of is connected
    local = ours and options.address == LOCAL
    folder = tempfile.mkdtemp(prefix=f"vf-ray-{os.getpid()}-") if local else None
    if not (local and options.is_here):
        # The paths of this machine may not be there; a node has its own, and what Ray unpacked for this job.
        load = dataclasses.replace(load, paths=None)
    try:
        with _quiet(ray) if ours else contextlib.nullcontext():
            if ours:
                await _reach(options.address)
                await thread.call(lambda: _connect(ray, options, folder), CONNECT_SECONDS)
            try:
                yield await thread.call(
                    lambda: _cluster(ray, thread, options, load, environ), CONNECT_SECONDS
                )
            finally:
                if ours:
                    await shielded(thread.call(ray.shutdown, CONNECT_SECONDS))
    finally:
        thread.end()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


async def _reach(address: str) -> None:
    """Whether anyone listens at HOST:PORT. Ray itself would try for minutes, or end the process."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    if parts.hostname is None or parts.port is None:
        return  # "local", "auto", or for Ray to refuse
    try:
        async with asyncio.timeout(REACH_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port)
    except (OSError, TimeoutError) as error:
        raise ClusterError(
            f"nothing answers at {parts.hostname}:{parts.port}",
            hint="Start the cluster (ray start --head prints its address), or check the address. "
            "Its port is 6379 for machines of the cluster, 10001 behind ray://.",
        ) from error
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _passed(options: RayOptions, load: Load) -> dict[str, str]:
    """The variables that workers get from here."""
    missing = [name for name in options.pass_env if not os.environ.get(name)]
    if missing:
        raise MissingKeyError(missing)
    keys = [config.api_key_var for config in ClientConfig(**load.client).expanded()]
    return {name: os.environ[name] for name in (*keys, *options.pass_env) if os.environ.get(name)}


def _connect(ray: Any, options: RayOptions, folder: str | None) -> None:
    arguments: dict[str, Any] = {
        "address": options.address,
        "log_to_driver": False,
        "configure_logging": False,
    }
    if folder is not None:
        workers = options.workers or 1
        arguments |= {"num_cpus": max(1, round(workers * options.num_cpus)), "include_dashboard": False}
        arguments |= {"object_store_memory": _LOCAL_STORE_BYTES, "_temp_dir": folder}
        if options.num_gpus:
            arguments["num_gpus"] = round(workers * options.num_gpus)
        if options.resources:
            arguments["resources"] = {name: workers * amount for name, amount in options.resources.items()}
    arguments["runtime_env"] = _runtime_env(options)
    try:
        ray.init(**arguments)
    except Exception as error:  # boundary: Ray raises many kinds, built-in ones too
        raise ClusterError(f"no Ray cluster at {options.address!r}: {_shortened(error)}") from error


def _runtime_env(options: RayOptions) -> dict[str, Any]:
    described = dict(options.runtime_env)
    if options.folder is not None and not options.is_here:
        described.setdefault("working_dir", str(options.folder))
        described["excludes"] = [*described.get("excludes", ()), *_NOT_SENT]
    return described


@contextlib.contextmanager
def _quiet(ray: Any) -> Any:
    """Ray prints deaths of actors and machines to stdout, with no public switch. They are told by our own errors."""
    log = logging.getLogger("ray")
    before = log.level
    log.setLevel(logging.ERROR)
    ray._private.worker._worker_logs_enabled = False
    try:
        yield
    finally:
        log.setLevel(before)
        ray._private.worker._worker_logs_enabled = True


def _cluster(
    ray: Any, thread: _RayThread, options: RayOptions, load: Load, environ: Mapping[str, str]
) -> RayCluster:
    """The connection, unless workers elsewhere could not reach the endpoint."""
    addresses = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
    others = sorted({*addresses} - {"127.0.0.1", ray.util.get_node_ip_address()})
    client = ClientConfig(**load.client)
    if others and any(config.is_loopback for config in client.expanded()):
        raise ConfigError(
            f"{client.api_base_url} is for this machine only, and the cluster has others ({', '.join(others)})",
            hint="Give an address (-b) that every machine of the cluster reaches.",
        )
    return RayCluster(ray, thread, options, load, environ, len(addresses))


class RayCluster:
    """A connection to a Ray cluster. `machines` counts its living nodes."""

    def __init__(
        self,
        ray: Any,
        thread: _RayThread,
        options: RayOptions,
        load: Load,
        environ: Mapping[str, str],
        machines: int,
    ) -> None:
        self.ray = ray
        self._thread = thread
        self.options = options
        self.load = load
        self.environ = environ
        self.machines = machines
        self.place_seconds = PLACE_SECONDS
        reserved = {"max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        self._actor = ray.remote(Relay).options(**options.per_worker, **reserved)

    @property
    def workers(self) -> int:
        """How many workers to start."""
        return self.options.workers or max(1, self.machines)

    def link(self, number: int) -> RayLink:
        """A link to a new worker, for `WorkerPool`."""
        return RayLink(self, number)

    async def new_actor(self, number: int) -> Any:
        """An actor that Ray will find a place for."""
        return await self._thread.call(lambda: self._actor.remote(number), CONNECT_SECONDS)

    async def end_actor(self, actor: Any) -> None:
        """Nothing of the actor is left after this."""
        await self._thread.call(lambda: self.ray.kill(actor, no_restart=True), CONNECT_SECONDS)

    async def room(self) -> str:
        """What the cluster has left, in words."""
        free, total = await self._thread.call(
            lambda: (self.ray.available_resources(), self.ray.cluster_resources()), CONNECT_SECONDS
        )
        names = [name for name in ("CPU", "GPU", *self.options.resources) if name in total]
        return ", ".join(f"{free.get(name, 0):g} of {total[name]:g} {name} free" for name in names)


class _RayThread:
    """The thread of Ray's blocking calls. In the main thread `init` would take over SIGTERM; and what `init` starts
    ends with the thread that called it, so this one lives as long as the connection."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="asks-ray", daemon=True).start()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    async def call(self, work: Callable[[], T], seconds: float) -> T:
        """What `work` returns or raises; ClusterError if that takes longer than `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                result: T = await run_beside(work, self._calls.put)
                return result
        except TimeoutError as error:
            raise ClusterError(f"Ray did not answer within {seconds:.0f} s") from error

    def end(self) -> None:
        """After the calls that were made."""
        self._calls.put(None)


def _shortened(error: BaseException) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:300]
