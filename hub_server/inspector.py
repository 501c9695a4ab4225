"""A pool of processes that look into uploads (`verifiers.hub.package.worker`).

    inspector = Inspector(processes=2)
    facts = inspector.inspect(path, "my_env-0.1.0-py3-none-any.whl", Policy(), account="alice")
    inspector.close()

The source of an upload is parsed, and hostile source can exhaust the parser, memory or time: that ends a process of
the pool, never the server. The upload is then refused with the rule `inspection-failed`, and the process replaced.
A process that comes free goes to the account that has the fewest: however many slow files one account sends, the next
one waits for one of them at most. BusyError tells when none comes free in time.
Threads share a pool; each server process has its own, and one that is forked starts afresh.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
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
WAITING_SECONDS = 30.0
"""For a process to come free."""
WAITING_FILES = 16
"""Of one account. Each keeps a thread of the server."""
FILES = 10_000
"""After so many a process is replaced: what Python does not give back of its memory goes with it."""


class EndedError(Exception):
    """The process ended, or was ended, in the middle of a file."""


class BusyError(Exception):
    """No process came free in time, or the account has too many files waiting for one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A file that waits for a process."""

    account: str


class Inspector:
    """Processes that inspect files for the threads of this one. They start when they are first needed."""

    def __init__(
        self,
        processes: int = 2,
        *,
        memory: int = MEMORY,
        seconds: float = SECONDS,
        patience: float = PATIENCE,
        waiting: float = WAITING_SECONDS,
    ) -> None:
        self._size = processes
        self._memory = memory
        self._seconds = seconds
        self._patience = patience
        self._waiting_seconds = waiting
        self._changed = threading.Condition()
        self._pid = 0
        self._idle: list[_Process | None] = []  # None is a place for one that has yet to be started
        self._turns: list[_Turn] = []
        self._held: Counter[str] = Counter()
        self._closed = False
        self.on_end: Callable[[], None] = lambda: None
        """Called when a file has ended a process."""

    def inspect(self, path: Path, filename: str, policy: Policy, account: str = "") -> FileFacts:
        """What a file says, or RefusedError, as `verifiers.hub.package.inspect.inspect_file`; from any thread.

        account: whose file it is. Raises BusyError where no process comes free.
        """
        more = path.stat().st_size / BYTES_A_SECOND
        request = {"path": str(path), "filename": filename, "policy": policy.to_dict(), "seconds": self._seconds + more}
        reply = self._ask(encoded(request), self._patience + more, account)
        if "refused" in reply:
            raise RefusedError.from_dict(reply["refused"])
        if "failed" in reply:
            logger.error("inspecting %s failed: %s", filename, reply["failed"])
            refuse("inspection-failed", "it can not be looked into, by a fault of the hub's, which is in its log")
        return FileFacts.from_dict(reply["facts"])

    def _ask(self, request: bytes, patience: float, account: str) -> dict[str, Any]:
        """Have one of the processes answer, once one is free."""
        process = self._take(account)
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
            self._give_back(process if keep else None, account)

    def _take(self, account: str) -> _Process | None:
        """The next process, once it is this account's turn."""
        turn = _Turn(account)
        with self._changed:
            self._begin()
            if sum(one.account == account for one in self._turns) >= WAITING_FILES:
                raise BusyError(f"more than {WAITING_FILES} files of {account or 'one account'} wait to be inspected")
            self._turns.append(turn)
            try:
                if not self._changed.wait_for(lambda: self._idle and self._next() is turn, self._waiting_seconds):
                    raise BusyError(f"nothing came free to inspect it for {self._waiting_seconds:g} s")
            finally:
                self._turns.remove(turn)
                self._changed.notify_all()
            self._held[account] += 1
            return self._idle.pop(0)

    def _next(self) -> _Turn:
        """Of the account that holds the fewest processes, the one that has waited longest."""
        return min(self._turns, key=lambda turn: self._held[turn.account])

    def _give_back(self, process: _Process | None, account: str) -> None:
        with self._changed:
            self._held[account] -= 1
            if not self._held[account]:
                del self._held[account]
            self._idle.append(process)
            self._changed.notify_all()

    def close(self) -> None:
        """End the processes, after the files that they are at."""
        with self._changed:
            self._closed = True
            if self._pid != os.getpid():
                return
            self._changed.wait_for(lambda: len(self._idle) == self._size)
            for process in filter(None, self._idle):
                process.end()
            self._idle = [None] * self._size

    def _begin(self) -> None:
        """Start anew in a process that was forked: the processes of the one that it comes from are not its own."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._idle = [None] * self._size
            self._turns, self._held = [], Counter()

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
