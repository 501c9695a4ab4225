"""A command as the agent knows it, and the supervisor that may have it."""

import _socket
import time

from verifiers.sandboxes.guest.agent.wire import EXITED

QUICK = 0.002
"""A command that ends sooner is read once, when it has ended: most of the cost of watching it is saved."""


class Supervisor:
    """The agent's view of one: its process and the connection to it. `lost`: something has killed it."""

    def __init__(self, pid: int, link: _socket.socket) -> None:
        self.pid = pid
        self.link = link
        self.job: Job | None = None
        self.lost = False


class Job:
    """A command that runs. `told`: the host has its end, but it has left something that runs."""

    def __init__(self, number: int, options: bytes) -> None:
        timeout, silence, keep, limit, self.flags, _ = [int(part) for part in options.split()]
        self.number = number
        self.began = self.heard = time.monotonic()
        self.deadline = self.began + timeout / 1e6 if timeout else None
        self.silence = silence / 1e6 if silence else None
        self.keep = keep
        self.limit = limit
        self.waiting: tuple[bytes, list[int]] | None = None
        self.watched = False
        self.supervisor: Supervisor | None = None
        self.pid = 0
        self.signals: list[int] = []
        self.streams: dict[int, int] = {}
        self.counts = [0, 0]
        self.stdin = -1
        self.input: list[bytes] = []
        self.input_ends = False
        self.reason = EXITED
        self.ended: tuple[int, int, int] | None = None
        self.seconds = 0.0
        self.killing = 0.0
        self.next_round = 0.0
        self.killed = 0
        self.told = False
        self.status = -1
        self.cpu = 0.0
        self.peak = 0

    def wakes(self) -> "float | None":
        """When something is to be done for it next, None for never."""
        if self.killing or self.waiting:
            return self.next_round
        if not self.watched:
            return self.began + QUICK
        if self.ended is not None:
            return None
        if self.silence is None:
            return self.deadline
        quiet = self.heard + self.silence
        return quiet if self.deadline is None else min(quiet, self.deadline)
