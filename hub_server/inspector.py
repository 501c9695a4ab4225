"""A pool of processes that look into uploads (`verifiers.hub.package.worker`).

    inspector = Inspector(processes=2)
    facts = inspector.inspect(path, "my_env-0.1.0-py3-none-any.whl", Policy())
    inspector.close()

The source of an upload is parsed, and hostile source can exhaust the parser, memory or time: that ends a process of
the pool, never the server. The upload is then refused with the rule `inspection-failed`, and the process replaced.
Threads share a pool; each server process has its own, and one that is forked starts afresh.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verifiers.hub.package.facts import FileFacts, Policy
from verifiers.hub.package.refusal import RefusedError, refuse
from verifiers.hub.package.worker import LENGTH, encoded

logger = logging.getLogger(__name__)

MEMORY = 1 << 30
"""Bytes of address space of one process."""
SECONDS = 10.0
"""Of processor time, for a small file."""
PATIENCE = 60.0
"""Seconds until the answer for a small file must be there, whatever else the machine does."""
BYTES_A_SECOND = 8 << 20
"""What a larger file is given more."""
FILES = 10_000
"""After so many a process is replaced: what Python does not give back of its memory goes with it."""


class EndedError(Exception):
    """The process ended, or was ended, in the middle of a file."""


class Inspector:
    """Processes that inspect files for the threads of this one. They start when they are first needed."""

    def __init__(
        self, processes: int = 2, *, memory: int = MEMORY, seconds: float = SECONDS, patience: float = PATIENCE
    ) -> None:
        self._size = processes
        self._memory = memory
        self._seconds = seconds
        self._patience = patience
        self._lock = threading.Lock()
        self._owner = 0
        self._idle: queue.SimpleQueue[_Process | None] = queue.SimpleQueue()
        self._closed = False
        self.on_end: Callable[[], None] = lambda: None
        """Called when a file has ended a process."""

    def inspect(self, path: Path, filename: str, policy: Policy) -> FileFacts:
        """What a file says, or RefusedError, as `verifiers.hub.package.inspect.inspect_file`; from any thread."""
        more = path.stat().st_size / BYTES_A_SECOND
        request = {"path": str(path), "filename": filename, "policy": policy.to_dict(), "seconds": self._seconds + more}
        reply = self._ask(encoded(request), self._patience + more)
        if "refused" in reply:
            raise RefusedError.from_dict(reply["refused"])
        if "failed" in reply:
            logger.error("inspecting %s failed: %s", filename, reply["failed"])
            refuse("inspection-failed", "it can not be looked into, by a fault of the hub's, which is in its log")
        return FileFacts.from_dict(reply["facts"])

    def _ask(self, request: bytes, patience: float) -> dict[str, Any]:
        """Have one of the processes answer, once one is free."""
        idle = self._queue()
        process = idle.get()  # None is a place for one that has yet to be started
        keep = False
        try:
            if process is None or not process.is_alive():
                process = self._started_instead_of(process)
            reply = process.ask(request, patience)
            keep = not self._closed and process.files < FILES
            return reply
        except EndedError as error:
            self.on_end()
            refuse("inspection-failed", f"it can not be looked into within the hub's limits: {error}")
        finally:
            if process is not None and not keep:  # one that did not answer could answer too late
                process.end()
            idle.put(process if keep else None)

    def close(self) -> None:
        """End the processes, after the files that they are at."""
        with self._lock:
            self._closed = True
            if self._owner != os.getpid():
                return
        for _ in range(self._size):
            process = self._idle.get()
            if process is not None:
                process.end()
        for _ in range(self._size):
            self._idle.put(None)

    def _queue(self) -> queue.SimpleQueue[_Process | None]:
        """The idle processes of this one; those of a process that this one was forked from are not its own."""
        with self._lock:
            if self._owner != os.getpid():
                self._owner = os.getpid()
                self._idle = queue.SimpleQueue()
                for _ in range(self._size):
                    self._idle.put(None)
            return self._idle

    def _started_instead_of(self, process: _Process | None) -> _Process:
        if process is not None:
            process.end()
        return _Process(self._memory)


class _Process:
    """One process of the pool. `files` counts what it was asked."""

    def __init__(self, memory: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "verifiers.hub.package.worker", str(memory)],
            env={name: value for name, value in os.environ.items() if not name.startswith("HUB_")},  # no secrets
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._poll = select.poll()
        self._poll.register(self._out, select.POLLIN)
        self.files = 0

    def is_alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        """Send and wait for the reply. EndedError says why there is none."""
        self.files += 1
        deadline = time.monotonic() + seconds
        with contextlib.suppress(BrokenPipeError):  # it is told by the end of the replies
            self._in.write(request)
        size = LENGTH.unpack(self._read(LENGTH.size, deadline))[0]
        reply: dict[str, Any] = json.loads(self._read(size, deadline))
        return reply

    def _read(self, size: int, deadline: float) -> bytes:
        parts = []
        while size:
            left = deadline - time.monotonic()
            if left <= 0 or not self._poll.poll(left * 1000):
                raise EndedError("it took too long")
            part = os.read(self._out.fileno(), min(size, 1 << 20))
            if not part:
                raise EndedError(self._ending())
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _ending(self) -> str:
        """Why it ended, in words."""
        status = self._process.wait()
        if -status == signal.SIGXCPU:
            return "it took too much processor time"
        return f"the process ended with {signal.Signals(-status).name if status < 0 else status}"

    def end(self) -> None:
        """Kill it and take its exit status."""
        self._process.kill()
        self._process.wait()
        self._in.close()
        self._out.close()
