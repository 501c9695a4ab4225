"""What a connection may cost before a request is there, or while its body stalls."""

from __future__ import annotations

import contextlib
import socket
import threading

import httpx
import pytest
import uvicorn

from hub_server.operations import connections
from hub_server.simple_index.sendfile import ZeroCopyProtocol
from tests.support.hub import PATIENCE


async def app(scope, receive, send):
    """Reads the body to its end."""
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass
    if message["type"] == "http.request":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def address(monkeypatch):
    """A server whose patience is short."""
    monkeypatch.setattr(connections, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.3)
    monkeypatch.setattr(connections, "BODY_SECONDS", 0.3)
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=ZeroCopyProtocol, lifespan="off", log_config=None, ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield listening.getsockname()
    server.should_exit = True
    thread.join(PATIENCE)
    listening.close()


def until_closed(connection: socket.socket) -> bytes:
    """What comes until the other side closes; socket.timeout if it does not."""
    connection.settimeout(PATIENCE)
    heard = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            heard += chunk
    return heard


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET / HTT",
        b"GET / HTTP/1.1\r\nHost: hub\r\nX-Never: en",
        b"PUT / HTTP/1.1\r\nHost: hub\r\nContent-Length: 9\r\n\r\nab",
    ],
)
def test_a_client_that_stalls_is_left(address, sent):
    """Before a request, within its head, within its body."""
    with socket.create_connection(address) as connection:
        connection.sendall(sent)
        assert until_closed(connection) == b""


def test_a_head_without_end_is_refused(sqlite_hub):
    """It is not collected in memory."""
    host, port = sqlite_hub.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: hub\r\nX-Long: ")
            for _ in range(64):
                connection.sendall(b"x" * (1 << 16))
        assert until_closed(connection)[:12] in (b"", b"HTTP/1.1 400")
    assert httpx.get(f"{sqlite_hub.url}/healthz", headers={"X-Long": "x" * 60_000}).status_code == 200


def test_a_client_that_takes_its_time_is_served(address):
    """Several requests on one connection, and a body that comes in pieces."""
    with socket.create_connection(address) as connection:
        connection.settimeout(PATIENCE)
        for _ in range(3):
            connection.sendall(b"PUT / HTTP/1.1\r\nHost: hub\r\nContent-Length: 8\r\n\r\n")
            for _ in range(8):
                connection.sendall(b"x")
            assert b" 204 " in connection.recv(1000)
