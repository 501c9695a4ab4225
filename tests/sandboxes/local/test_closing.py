"""A local provider leaves nothing of its own, whoever is cancelled meanwhile."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from verifiers.errors import SandboxCreationError, SandboxDiedError
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.spec import SandboxSpec

SPEC = SandboxSpec(isolation="none", network="open")


@pytest.fixture
def root() -> Iterator[Path]:
    """A directory that the sandboxes' own users can enter, unlike `tmp_path`."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("turns", [1, 3])
async def test_a_provider_that_is_closed_while_it_prepares_leaves_nothing(root, turns):
    """Its first sandbox was cancelled, or is told of it; what a thread was making is removed."""
    provider = LocalProvider(level="none", root=root)
    cancelled, told = (asyncio.create_task(provider.create(SPEC)) for _ in range(2))
    for _ in range(turns):
        await asyncio.sleep(0)
    cancelled.cancel()
    await provider.close()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(SandboxCreationError, match="closed"):
        await told
    assert not list(root.iterdir())


async def test_closing_goes_on_when_who_closes_is_cancelled(root):
    """Its cancellation shows when sandboxes and folders are gone."""
    provider = LocalProvider(level="none", root=root)
    sandbox = await provider.create(SPEC)
    closing = asyncio.create_task(provider.close())
    await asyncio.sleep(0)
    closing.cancel()
    with suppress(asyncio.CancelledError):
        await closing
    assert not list(root.iterdir())
    with pytest.raises(SandboxDiedError):
        await sandbox.exec("true")
