"""The providers that tests/sandboxes/conformance runs over: to add one, add a line to `PROVIDERS`.

Each opens over an empty folder of its own. All tests of `local` are quick; of the others only those in `QUICK` are,
the rest is marked slow.
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
    """Sandboxes of this machine."""
    from verifiers.sandboxes.local.provider import LocalProvider

    async with LocalProvider() as provider:
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
async def pool(root: Path) -> AsyncIterator[Provider]:
    """Those of this machine through a pool that has idle ones."""
    from verifiers.sandboxes.local.provider import LocalProvider
    from verifiers.sandboxes.pool import SandboxPool

    async with SandboxPool(LocalProvider(root=root), ready=1) as provider:
        yield provider


PROVIDERS: dict[str, Opened] = {"local": local, "node": node, "pool": pool}


async def until(question: Callable[[], Awaitable[Any]], seconds: float = 20.0) -> Any:
    """Ask until the answer is true, and give it; how soon that is is nobody's business here."""
    end = time.monotonic() + seconds
    while not (answer := await question()):
        assert time.monotonic() < end, "never came true"
        await asyncio.sleep(0.02)
    return answer
