"""What commands read and write."""

import posix
import select
import time

from verifiers.sandboxes.guest.agent.connection import Connection
from verifiers.sandboxes.guest.agent.job import Job
from verifiers.sandboxes.guest.agent.wire import CHUNK, CREDIT, ERR, OUT, OUTPUT

TYPE_CHECKING = False
if TYPE_CHECKING:  # without `typing`, which would cost more than all the rest
    from collections.abc import Callable


HIGH = 1 << 20
"""With so many bytes waiting to be sent, no more output is read."""
READ_EVENTS = select.EPOLLIN | select.EPOLLHUP


class Streams(Connection):
    """Passes on what commands print, and gives them their input; reads no more than the host takes."""

    def __init__(self, inward: int, outward: int) -> None:
        super().__init__(inward, outward)
        self.jobs: dict[int, Job] = {}
        self.paused = False

    def kill(self, job: Job, reason: int) -> None:
        """Kill a command with all that descends from it."""
        raise NotImplementedError

    def sent(self) -> None:
        if self.paused and self.queued < HIGH // 2:
            self.paused = False
            for job in self.jobs.values():
                if job.watched:
                    self.watch_streams(job)

    def watch_streams(self, job: Job) -> None:
        """Read its output as it comes."""
        for fd in job.streams:
            self.watch(fd, READ_EVENTS, self.reader(job, fd))

    def reader(self, job: Job, fd: int) -> "Callable[[int], object]":
        """What to call when there is output."""
        return lambda events: self.read(job, fd)

    def read(self, job: Job, fd: int) -> bool:
        """Some output; False if there is no more now."""
        try:
            data = posix.read(fd, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.close_stream(job, fd)
            return False
        index = job.streams[fd]
        before = job.counts[index]
        job.counts[index] = before + len(data)
        job.heard = time.monotonic()
        if before < job.keep:
            self.send(ERR if index else OUT, job.number, data[: job.keep - before])
            if self.queued > HIGH and not self.paused:
                self.pause()
        if job.limit and sum(job.counts) > job.limit:
            if job.ended is None:
                self.kill(job, OUTPUT)
            elif job.told:
                self.close_stream(job, fd)
            return False
        return True

    def pause(self) -> None:
        """Read no more output until some is sent."""
        self.paused = True
        for job in self.jobs.values():
            for fd in job.streams:
                self.unwatch(fd)

    def close_stream(self, job: Job, fd: int) -> None:
        """One of its outputs has ended."""
        del job.streams[fd]
        self.unwatch(fd)
        posix.close(fd)

    def feed(self, job: Job) -> None:
        """Give a command its input. What it does not want is dropped."""
        while job.input and job.stdin >= 0:
            data = job.input[0]
            try:
                sent = posix.write(job.stdin, data)
            except BlockingIOError:
                if job.stdin not in self.handlers:
                    self.watch(job.stdin, select.EPOLLOUT, lambda events: self.feed(job))
                return
            except OSError:
                self.close_input(job)
                break
            self.send(CREDIT, job.number, b"%d" % sent)
            job.input[0] = data[sent:]
            if sent == len(data):
                del job.input[0]
        if job.stdin < 0 or job.input_ends:
            self.close_input(job)
        else:
            self.unwatch(job.stdin)

    def close_input(self, job: Job) -> None:
        """Its input ends here."""
        if job.stdin >= 0:
            self.unwatch(job.stdin)
            posix.close(job.stdin)
            job.stdin = -1
        if job.input:
            self.send(CREDIT, job.number, b"%d" % sum(map(len, job.input)))
            job.input.clear()
