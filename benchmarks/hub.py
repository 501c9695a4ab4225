"""What reading from our hub costs beside three package indexes: a project page, a small file, a large one; and a page
among 100,000 projects beside one among 1,000.

All serve the same wheels over loopback, one server process each, interleaved. The figure of a page is CPU time of the
server's process tree a request; a download is bound by copying, so its figure is the time it takes.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.case import Case, at_most, median_case, times_less
from benchmarks.hub_fill import fill
from benchmarks.hub_servers import Server, devpi, make_wheel, ours, proxpi, pypiserver
from benchmarks.options import Options

VERSIONS = 50
LARGE = 20 << 20
FEW, MANY = 1_000, 100_000


def run(options: Options) -> Iterator[Case]:
    """Pages and files beside the others, then the page at two sizes of the hub."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _beside_others(options, Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        yield from _at_two_sizes(options, Path(folder))


def load(what: str, server: Server, url: str, *arguments: object) -> dict[str, Any]:
    """One run of the client, with `cpu_ms` of the server a request. Answers that are no success end the benchmark."""
    line = [sys.executable, "-m", "benchmarks.hub_load", what, url, *map(str, arguments)]
    before = server.cpu()
    done = subprocess.run(line, check=True, capture_output=True, text=True)
    used = server.cpu() - before
    found: dict[str, Any] = json.loads(done.stdout)
    if set(found["statuses"]) != {"200"}:
        raise RuntimeError(f"{server.name} answered {found['statuses']} at {url}")
    found["cpu_ms"] = 1e3 * used / found["requests"]
    return found


def upload(server: Server, folder: Path, connections: int = 1) -> dict[str, Any]:
    """Upload every wheel of a folder."""
    login = ("--user", server.user, "--token", server.token)
    return load("upload", server, server.upload, folder, "--connections", connections, *login)


def _beside_others(options: Options, folder: Path) -> Iterator[Case]:
    wheels = folder / "wheels"
    wheels.mkdir()
    for minor in range(VERSIONS):
        make_wheel(wheels, "big", f"0.{minor}.0")
    make_wheel(wheels, "blob", "0.1.0", padding=LARGE)
    with ExitStack() as stack:
        servers = {"hub": stack.enter_context(ours(folder / "hub"))}
        upload(servers["hub"], wheels)
        if options.peer:
            servers["pypiserver"] = stack.enter_context(pypiserver(wheels))
            servers["proxpi"] = stack.enter_context(proxpi(servers["pypiserver"]))
            servers["devpi"] = stack.enter_context(devpi(folder / "devpi"))
            upload(servers["devpi"], wheels)
        pages = {name: server.page("big") for name, server in servers.items()}
        files = {name: server.first_file("blob") for name, server in servers.items()}
        costs: dict[str, list[float]] = {name: [] for name in servers}
        times: dict[str, list[float]] = {name: [] for name in servers}
        seconds = 0.3 if options.quick else 2.0
        for _ in range(1 if options.quick else options.runs):
            for name, server in servers.items():
                asked = ("--accept", server.accept, "--seconds", seconds, "--connections", 4)
                page = load("get", server, pages[name], *asked)
                file = load("get", server, files[name], "--seconds", seconds, "--connections", 1)
                costs[name].append(page["cpu_ms"])
                times[name].append(1e3 * file["seconds"] / file["requests"])
    for name in [name for name in servers if name != "hub"] or [""]:
        strict = name == "proxpi"
        yield median_case(
            f"project page, {VERSIONS} versions" + f" (peer: {name})" * bool(name), "CPU ms",
            costs["hub"], costs.get(name, []),
            must=times_less(1) if strict else None, aim=times_less(2) if strict else None,
        )  # fmt: skip
        yield median_case(
            "download of 20 MB" + f" (peer: {name})" * bool(name), "ms", times["hub"], times.get(name, []),
            must=times_less(0.5) if strict else None, aim=times_less(1) if strict else None,
        )  # fmt: skip


def _at_two_sizes(options: Options, folder: Path) -> Iterator[Case]:
    many = 2 * FEW if options.quick else MANY
    measured: dict[int, list[float]] = {FEW: [], many: []}
    asked = ("--seconds", 0.3 if options.quick else 2)
    with ExitStack() as stack:
        servers: dict[int, Server] = {}
        for size in measured:
            data = folder / str(size)
            data.mkdir()
            fill(f"sqlite:///{data / 'hub.sqlite3'}", size)
            servers[size] = stack.enter_context(ours(data))
        for _ in range(1 if options.quick else options.runs):
            for size, server in servers.items():
                page = load("get", server, server.page("big"), "--accept", server.accept, *asked)
                measured[size].append(page["p50_ms"])
    yield Case(
        f"project page among {many:,} projects beside one among {FEW:,}", "× as long",
        median(measured[many]) / median(measured[FEW]), None, at_most(1.5), at_most(1.05),
    )  # fmt: skip
    yield median_case(f"project page among {many:,} projects, p50", "ms", measured[many])
