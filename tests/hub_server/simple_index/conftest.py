"""What the tests of the indexes share."""

import contextlib

import httpx
import pytest

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
