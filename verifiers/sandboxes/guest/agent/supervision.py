"""Commands in the hands of supervisors, and killing, by descent."""

import _signal  # type: ignore[import-not-found]
import _socket
import posix
import select
import sys
import time

from verifiers.sandboxes.guest.agent.job import Job, Supervisor
from verifiers.sandboxes.guest.agent.processes import Native, close_all, descendants, parents, send_signal
from verifiers.sandboxes.guest.agent.starting import JOB_BYTES, supervise
from verifiers.sandboxes.guest.agent.streams import Streams
from verifiers.sandboxes.guest.agent.wire import LOST, STARTED, unpack

IDLE_SUPERVISORS = 2
KILL_SECONDS = 0.3
"""Afterwards the supervisor itself is killed, and what it had adopted with it; after three times as long, all is."""


class Supervision(Streams):
    """Who has which command, and how all of that ends."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__(inward, outward)
        self.idle: list[Supervisor] = []
        self.supervisors: dict[int, Supervisor] = {}
        self.direct: Job | None = None
        """The command whose processes are the agent's own children."""
        self.orphans = 0.0
        self.first_orphan = 0.0
        self.native: Native | None = None

    def end(self, job: Job, left: "list[int]") -> None:
        """Its first process has ended; `left` are those that have not."""
        raise NotImplementedError

    def fail(self, job: Job, number: int, stage: bytes) -> None:
        """It could not be started."""
        raise NotImplementedError

    def finish(self, job: Job, left: int) -> None:
        """It has ended; `left` processes live on."""
        raise NotImplementedError

    def hand_over(self, job: Job, body: bytes, fds: "list[int]") -> None:
        """Give it to an idle supervisor, or to a new one."""
        rights = b"".join(fd.to_bytes(4, sys.byteorder) for fd in fds)
        while self.idle and len(body) <= JOB_BYTES:
            supervisor = self.idle.pop()
            try:
                supervisor.link.sendmsg(
                    [body],
                    [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)],
                    _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL,
                )
            except OSError:
                self.dismiss(supervisor)
                continue
            break
        else:
            supervisor = self.new_supervisor(body, fds)
        supervisor.job = job
        job.supervisor = supervisor

    def new_supervisor(self, body: bytes, fds: "list[int]") -> Supervisor:
        """Fork one, which has its first job."""
        ours, link = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        pid = posix.fork()
        if pid == 0:
            below = 3
            for fd in sorted([link.fileno(), *fds]):
                posix.closerange(below, fd)
                below = fd + 1
            posix.closerange(below, 1 << 16)
            supervise(self.native, link, unpack(body), fds)
        link.close()
        supervisor = Supervisor(pid, ours)
        self.supervisors[pid] = supervisor
        self.watch(ours.fileno(), select.EPOLLIN, lambda events: self.hear(supervisor))
        return supervisor

    def dismiss(self, supervisor: Supervisor) -> None:
        """Hang up: it ends."""
        self.unwatch(supervisor.link.fileno())
        supervisor.link.close()
        if supervisor in self.idle:
            self.idle.remove(supervisor)

    def hear(self, supervisor: Supervisor) -> None:
        """A message of a supervisor."""
        try:
            message = supervisor.link.recv(256).split()
        except OSError:
            message = []
        job = supervisor.job
        if not message or job is None:
            self.lose(supervisor)
        elif message[0] == b"S":
            job.pid = int(message[1])
            self.signal(job)
            self.send(STARTED, job.number, message[1])
        elif message[0] == b"F":
            self.rest(supervisor)
            self.fail(job, int(message[1]), message[2])
        elif message[0] == b"E":
            job.ended = (int(message[1]), int(message[2]), int(message[3]))
            if message[4] == b"0":
                self.rest(supervisor)
            self.end(job, [] if message[4] == b"0" else descendants(supervisor.pid, parents()))
        else:  # nothing is left of it
            self.rest(supervisor)
            self.finish(job, 0)

    def lose(self, supervisor: Supervisor) -> None:
        """Something has killed it: what it had adopted is the agent's, or will be once it has ended: its connection is
        closed before its children have another parent."""
        supervisor.lost = True
        self.dismiss(supervisor)
        self.orphans = self.first_orphan = time.monotonic()
        job, supervisor.job = supervisor.job, None
        if job is not None:
            job.supervisor = None
            job.reason = job.reason or LOST
            job.killing = job.killing or self.orphans
            job.next_round = self.orphans
        if self.direct is not None:  # its processes and those orphans cannot be told apart
            self.kill(self.direct, LOST)

    def rest(self, supervisor: Supervisor) -> None:
        """It has nothing to do."""
        if supervisor.job is not None:
            supervisor.job.supervisor = None
        supervisor.job = None
        if len(self.idle) < IDLE_SUPERVISORS:
            self.idle.append(supervisor)
        else:
            self.dismiss(supervisor)

    # --- signals

    def signal(self, job: Job) -> None:
        """Send it what it was sent, once its number is known: to all of its process group, as a terminal does."""
        while job.pid and job.signals:
            send_signal(-job.pid, job.signals.pop(0))

    def kill(self, job: Job, reason: int) -> None:
        """Kill a command with all that descends from it; `finish` follows when nothing is left."""
        if job.waiting:  # it never begins
            close_all(job.waiting[1])
            job.waiting = None
        if not job.killing:
            job.reason = job.reason if job.told else job.reason or reason
            job.killing = time.monotonic()
            self.round(job)

    def round(self, job: Job) -> None:
        """Kill what is there now; there may be more the next time."""
        now = time.monotonic()
        spent = now - job.killing
        job.next_round = now + min(0.05, max(0.002, spent))
        supervisor = job.supervisor
        if self.direct is job:
            found = self.own_processes()
        elif supervisor is not None:
            found = descendants(supervisor.pid, parents())
        else:  # it has not begun, or is lost: see `sweep`
            if not self.orphans:
                job.seconds = job.seconds or now - job.began
                self.finish(job, 0)
            return
        if job.pid and job.ended is None:
            send_signal(-job.pid, _signal.SIGKILL)
        for pid in found:
            send_signal(pid, _signal.SIGKILL)
        if job.ended is not None and not job.told:
            job.killed = max(job.killed, len(found))
        if supervisor is not None:
            send_signal(supervisor.pid, _signal.SIGCONT)  # something may have stopped it
            if spent > KILL_SECONDS:
                send_signal(supervisor.pid, _signal.SIGKILL)
        elif spent > KILL_SECONDS and posix.getpid() == 1:
            send_signal(-1, _signal.SIGKILL)  # they breed faster than they are found: at one stroke, all

    def own_processes(self) -> "list[int]":
        """The agent's descendants but for supervisors and theirs: those of `direct`, and of supervisors that were
        killed, which are among them until they are reaped."""
        me, known = posix.getpid(), parents()
        for pid, supervisor in self.supervisors.items():
            if not supervisor.lost:
                known.pop(pid, None)
        return descendants(me, known)

    def sweep(self) -> None:
        """Kill what killed supervisors had adopted."""
        now = time.monotonic()
        found = self.own_processes()
        if not found:
            self.orphans = 0.0
            return
        if posix.getpid() == 1 and now - self.first_orphan > 2 * KILL_SECONDS:
            send_signal(-1, _signal.SIGKILL)
        for pid in found:
            send_signal(pid, _signal.SIGKILL)
        self.orphans = now + 0.002
