"""Run an environment in the virtual environment that was made for its wheel, and hear what it does.

The process that runs it is `check_child` with that environment's Python. It may hang, crash or leave: then the check
that it was at has failed, and the ones after it are skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from verifiers.hub.schema import CheckResult
from verifiers.settings import environ_of_others

PLAYED = ("import", "load", "evaluate")
"""What the process does, in this order."""
_CHILD = "verifiers.hub.check_child"
EXIT_SECONDS = 10.0
"""For the process to end once it has closed the pipe."""
_TAIL = 1500
"""Characters of what it printed that are looked at for its last line."""


def run_checks(
    python: str,
    name: str,
    env_args: Mapping[str, Any],
    folder: Path,
    seconds: float,
    told: Callable[[CheckResult], None],
) -> None:
    """Run the checks of `PLAYED`, in an empty folder below `folder`; `told` gets the result of each."""
    work = folder / "work"
    work.mkdir()
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as printed:
        process = subprocess.Popen(
            [python, "-IB", "-m", _CHILD, str(writing), name, json.dumps(dict(env_args))],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
            cwd=work,
            env=environ_of_others(),
            start_new_session=True,
        )
        os.close(writing)
        try:
            _listen(process, reading, seconds, printed, told)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(reading)


def _listen(
    process: subprocess.Popen[bytes], pipe: int, seconds: float, printed: IO[bytes], told: Callable[[CheckResult], None]
) -> None:
    waiting = list(PLAYED)
    began = time.monotonic()
    deadline = began + seconds
    for line in _lines(pipe, deadline):
        try:
            result = CheckResult.model_validate_json(line)
        except ValidationError:
            continue  # whatever the environment wrote there, it is no result
        if result.id not in waiting:
            continue
        told(result)
        waiting.remove(result.id)
        began = time.monotonic()
        if result.status != "ok":
            break
    else:
        if waiting:
            left = deadline - time.monotonic()
            why = _ending(process) if left > 0 else f"it did not end within {seconds:g} s"
            spent = round(time.monotonic() - began, 3)
            told(CheckResult(id=waiting.pop(0), status="failed", seconds=spent, detail=why + _tail(printed)))
    for name in waiting:
        told(CheckResult(id=name, status="skipped", detail="what comes before it did not end well"))


def _lines(pipe: int, deadline: float) -> Iterator[bytes]:
    """The lines that come until the end, or the deadline."""
    rest = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            return
        received = os.read(pipe, 65_536)
        if not received:
            return
        *lines, rest = (rest + received).split(b"\n")
        yield from lines


def _ending(process: subprocess.Popen[bytes]) -> str:
    try:
        status = process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        return "it tells no more"
    if status < 0:
        return f"the process was killed by {signal.Signals(-status).name}"
    return f"the process left with status {status}"


def _tail(printed: IO[bytes]) -> str:
    size = printed.seek(0, os.SEEK_END)
    printed.seek(max(0, size - _TAIL))
    lines = printed.read().decode(errors="replace").strip().splitlines()
    return f"; it said last: {lines[-1][:300]}" if lines else ""
