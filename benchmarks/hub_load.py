"""A client that asks a package index the same thing again and again, from a process of its own.

    python -m benchmarks.hub_load get URL --seconds 3 --connections 4 --accept application/json
    python -m benchmarks.hub_load upload URL FOLDER --connections 8 --token TOKEN

Raw sockets with keep-alive: on a small machine a heavier client would take the time that the server is measured in.
Prints one JSON object: requests, seconds, rate, p50_ms, p99_ms, megabytes, statuses.
"""

import argparse
import base64
import hashlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

BUFFER = 1 << 20
BOUNDARY = "benchmark-boundary"


class Connection:
    """One keep-alive connection. `ask` sends a request and returns the status and the bytes of the body."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._socket = self._open()
        self._buffer = bytearray(BUFFER)

    def _open(self) -> socket.socket:
        opened = socket.create_connection(self._address, timeout=120)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return opened

    def ask(self, request: bytes) -> tuple[int, int]:
        """Send, and read the whole answer."""
        try:
            return self._ask(request)
        except (ConnectionError, EOFError):  # the server closed an idle connection
            self._socket.close()
            self._socket = self._open()
            return self._ask(request)

    def _ask(self, request: bytes) -> tuple[int, int]:
        self._socket.sendall(request)
        head = b""
        while b"\r\n\r\n" not in head:
            got = self._socket.recv(65536)
            if not got:
                raise EOFError
            head += got
        head, _, rest = head.partition(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head.lower():
            length = self._to_last_chunk(rest)
        else:
            length = self._length(head)
            self._skip(length - len(rest))
        if b"connection: close" in head.lower():
            self._socket.close()
            self._socket = self._open()
        return int(head[9:12]), length

    def _skip(self, left: int) -> None:
        while left > 0:
            got = self._socket.recv_into(self._buffer, min(left, BUFFER))
            if not got:
                raise EOFError
            left -= got

    def _to_last_chunk(self, rest: bytes) -> int:
        """How many bytes came, with the framing: some servers chunk their pages."""
        while not rest.endswith(b"0\r\n\r\n"):
            got = self._socket.recv(65536)
            if not got:
                raise EOFError
            rest += got
        return len(rest)

    @staticmethod
    def _length(head: bytes) -> int:
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                return int(value)
        raise RuntimeError(f"the answer has no Content-Length: {head[:200]!r}")


def get_request(url: str, accept: str, token: str | None) -> bytes:
    """The bytes of a GET."""
    parts = urlsplit(url)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    lines = [f"GET {path} HTTP/1.1", f"Host: {parts.netloc}", f"Accept: {accept}", "User-Agent: benchmark"]
    if token:
        lines.append(_basic("__token__", token))
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def upload_request(url: str, wheel: Path, user: str, password: str) -> bytes:
    """The bytes of an upload, as twine sends it."""
    content = wheel.read_bytes()
    name, version = wheel.name.split("-")[:2]
    fields = {
        ":action": "file_upload", "protocol_version": "1", "name": name.replace("_", "-"), "version": version,
        "filetype": "bdist_wheel", "pyversion": "py3", "metadata_version": "2.1",
        "sha256_digest": hashlib.sha256(content).hexdigest(),
    }  # fmt: skip
    body = b"".join(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{key}"\r\n\r\n{value}\r\n'.encode()
        for key, value in fields.items()
    )
    body += (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="content"; filename="{wheel.name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    ).encode()
    body += content + f"\r\n--{BOUNDARY}--\r\n".encode()
    parts = urlsplit(url)
    head = [
        f"POST {parts.path} HTTP/1.1", f"Host: {parts.netloc}", _basic(user, password), "User-Agent: benchmark",
        f"Content-Type: multipart/form-data; boundary={BOUNDARY}", f"Content-Length: {len(body)}",
    ]  # fmt: skip
    return ("\r\n".join(head) + "\r\n\r\n").encode() + body


def _basic(user: str, password: str) -> str:
    return "Authorization: Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


class Tally:
    """What all connections saw."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.statuses: dict[int, int] = {}
        self.bytes = 0
        self._lock = threading.Lock()

    def add(self, taken: float, status: int, length: int) -> None:
        """One answer."""
        with self._lock:
            self.seconds.append(taken)
            self.statuses[status] = self.statuses.get(status, 0) + 1
            self.bytes += length


def drive(url: str, connections: int, requests: Callable[[], bytes | None]) -> dict[str, object]:
    """Send requests over so many connections until there are none left."""
    parts = urlsplit(url)
    tally = Tally()

    def work() -> None:
        connection = Connection(parts.hostname or "", parts.port or 80)
        while (request := requests()) is not None:
            began = time.perf_counter()
            status, length = connection.ask(request)
            tally.add(time.perf_counter() - began, status, length)

    threads = [threading.Thread(target=work) for _ in range(connections)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    ordered = sorted(tally.seconds)
    return {
        "requests": len(ordered), "seconds": took, "rate": len(ordered) / took,
        "p50_ms": 1e3 * ordered[len(ordered) // 2], "p99_ms": 1e3 * ordered[int(len(ordered) * 0.99)],
        "megabytes": tally.bytes / 1e6, "statuses": {str(status): n for status, n in tally.statuses.items()},
    }  # fmt: skip


def until(seconds: float, request: bytes) -> Callable[[], bytes | None]:
    """The same request until the time is up."""
    end = time.perf_counter() + seconds
    return lambda: request if time.perf_counter() < end else None


def each(requests: Iterator[bytes]) -> Callable[[], bytes | None]:
    """Each request once."""
    lock = threading.Lock()

    def following() -> bytes | None:
        with lock:
            return next(requests, None)

    return following


def main() -> None:
    """Parse the command line, drive, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["get", "upload"])
    parser.add_argument("url")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--accept", default="*/*")
    parser.add_argument("--user", default="__token__")
    parser.add_argument("--token")
    given = parser.parse_args()
    if given.what == "get":
        requests = until(given.seconds, get_request(given.url, given.accept, given.token))
    else:
        wheels = sorted(given.folder.glob("*.whl"))
        made = [upload_request(given.url, wheel, given.user, given.token or "") for wheel in wheels]
        requests = each(iter(made))
    json.dump(drive(given.url, given.connections, requests), sys.stdout)
    print()


if __name__ == "__main__":
    main()
