"""What the tests of the indexes share."""

import contextlib

import httpx
import pytest

from hub_server.packages.service import project_of
from tests.support.archives import write_wheel
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
def sdk(hub, rows, tmp_path):
    """The hub has the SDK's own wheel: a small one of that name."""
    with rows.database.read() as session:
        if project_of(session, "sdk", "verifiers") is not None:
            return
    files = {"verifiers/__init__.py": "OURS = True\n"}
    wheel = write_wheel(tmp_path, "verifiers", "1.0.0", files, module=None, headers={"Requires-Dist": None})
    added = hub.admin("add-sdk", wheel)
    assert added.returncode == 0, added.stderr
