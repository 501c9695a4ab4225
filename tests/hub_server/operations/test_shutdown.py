"""Requests in flight when the hub is told to stop: they are finished, or refused so that sending again is safe."""

import socket
import threading
import time

import httpx
import pytest

from tests.support.archives import write_wheel
from tests.support.hub import running_hub, start_hub
from tests.support.uploads import post_file


class SlowUpload(threading.Thread):
    """An upload whose body comes in two halves, the second one when the test says so."""

    def __init__(self, url, token, wheel):
        super().__init__()
        request = httpx.Request(
            "POST", f"{url}/legacy/",
            data={
                ":action": "file_upload", "protocol_version": "1", "name": "demo-env", "version": "0.1.0",
                "metadata_version": "2.1", "filetype": "bdist_wheel", "pyversion": "py3",
            },
            files={"content": (wheel.name, wheel.read_bytes())},
        )  # fmt: skip
        self.body = request.read()
        self.headers = {**request.headers}
        self.address = ("127.0.0.1", request.url.port)
        self.authorization = httpx.BasicAuth("__token__", token)._auth_header
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.answer = b""

    def run(self):
        head = {**self.headers, "Authorization": self.authorization}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        with socket.create_connection(self.address, 60) as connection:
            connection.sendall(f"POST /legacy/ HTTP/1.1\r\n{lines}\r\n".encode() + self.body[: len(self.body) // 2])
            self.begun.set()
            self.go_on.wait(60)
            try:
                connection.sendall(self.body[len(self.body) // 2 :])
                while chunk := connection.recv(65536):
                    self.answer += chunk
            except OSError:
                pass

    @property
    def status(self):
        return int(self.answer.split(b" ", 2)[1])


def in_flight(hub):
    """How many uploads the hub is at, apart from the request that asks."""
    text = httpx.get(f"{hub.url}/metrics").text
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith("hub_requests_in_flight")) - 1


def begin(hub, tmp_path):
    owner = hub.owner()
    wheel = write_wheel(tmp_path)
    upload = SlowUpload(hub.url, owner.token, wheel)
    upload.start()
    assert upload.begun.wait(60)
    while in_flight(hub) < 1:
        time.sleep(0.02)
    return owner, wheel, upload


@pytest.mark.slow
def test_an_upload_in_flight_is_finished(tmp_path):
    """New connections are refused at once, the upload is taken, and the hub ends with 0."""
    hub = start_hub(tmp_path / "hub")
    owner, _wheel, upload = begin(hub, tmp_path)
    hub.process.terminate()
    while True:
        try:
            httpx.get(f"{hub.url}/healthz")
        except httpx.TransportError:
            break
        time.sleep(0.02)
    upload.go_on.set()
    upload.join(60)
    assert upload.status == 200
    assert hub.stop() == 0
    with running_hub(tmp_path / "hub") as again:
        assert httpx.get(f"{again.url}/{owner.slug}/simple/demo-env/").is_success


@pytest.mark.slow
def test_an_upload_that_takes_too_long_is_refused(tmp_path):
    """After `shutdown_seconds` it gets a 503, nothing of it is kept, and sending it again works."""
    hub = start_hub(tmp_path / "hub", shutdown_seconds=1)
    owner, wheel, upload = begin(hub, tmp_path)
    assert hub.stop() == 0
    upload.go_on.set()
    upload.join(60)
    assert upload.status == 503
    assert b"is being restarted" in upload.answer
    assert list((tmp_path / "hub" / "incoming").iterdir()) == []
    with running_hub(tmp_path / "hub") as again:
        assert httpx.get(f"{again.url}/{owner.slug}/simple/demo-env/").status_code == 404
        assert post_file(again, owner.token, wheel).status_code == 200
