"""What `hub install` of a locked environment takes beyond uv's own time for the same lock, with warm caches.

Each installs the lock into a fresh virtual environment of its own, interleaved. The environment needs `rich`, so the
lock holds packages of the user's index as well as one of the hub.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.case import Case, at_most, median_case
from benchmarks.hub import upload
from benchmarks.hub_servers import make_wheel, ours
from benchmarks.options import Options

HUB = [sys.executable, "-m", "verifiers.cli.hub.main"]
UV = [sys.executable, "-m", "uv"]


def run(options: Options) -> Iterator[Case]:
    """Seconds that ours takes more than uv, and both."""
    with tempfile.TemporaryDirectory() as name, ours(Path(name) / "hub") as server:
        folder = Path(name)
        wheels = folder / "wheels"
        wheels.mkdir()
        make_wheel(wheels, "pinned", "0.1.0", requires=("rich",))
        upload(server, wheels)
        settings = {"VF_HUB_URL": server.simple.removesuffix("/simple/"), "XDG_CACHE_HOME": str(folder / "cache")}
        lock = folder / "pylock.toml"
        _timed([*HUB, "lock", "bench/pinned@0.1.0", "-o", lock], settings)
        asked = ("install", "-r", lock, "--python")
        lines = {"hub": [*HUB, *asked], "uv": [*UV, "pip", *asked]}
        took: dict[str, list[float]] = {name: [] for name in lines}
        for number in range(1 + (1 if options.quick else options.runs)):  # the first fills the caches
            for name, line in lines.items():
                venv = folder / f"{name}-{number}"
                _timed([*UV, "venv", "--quiet", venv], settings)
                seconds = _timed([*line, venv / "bin" / "python"], settings)
                took[name].extend([seconds] if number else [])
    over = [ours_s - uv_s for ours_s, uv_s in zip(took["hub"], took["uv"], strict=True)]
    yield median_case("install a locked environment, beyond uv", "s", over, must=at_most(0.5), aim=at_most(0.2))
    yield median_case("install a locked environment (peer: uv alone)", "s", took["hub"], took["uv"])


def _timed(line: list[object], settings: dict[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(
        [str(part) for part in line], env={**os.environ, **settings}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{line} ended with {done.returncode}:\n{done.stderr}")
    return time.perf_counter() - began
