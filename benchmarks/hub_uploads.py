"""How fast releases come in, with all checks, eight at once: our hub on PostgreSQL and on SQLite beside devpi-server.

Each upload is a new project with one tiny wheel, sent as twine sends it. The client, the server and the database share
the machine, as they share it for the peer.
"""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.case import Case, at_most, median_case
from benchmarks.hub import upload
from benchmarks.hub_servers import Server, devpi, make_wheel, ours, postgresql
from benchmarks.options import Options

WRITERS = 8


def run(options: Options) -> Iterator[Case]:
    """Time an upload and the slowest hundredth of them, on each server."""
    count = 16 if options.quick else 400
    slow_count = 8 if options.quick else 60  # devpi takes some hundred milliseconds for each
    took: dict[str, list[float]] = {}
    p99: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = _servers(options, Path(folder), stack)
        for run_number in range(1 if options.quick else options.runs):
            for name, server in servers.items():
                wheels = Path(folder) / f"{name}-{run_number}"
                wheels.mkdir()
                for number in range(slow_count if name == "devpi" else count):
                    make_wheel(wheels, f"env-{run_number}-{number:04d}", "0.1.0")
                found = upload(server, wheels, WRITERS)
                took.setdefault(name, []).append(1e3 / found["rate"])
                p99.setdefault(name, []).append(found["p99_ms"])
    peer = took.get("devpi", [])
    for name, title in (("postgresql", "PostgreSQL"), ("sqlite", "SQLite")):
        strict = name == "postgresql"
        yield median_case(
            f"upload, {WRITERS} writers, {title} (peer: devpi)", "ms each", took[name], peer,
            must=at_most(20) if strict else None, aim=at_most(10) if strict else None,
        )  # fmt: skip
        yield median_case(
            f"upload, {WRITERS} writers, {title} (peer: devpi)", "ms p99", p99[name], p99.get("devpi", []),
            must=at_most(500) if strict else None, aim=at_most(100) if strict else None,
        )  # fmt: skip


def _servers(options: Options, folder: Path, stack: ExitStack) -> dict[str, Server]:
    url = stack.enter_context(postgresql(folder / "pg"))
    servers = {
        "postgresql": stack.enter_context(ours(folder / "hub-pg", url)),
        "sqlite": stack.enter_context(ours(folder / "hub-sqlite")),
    }
    if options.peer:
        servers["devpi"] = stack.enter_context(devpi(folder / "devpi"))
    return servers
