"""A real S3 protocol on the loopback address: moto's server, with a bucket a test."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

_numbers = itertools.count()


@pytest.fixture(scope="session")
def object_store() -> Iterator[str]:
    """The address of an object store that lives as long as the tests."""
    server_module = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    server._server.daemon_threads = True  # stopping would wait for connections that clients keep open
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(object_store: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The `storage` setting for an empty bucket; this process's AWS_… variables lead to it, and so do a server's."""
    for name, value in aws(object_store).items():
        monkeypatch.setenv(name, value)
    name = f"hub-{next(_numbers)}"
    assert httpx.put(f"{object_store}/{name}").status_code == 200
    return f"s3://{name}/some/prefix"


def aws(address: str) -> dict[str, Any]:
    """The variables by which an S3 client finds the store."""
    return {
        "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }  # fmt: skip
