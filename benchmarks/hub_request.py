"""What the hub's middleware adds to a request: its id, its line in the log, its numbers. Ours alone.

CPU microseconds a request around an application that does nothing, with numbers of one server process and with
those that several share.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.case import Case, at_most, median_case
from benchmarks.options import Options

MAY_COST_US = 30.0


class _Route:
    path = "/{owner}/simple/{name}/"


class _Principal:
    slug, token_id = "alice", "0123456789ab"


def run(options: Options) -> Iterator[Case]:
    """One case for one process, one for several."""
    for name, shared in (("around a request, one process", False), ("around a request, several processes", True)):
        requests, runs = (500, 1) if options.quick else (10_000, options.runs)
        costs = [_measured(shared, requests) for _ in range(runs)]
        yield median_case(name, "CPU µs", costs, must=None if options.quick else at_most(MAY_COST_US))


def _measured(shared: bool, requests: int) -> float:
    """In a process of its own: the library decides when it is loaded whether its numbers are shared."""
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, **({"PROMETHEUS_MULTIPROC_DIR": folder} if shared else {})}
        line = [sys.executable, "-m", "benchmarks.hub_request", str(requests)]
        done = subprocess.run(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return float(done.stdout)


async def _cost(requests: int) -> float:
    from hub_server.operations import logs
    from hub_server.operations.middleware import Watch
    from hub_server.settings import load_settings

    settings = load_settings(log_format="json")
    logs.configure(settings)

    async def application(scope: Any, _receive: Any, send: Any) -> None:
        scope["route"], scope["state"] = _Route, {"principal": _Principal}
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b"x" * 100})

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(_message: Any) -> None:
        return None

    async def seconds(app: Any) -> float:
        began = time.process_time()
        for _ in range(requests):
            headers = [(b"host", b"x"), (b"accept", b"y"), (b"user-agent", b"uv")]
            scope = {"type": "http", "method": "GET", "path": "/alice/simple/my-env/", "client": ("::1", 1)}
            await app({**scope, "headers": headers}, receive, send)
        return time.process_time() - began

    watched = Watch(application, settings)
    await seconds(watched)
    return (await seconds(watched) - await seconds(application)) / requests * 1e6


if __name__ == "__main__":
    sys.stdout.write(f"{asyncio.run(_cost(int(sys.argv[1])))}\n")
