"""What the tests of the indexes share."""

import contextlib

import httpx
import pytest

from hub_server.packages.service import project_of
from tests.support.archives import make_wheel
from tests.support.hub_rows import HubRows

JSON = "application/vnd.pypi.simple.v1+json"


@pytest.fixture
def rows(hub):
    """The rows of the hub that is tested."""
    with contextlib.closing(HubRows(hub)) as rows:
        yield rows


@pytest.fixture
def http(hub):
    """An HTTP client that asks the hub for JSON and follows no redirect."""
    with httpx.Client(base_url=hub.url, headers={"Accept": JSON}, trust_env=False) as client:
        yield client


@pytest.fixture
def sdk(rows):
    """The hub has the SDK's own wheel."""
    with rows.database.read() as session:
        there = project_of(session, "sdk", "verifiers") is not None
    if not there:
        files = {"verifiers/__init__.py": "OURS = True\n"}
        wheel = make_wheel("verifiers", "1.0.0", files, module=None, headers={"Requires-Dist": None})
        rows.release("sdk", "verifiers", "1.0.0", wheel=wheel, headers={"Requires-Dist": None})
