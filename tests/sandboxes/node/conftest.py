"""A node in this process, and its client."""

import pytest

from tests.support.nodes import STEADY, TOKEN, serving
from verifiers.sandboxes.node.client import NodeProvider


@pytest.fixture
async def server():
    """A node with its defaults."""
    async with serving() as server:
        yield server


@pytest.fixture
async def provider(server):
    """Its sandboxes."""
    async with NodeProvider(server.url, TOKEN, patience=STEADY) as provider:
        yield provider
