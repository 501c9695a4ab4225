"""The sandboxes that a user gets without naming a provider: one pool an event loop, closed when the loop ends.

    provider = await default_provider()

What it is comes from, in this order, a variable (`VF_SANDBOX_PROVIDER=http://node:8700`), the table
`[tool.verifiers.sandbox]` of the project's pyproject.toml, `[sandbox]` of the user's own file, the defaults:

    provider      "local", "docker", "podman", "prime", or addresses of nodes that run `sandboxd`, with commas between
    level         of the local provider: "namespace", "landlock" or "none"
    max_alive     sandboxes at any time, those that start and end included
    max_starting  of those, that start
    ready         idle ones kept of each kind that is asked for
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from verifiers.errors import SandboxSettingsError
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.pool import SandboxPool
from verifiers.sandboxes.sandbox import Provider
from verifiers.sandboxes.spec import ISOLATION_LEVELS, Isolation
from verifiers.settings import (
    Layer,
    Setting,
    layered,
    project_file,
    read_toml,
    refuse_unknown,
    table_at,
    user_file,
    variables,
)

SETTINGS = ("provider", "level", "max_alive", "max_starting", "ready")
COUNTS = ("max_alive", "max_starting", "ready")
MEMORY_EACH_MIB = 64
"""Memory of the machine for each sandbox that may be alive. Most use far less than their limit."""
MOST_ALIVE = 1000
CLOSE_S = 20.0
"""What a loop that nobody ended may take for its sandboxes when the process ends."""


def sandbox_settings(environ: Mapping[str, str] | None = None) -> dict[str, Setting]:
    """Each of `SETTINGS` with where it came from. ConfigError for what is unknown or of the wrong kind."""
    found = variables((f"sandbox_{name}" for name in SETTINGS), environ)
    layers = [Layer(f"VF_{name.upper()}", {name.removeprefix("sandbox_"): text}) for name, text in found.items()]
    for path, keys in ((project_file(), ("tool", "verifiers", "sandbox")), (user_file(), ("sandbox",))):
        if path is not None and path.is_file():
            table = table_at(read_toml(path), *keys, where=str(path))
            refuse_unknown(table, SETTINGS, f"[{'.'.join(keys)}] of {path}")
            layers.append(Layer(str(path), table))
    layers.append(Layer("default", _defaults()))
    return {name: _checked(name, setting) for name, setting in layered(layers).items()}


def _defaults() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    alive = min(max(memory // MEMORY_EACH_MIB, 16), MOST_ALIVE)
    return {"provider": "local", "level": "namespace", "max_alive": alive, "max_starting": 4 * cores, "ready": 8}


def _checked(name: str, setting: Setting) -> Setting:
    value = setting.value
    if name in COUNTS:
        least = 0 if name == "ready" else 1
        number = int(value) if str(value).isdecimal() else -1
        if number < least or isinstance(value, bool):
            raise SandboxSettingsError(
                f"{name} of {setting.origin} is {value!r}", hint=f"A whole number, at least {least}."
            )
        return Setting(number, setting.origin)
    if name == "level" and value not in ISOLATION_LEVELS:
        hint = f"One of {', '.join(ISOLATION_LEVELS)}."
        raise SandboxSettingsError(f"level of {setting.origin} is {value!r}", hint=hint)
    if not isinstance(value, str) or not value:
        hint = "A provider's name, or addresses of nodes."
        raise SandboxSettingsError(f"{name} of {setting.origin} is {value!r}", hint=hint)
    return setting


def new_provider(settings: Mapping[str, Setting]) -> SandboxPool:
    """The pool that these settings describe; nothing is started."""
    limits = {name: settings[name].value for name in COUNTS}
    return SandboxPool(_provider(settings["provider"], settings["level"].value), **limits)


def _provider(setting: Setting, level: Isolation) -> Provider:
    addresses = [part.strip() for part in setting.value.split(",") if part.strip()]
    if addresses == ["local"]:
        return LocalProvider(level=level)
    if addresses in (["docker"], ["podman"]):
        from verifiers.sandboxes.docker.provider import DockerProvider

        return DockerProvider(engine="docker" if addresses == ["docker"] else "podman")
    if addresses == ["prime"]:
        from verifiers.sandboxes.prime.provider import PrimeProvider

        return PrimeProvider()
    if addresses and all(address.startswith(("http://", "https://", "unix:")) for address in addresses):
        from verifiers.sandboxes.node.cluster import NodesProvider

        return NodesProvider(addresses)  # also for one: its host name may have several numbers
    raise SandboxSettingsError(
        f"{setting.value!r} of {setting.origin} is no provider of sandboxes",
        hint="One of local, docker, podman, prime, or addresses of nodes: http://HOST:PORT or unix:/PATH, with commas.",
    )


# --- one for each event loop ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shared:
    """A loop's provider. `life` is an asynchronous generator, since a loop ends those that it has when it ends."""

    pid: int
    life: AsyncGenerator[SandboxPool, None]
    opened: asyncio.Task[SandboxPool]


_shared: dict[asyncio.AbstractEventLoop, _Shared] = {}
"""By loop. Those of loops that ended are dropped when the next one asks."""


async def default_provider() -> SandboxPool:
    """The provider of this event loop, made when it is first asked for. Nobody closes it: the loop's end does."""
    loop = asyncio.get_running_loop()
    shared = _shared.get(loop)
    if shared is None or (shared.opened.done() and not _usable(shared)):
        for ended in [known for known in _shared if known.is_closed()]:
            del _shared[ended]
        life = _life(new_provider(sandbox_settings()))
        opened = asyncio.create_task(cast("Any", anext(life)))
        shared = _shared[loop] = _Shared(os.getpid(), life, opened)
    return await asyncio.shield(shared.opened)


def _usable(shared: _Shared) -> bool:
    """It could be opened, and that in this process: a fork has the table of its parent."""
    return shared.pid == os.getpid() and not shared.opened.cancelled() and shared.opened.exception() is None


async def _life(pool: SandboxPool) -> AsyncGenerator[SandboxPool, None]:
    async with pool:
        yield pool


@atexit.register
def _close_at_exit() -> None:
    """Close what belongs to loops that were left without an end."""
    for loop, shared in list(_shared.items()):
        if shared.pid == os.getpid() and not loop.is_closed() and not loop.is_running():
            loop.run_until_complete(asyncio.wait_for(shared.life.aclose(), CLOSE_S))
