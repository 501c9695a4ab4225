"""The providers that tests/sandboxes/conformance runs over: to add one, add a line to `PROVIDERS`.

Each opens over an empty folder of its own. All tests of `local` are quick; of the others only those in `QUICK` are,
the rest is marked slow, as are those in `QUICK` for `SLOW`, whose rest is long: CI has seen that code by then.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from verifiers.sandboxes.sandbox import Provider

Opened = Callable[[Path], AbstractAsyncContextManager[Provider]]

CANARY = "canary-" + uuid.uuid4().hex
"""A secret of the process that opens a provider."""

QUICK = frozenset({
    "test_a_command_tells_its_exit_status",
    "test_input_arrives_whole",
    "test_at_the_deadline_everything_it_started_dies",
    "test_output_is_read_from_an_offset_after_the_handle_was_lost",
    "test_missing_is_not_empty",
    "test_trees_survive_the_way_in_and_out",
    "test_a_deleted_sandbox_is_gone_for_everybody",
    "test_labels_find_and_delete",
})  # fmt: skip


@asynccontextmanager
async def local(root: Path) -> AsyncIterator[Provider]:
    """Sandboxes of this machine, of the strongest level that it gives."""
    from verifiers.sandboxes.local import probe
    from verifiers.sandboxes.local.provider import LocalProvider

    level = "landlock" if probe.best() == "landlock" else "namespace"
    async with LocalProvider(level=level) as provider:
        yield provider


@asynccontextmanager
async def node(root: Path) -> AsyncIterator[Provider]:
    """The same through a node's daemon on the loopback interface."""
    from verifiers.sandboxes.node.client import NodeProvider
    from verifiers.sandboxes.node.server import NodeServer

    async with local(root) as inner:
        server = NodeServer(inner, token="a token", mounts=True)
        try:
            async with NodeProvider(await server.start_tcp(), "a token") as provider:
                yield provider
        finally:
            await server.stop()


@asynccontextmanager
async def nodes(root: Path) -> AsyncIterator[Provider]:
    """Those of two nodes."""
    from verifiers.sandboxes.node.cluster import NodesProvider
    from verifiers.sandboxes.node.server import NodeServer

    async with local(root) as one, local(root) as two:
        servers = [NodeServer(inner, token="a token", mounts=True) for inner in (one, two)]
        try:
            urls = [await server.start_tcp() for server in servers]
            async with NodesProvider(urls, "a token") as provider:
                yield provider
        finally:
            await asyncio.gather(*(server.stop() for server in servers))


@asynccontextmanager
async def pool(root: Path) -> AsyncIterator[Provider]:
    """Those of this machine through a pool that has idle ones."""
    from verifiers.sandboxes.local.provider import LocalProvider
    from verifiers.sandboxes.pool import SandboxPool

    async with SandboxPool(LocalProvider(root=root), ready=1) as provider:
        yield provider


@asynccontextmanager
async def landlock(root: Path) -> AsyncIterator[Provider]:
    """Those of this machine without namespaces. Not below `root`, which other users may not enter."""
    import pytest

    from verifiers.sandboxes.local import probe
    from verifiers.sandboxes.local.provider import LocalProvider

    if missing := probe.failed("landlock"):
        pytest.skip(f"vf-sandbox doctor: {missing}")
    async with LocalProvider(level="landlock") as provider:
        yield provider


@asynccontextmanager
async def docker(root: Path) -> AsyncIterator[Provider]:
    """Containers of an engine that is played by a server on a socket, with real processes (`fake_docker.py`)."""
    import pytest

    from tests.support.fake_docker import FakeEngine, unusable
    from verifiers.sandboxes.docker.provider import DockerProvider

    if missing := unusable():
        pytest.skip(missing)
    root.mkdir()
    async with FakeEngine(root / "engine.sock") as engine, DockerProvider(engine.address) as provider:
        yield provider


@asynccontextmanager
async def prime(root: Path) -> AsyncIterator[Provider]:
    """Machines of a service that is played by a server, whose machines are sandboxes of this one (`fake_prime.py`)."""
    import pytest

    from tests.support.fake_docker import unusable
    from tests.support.fake_prime import HASTY, KEY, FakePrime
    from verifiers.sandboxes.prime.provider import PrimeProvider

    if missing := unusable():
        pytest.skip(missing)
    async with FakePrime() as service, PrimeProvider(KEY, url=service.url, patience=HASTY) as provider:
        yield provider


_SIGNALS = "a command can signal the sandbox's own first process"
_SHARED = "the host's processes are seen"
AT_LANDLOCK = {
    "test_commands_start_in_the_workdir": "directories have the host's names",
    "test_links_are_followed_inside_and_only_there": "the host's names are there, and refused",
    "test_a_hostile_tree_brings_nothing_to_the_host": "there are no unix sockets to plant",
    "test_the_disk_has_an_end": "the limit is of each file, and ends who writes",
    "test_a_command_can_not_stop_its_deadline": _SIGNALS,
    "test_what_a_command_destroys_is_never_a_quiet_result": _SIGNALS,
    "test_a_dead_interpreter_is_no_timeout": _SIGNALS,
    "test_a_shell_that_ends_is_noticed_and_replaced": _SIGNALS,
    "test_at_the_deadline_everything_it_started_dies": f"{_SHARED}: to look through them takes too long",
    "test_an_interpreter_that_is_stopped_keeps_what_it_can": _SHARED,
    "test_a_stuck_command_costs_a_session_its_command_only": _SHARED,
    "test_cancelling_who_runs_a_command_stops_it": _SHARED,
}
"""What is different where there are no namespaces, by the test that would find out."""

AT_PRIME = dict.fromkeys(
    (
        "test_a_command_can_not_stop_its_deadline", "test_what_a_command_destroys_is_never_a_quiet_result",
        "test_a_dead_interpreter_is_no_timeout", "test_a_shell_that_ends_is_noticed_and_replaced",
        "test_sandboxes_do_not_see_each_other", "test_the_hosts_processes_are_out_of_reach",
    ),
    "a command can signal the agent, which is not the machine's first process",
)  # fmt: skip
"""The same for machines that have a first process of their own."""

PROVIDERS: dict[str, Opened] = {
    "local": local, "node": node, "nodes": nodes, "pool": pool, "landlock": landlock, "docker": docker,
    "prime": prime,
}  # fmt: skip
SLOW = frozenset({"nodes"})


async def until(question: Callable[[], Awaitable[Any]], seconds: float = 20.0) -> Any:
    """Ask until the answer is true, and give it; how soon that is is nobody's business here."""
    end = time.monotonic() + seconds
    while not (answer := await question()):
        assert time.monotonic() < end, "never came true"
        await asyncio.sleep(0.02)
    return answer
