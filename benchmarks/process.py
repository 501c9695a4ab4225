"""Run a program and read what it cost: wall time, and CPU time of its whole process tree.

CPU (user + system) is the figure to compare on a small or shared machine: wall time there measures the
neighbours. Orphans that the program leaves behind are adopted, ended and counted, so that work moved into a
background process is not free. Linux only.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class Cost:
    """What one run took, in seconds, and what it printed on stdout."""

    wall_s: float
    cpu_s: float
    stdout: str


SPIN = """
import time
begun, used = time.perf_counter(), time.process_time()
while time.perf_counter() - begun < 0.5:
    pass
print((time.process_time() - used) / (time.perf_counter() - begun))
"""


def free_share(cores: int) -> float:
    """Which part of that many cores nobody else uses: what so many busy processes get, the one with the least.

    Measured, since a load average says little in a container.
    """
    busy = [subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True) for _ in range(cores)]
    return min(float(process.communicate()[0]) for process in busy)


def children_cpu() -> float:
    """CPU seconds of all children that have been waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(argv: Sequence[str | Path], env: Mapping[str, str] | None = None, limit_s: float = 600.0) -> Cost:
    """Run `argv` to its end and measure it; `env` is added to the present environment.

    Raises RuntimeError with the end of its stderr when the program fails, TimeoutExpired after `limit_s`.
    """
    others = _children()
    _adopt_orphans(yes=True)
    cpu, start = children_cpu(), time.perf_counter()
    # Files, not pipes: an orphan would keep a pipe open, and reading it would wait for the orphan.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        code = subprocess.run(
            [str(part) for part in argv],
            stdout=out,
            stderr=err,
            timeout=limit_s,
            cwd=tempfile.gettempdir(),  # `python -c` imports from here first: a peer must not find our checkout
            env={**os.environ, **(env or {})},
            check=False,
        ).returncode
        wall = time.perf_counter() - start
        _end(_children() - others)
        _adopt_orphans(yes=False)
        printed, complained = (_content(file) for file in (out, err))
    if code:
        raise RuntimeError(f"{argv[0]} ended with {code}:\n{complained[-2000:]}")
    return Cost(wall, children_cpu() - cpu, printed)


def _content(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _adopt_orphans(*, yes: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def _children() -> set[int]:
    """The processes whose parent is this one."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = status.read_text().rsplit(")", 1)[1].split()[1]
        except OSError:  # ended meanwhile
            continue
        if parent == str(os.getpid()):
            found.add(int(status.parent.name))
    return found


def _end(orphans: set[int]) -> None:
    """End and wait for what the program left running, so that its CPU time is counted."""
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class Service:
    """A helper process of a benchmark that stays while others are measured; a context manager.

    It must print one line when it is ready; `first_line` holds it.
    """

    def __init__(self, argv: Sequence[str | Path]) -> None:
        self._argv = [str(part) for part in argv]
        self.first_line = ""

    def __enter__(self) -> "Service":
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.first_line = self._process.stdout.readline().strip()
        if not self.first_line:
            raise RuntimeError(f"{self._argv} ended before it was ready")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()
