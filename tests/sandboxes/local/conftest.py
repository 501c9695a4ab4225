"""A sandbox of this machine for tests of what is special about them; the common rules are in `conformance`."""

from collections.abc import AsyncIterator

import pytest

from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.sandbox import Sandbox
from verifiers.sandboxes.spec import SandboxSpec


@pytest.fixture
async def local_provider() -> AsyncIterator[LocalProvider]:
    async with LocalProvider() as provider:
        yield provider


@pytest.fixture
async def sandbox(local_provider) -> Sandbox:
    return await local_provider.create(SandboxSpec(memory=256, pids=64))
