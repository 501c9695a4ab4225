"""Runs commands and touches files for whoever holds the other end of the connection.

A command is a child of the agent itself, which adopts what that leaves behind (prctl(2), PR_SET_CHILD_SUBREAPER): no
process can leave its ancestors, `wait` says when nothing is left, and killing goes by descent. So that this stays exact
while several commands run, the others are children of *supervisors*: forks of the agent that do the same for one
command each, and then for the next. A command can kill its supervisor, being of the same user: the agent hears of it at
once, and kills what the supervisor had.
"""

import _signal  # type: ignore[import-not-found]
import errno
import posix
import time

from verifiers.sandboxes.guest.agent.files import OPERATIONS
from verifiers.sandboxes.guest.agent.job import Job
from verifiers.sandboxes.guest.agent.processes import (
    close_all,
    descendants,
    parents,
    prefer_to_kill,
    send_signal,
)
from verifiers.sandboxes.guest.agent.starting import ROOM_SECONDS, stage, start
from verifiers.sandboxes.guest.agent.supervision import Supervision
from verifiers.sandboxes.guest.agent.wire import (
    CANCELLED,
    CHUNK,
    END,
    FAIL,
    FILE,
    GONE,
    KILL,
    KILL_LEFTOVERS,
    PING,
    PIPED,
    PONG,
    REPLY,
    RUN,
    SIGNAL,
    SILENCE,
    STARTED,
    STDIN,
    TELL_PID,
    TIMEOUT,
    pack,
    unpack,
)

LONGEST_WAIT = 3600.0
"""A deadline may lie further off than the kernel can count to."""
LAST_READS = 17
"""A pipe holds at most 1 MiB: so many reads get all that was written before the command's end."""


class Agent(Supervision):
    """Does what frames ask for: the first command as its own child, others by supervisors."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__(inward, outward)
        self.preference = -1
        self.own_preference = b"0"

    def take(self, kind: int, number: int, body: bytes) -> None:
        """Do what a frame asks for."""
        if kind == RUN:
            self.run(number, body)
        elif kind == FILE:
            self.file(number, unpack(body))
        elif kind == PING:
            self.send(PONG, number)
        elif number in self.jobs:
            job = self.jobs[number]
            if kind == STDIN:
                if body:
                    job.input.append(body)
                else:
                    job.input_ends = True
                self.feed(job)
            elif kind == SIGNAL and job.ended is None:
                job.signals.append(int(body))
                self.signal(job)
            elif kind == KILL:
                self.kill(job, CANCELLED)
        elif kind == KILL:
            self.send(GONE, number)

    def die(self) -> None:
        """End with all processes: of a namespace the kernel ends them."""
        me = posix.getpid()
        while me != 1:
            found = descendants(me, parents())
            if not found:
                break
            for pid in found:
                send_signal(pid, _signal.SIGKILL)
            self.reap()
        posix._exit(0)

    def file(self, number: int, parts: "list[bytes]") -> None:
        """Do something with a file, and answer if an answer is waited for."""
        try:
            kind, body = REPLY, pack(OPERATIONS[parts[0]](*parts[1:]))
        except OSError as error:
            kind, body = FAIL, b"%d file" % (error.errno or errno.EIO)
        if number:
            self.send(kind, number, body)

    # --- running

    def run(self, number: int, body: bytes) -> None:
        """Start a command."""
        first = 4 + 4 * int.from_bytes(body[:4], "little")
        job = self.jobs[number] = Job(number, body[first : first + int.from_bytes(body[4:8], "little")])
        mine: list[int] = []
        theirs: list[int] = []
        try:
            for piped, write in ((job.flags & PIPED, True), (True, False), (True, False)):
                if piped:
                    ends = posix.pipe2(posix.O_CLOEXEC)
                    mine.append(ends[write])
                    theirs.append(ends[not write])
                    posix.set_blocking(ends[write], False)
        except OSError as error:
            close_all(mine + theirs)
            self.fail(job, error.errno or errno.EIO, b"start")
            return
        if job.flags & PIPED:
            job.stdin = mine.pop(0)
        for index, fd in enumerate(mine):
            job.streams[fd] = index
        job.waiting = (body, theirs)
        self.begin(job)

    def begin(self, job: Job) -> None:
        """Find a supervisor for it; where there is no room for one more process, try again a little later."""
        assert job.waiting is not None
        body, fds = job.waiting
        now = time.monotonic()
        try:
            if self.direct is None and not self.orphans:
                self.start_direct(job, body, fds)
            else:
                self.hand_over(job, body, fds)
        except BlockingIOError as error:
            job.next_round = now + 0.005
            if now - job.began < ROOM_SECONDS:
                return
            self.fail(job, error.errno or errno.EAGAIN, b"start")
        except OSError as error:
            self.fail(job, error.errno or errno.EIO, stage(error))
        if job.waiting:  # else it was dropped
            job.waiting = None
            close_all(fds)
            if job.deadline is not None:
                job.deadline += now - job.began
            job.began = job.heard = now

    def start_direct(self, job: Job, body: bytes, fds: "list[int]") -> None:
        """Start it as a child of the agent."""
        prefer_to_kill(self.preference)
        try:
            job.pid = start(unpack(body), fds)
        finally:
            prefer_to_kill(self.preference, self.own_preference)
            posix.chdir("/")
        self.direct = job
        if job.flags & TELL_PID:
            self.send(STARTED, job.number, b"%d" % job.pid)

    # --- ends

    def end(self, job: Job, left: "list[int]") -> None:
        """Its first process has ended; `left` are those that have not."""
        self.close_input(job)
        job.seconds = time.monotonic() - job.began
        if left and (job.flags & KILL_LEFTOVERS or job.killing):
            self.kill(job, job.reason)
        else:
            self.finish(job, len(left))

    def fail(self, job: Job, number: int, stage: bytes) -> None:
        """It could not be started."""
        self.drop(job)
        self.send(FAIL, job.number, b"%d %s" % (number, stage))

    def finish(self, job: Job, left: int) -> None:
        """It has ended: send its last output and how it ended. `left`: processes that live on."""
        if job.told:
            self.send(GONE, job.number)
            self.drop(job)
            return
        for fd in list(job.streams):
            for _ in range(LAST_READS):
                if not self.read(job, fd):
                    break
        status, cpu, peak = job.ended or (int(_signal.SIGKILL), 0, 0)
        numbers = (status, *job.counts, job.seconds * 1e6, cpu, peak, job.reason, left, job.killed)
        self.send(END, job.number, b"%d %d %d %d %d %d %d %d %d" % numbers)
        job.told = True
        job.killing = 0.0
        if left:  # they may write on: nobody listens, but nobody is killed by it either
            job.keep = 0
        else:
            self.drop(job)

    def drop(self, job: Job) -> None:
        """Forget it."""
        if self.direct is job:
            self.direct = None
        if job.waiting:
            close_all(job.waiting[1])
            job.waiting = None
        self.close_input(job)
        for fd in list(job.streams):
            self.close_stream(job, fd)
        self.jobs.pop(job.number, None)

    def children_ended(self, woken: int) -> None:
        """The kernel has said so."""
        posix.read(woken, CHUNK)
        self.reap()

    def reap(self) -> None:
        """Take in what has ended, and see whether a command has."""
        job, alone = self.direct, False
        try:
            while True:
                pid, status, usage = posix.wait4(-1, posix.WNOHANG)
                if pid == 0:
                    break
                if self.supervisors.pop(pid, None) is None and job is not None:
                    job.cpu += usage[0] + usage[1]
                    job.peak = max(job.peak, usage[2])
                    if pid == job.pid:
                        job.status = status
        except ChildProcessError:
            alone = True
        if job is None or job.status < 0:
            return
        left = [] if alone else self.own_processes()
        if job.ended is None:
            job.ended = (job.status, int(job.cpu * 1e6), job.peak)
            self.end(job, left)
        elif not left:
            self.finish(job, 0)

    # --- the loop

    def tick(self) -> float:
        """Do what is due; seconds until the next time, -1 for none."""
        now = time.monotonic()
        if self.orphans and self.orphans <= now:
            self.sweep()
        times = [self.orphans] if self.orphans else []
        for job in list(self.jobs.values()):
            when = job.wakes()
            if when is not None and when <= now:
                if job.waiting:
                    self.begin(job)
                elif job.killing:
                    self.round(job)
                elif not job.watched:
                    job.watched = True
                    if not self.paused:
                        self.watch_streams(job)
                else:
                    self.kill(job, TIMEOUT if job.deadline is not None and job.deadline <= now else SILENCE)
                when = job.wakes() if job.number in self.jobs else None
            if when is not None:
                times.append(when)
        return max(0.0, min(times) - time.monotonic()) if times else -1

    def serve(self) -> None:
        """Until the connection ends."""
        while True:
            wait = self.tick() if self.jobs or self.orphans else -1
            if self.queue:
                self.flush()
            for fd, events in self.poll.poll(min(wait, LONGEST_WAIT)):
                handler = self.handlers.get(fd)  # an earlier event's may have closed it
                if handler is not None:
                    handler(events)
