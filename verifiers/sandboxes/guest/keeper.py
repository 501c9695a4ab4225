"""What `shell.py` and `interpreter.py` share: a program in the sandbox that keeps one worker and runs requests in it.

Each of the two is sent into the sandbox joined to this file as one program, and speaks over its own stdin and stdout,
which the worker never sees: a frame is a list of byte strings (their number and lengths, 4 bytes each, little-endian,
then the strings). Every answer carries the nonce that came first, and this process cannot be traced, so that what
runs beside it writes no answers. It outlives its worker: what a time-out or a death of the worker costs is said in
the answer.
For Python 3.9 and later. Few modules are imported: that is most of what a start costs.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import time

REQUEST, CANCEL = b"request", b"cancel"
SET_DUMPABLE, SET_CHILD_SUBREAPER = 4, 36
"""prctl(2)."""
MAX_FRAME = 1 << 26
CHUNK = 1 << 16
GONE_S = 0.2
"""A worker that does not answer any more has so long to end by itself."""
KILL_S = 2.0
"""What forks faster than it is killed for so long ends this program, and so what it keeps."""


class GoneError(Exception):
    """The other end has closed."""


def prctl(option: int, value: int) -> None:
    """Set a property of this process; where it is not known, nothing changes."""
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


# --- frames ---------------------------------------------------------------------------------------------------------


def pack(parts: list[bytes]) -> bytes:
    """Byte strings as a frame."""
    sizes = [len(parts), *map(len, parts)]
    return b"".join([*(size.to_bytes(4, "little") for size in sizes), *parts])


class Frames:
    """The frames that come out of a file descriptor. Longer ones than `most` bytes are refused."""

    def __init__(self, fd: int, most: int = MAX_FRAME) -> None:
        self.fd, self.most, self.buffer = fd, most, b""

    def take(self) -> list[bytes] | None:
        """The next frame, if it is here as a whole."""
        data = self.buffer
        count = int.from_bytes(data[:4], "little")
        at = 4 + 4 * count
        if count > 64:
            raise GoneError
        if len(data) < max(at, 4):
            return None
        ends = [at]
        for index in range(count):
            ends.append(ends[-1] + int.from_bytes(data[4 + 4 * index : 8 + 4 * index], "little"))
        if ends[-1] > self.most:
            raise GoneError
        if len(data) < ends[-1]:
            return None
        self.buffer = data[ends[-1] :]
        return [data[start:end] for start, end in zip(ends, ends[1:])]  # noqa: B905, RUF007 - not in Python 3.9

    def more(self) -> None:
        """Read what is there; waits if nothing is and the descriptor may wait."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise GoneError
        self.buffer += data

    def wait(self) -> list[bytes]:
        """The next frame, whenever it comes."""
        while (frame := self.take()) is None:
            self.more()
        return frame


def send(fd: int, parts: list[bytes]) -> None:
    """Send a frame."""
    data = memoryview(pack(parts))
    try:
        while data:
            data = data[os.write(fd, data) :]
    except OSError:
        raise GoneError from None


# --- processes ------------------------------------------------------------------------------------------------------


def parents() -> dict[int, int]:
    """The parent of every process that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    found[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # it has ended
    return found


def below(root: int, spared: set[int]) -> list[int]:
    """The descendants of `root`, except those in `spared` and theirs."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found, look = [], [root]
    while look:
        new = [pid for pid in children.get(look.pop(), ()) if pid not in spared]
        found += new
        look += new
    return found


def kill(pid: int) -> None:
    """Kill a process, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return


def reap() -> dict[int, int]:
    """The wait status of every child that has ended; this process adopts what others leave behind."""
    ended = {}
    try:
        while (one := os.waitpid(-1, os.WNOHANG))[0]:
            ended[one[0]] = one[1]
    except ChildProcessError:
        pass
    return ended


# --- a worker and its requests --------------------------------------------------------------------------------------


class Output:
    """One stream of the worker: the first `keep` bytes, and how many there were."""

    def __init__(self, fd: int) -> None:
        self.fd, self.keep, self.data, self.total, self.open = fd, CHUNK, b"", 0, True
        os.set_blocking(fd, False)

    def take(self) -> bool:
        """Read what is there now; whether there was something."""
        try:
            data = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        self.open = bool(data)
        self.total += len(data)
        self.data += data[: max(0, self.keep - len(self.data))]
        return self.open

    def clear(self) -> list[bytes]:
        """What was kept and its full length; from here on nothing was printed."""
        data, total = self.data, self.total
        self.data, self.total = b"", 0
        return [data, b"%d" % total]


class Worker:
    """The process that the requests run in; `Shell` and `Interpreter` say how."""

    pid = 0
    out: Output
    err: Output
    answers = -1
    """Readable when the worker says something; -1 once it cannot any more."""

    def start(self) -> str:
        """Start it, or another for one that died. What that has of the old one's state: "restored" or "lost"."""
        raise NotImplementedError

    def begin(self, parts: list[bytes]) -> None:
        """Let it run a request."""
        raise NotImplementedError

    def hear(self) -> None:
        """Read what it says."""
        raise NotImplementedError

    def answer(self) -> list[bytes] | None:
        """Its answer to the request, once that was heard. GoneError: it will never answer."""
        raise NotImplementedError

    def interrupt(self) -> float:
        """Ask it to stop and keep its state; for how many seconds its answer is worth waiting for."""
        return 0.0

    def rest(self) -> None:
        """An answer was sent: time for what nobody needs to wait for."""

    def fork(self, fds: list[int]) -> None:
        """Fork with two new output streams. The child, where `pid` is 0, has them and a null stdin, and `fds` still."""
        pipes = [os.pipe() for _ in range(2)]
        self.pid = os.fork()
        if self.pid:
            for _, write in pipes:
                os.close(write)
            self.out, self.err = Output(pipes[0][0]), Output(pipes[1][0])
            return
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        for target, (_, write) in enumerate(pipes, 1):
            os.dup2(write, target)
        keep = sorted({0, 1, 2, *fds})
        for low, high in zip(keep, [*keep[1:], 1 << 16]):  # noqa: B905
            os.closerange(low + 1, high)
        signal.set_wakeup_fd(-1)
        prctl(SET_DUMPABLE, 1)
        for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)

    def close(self) -> None:
        """Forget the descriptors of a worker that is gone."""
        for fd in (self.out.fd, self.err.fd, self.answers):
            if fd >= 0:
                os.close(fd)
        self.answers = -1


class Keeper:
    """Serves the requests of the host, one at a time."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.inward = Frames(0)
        self.ended: dict[int, int] = {}
        self.known: set[int] = set()
        """What ran before the request: it stays when the request is killed."""
        self.waker, wake = os.pipe()
        for fd in (self.waker, wake):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(wake)

    def serve(self) -> None:
        """Until the host closes its end; then everything is killed."""
        prctl(SET_DUMPABLE, 0)
        prctl(SET_CHILD_SUBREAPER, 1)
        state = b""
        try:
            nonce = self.inward.wait()[0]
            self.worker.start()
            send(1, [nonce, b"ready"])
            while True:
                self.worker.rest()
                self.known = set(parents()) - {self.worker.pid}
                parts = self.next_request()
                if self.worker.pid in self.ended:  # it died with nothing to do
                    state = self.renew()
                answer = self.run(parts)
                send(1, [nonce, *answer[:-1], answer[-1] or state])
                state = b""
        except GoneError:
            self.kill_started(set(), 0)

    def next_request(self) -> list[bytes]:
        """Wait for one; what jobs print meanwhile goes to its output."""
        while True:
            frame = self.inward.take()
            if frame is not None:
                if frame[0] == REQUEST:
                    return frame[1:]
                continue  # the cancellation of what has ended
            self.look(None, CHUNK)

    def look(self, seconds: float | None, most: int = MAX_FRAME) -> None:
        """Wait until something happens, at most so long. A stream that printed more than `most` waits for a reader."""
        outputs = [output for output in (self.worker.out, self.worker.err) if output.open and output.total <= most]
        fds = [0, self.worker.answers, self.waker, *(output.fd for output in outputs)]
        ready = select.select([fd for fd in fds if fd >= 0], [], [], seconds)[0]
        if 0 in ready:
            self.inward.more()
        if self.worker.answers in ready:
            self.worker.hear()
        if self.waker in ready:
            os.read(self.waker, 4096)
            self.ended.update(reap())
        for output in outputs:
            if output.fd in ready:
                output.take()

    def renew(self) -> bytes:
        """A new worker for one that is dead."""
        self.worker.close()
        self.ended.clear()
        return self.worker.start().encode()

    def run(self, parts: list[bytes]) -> list[bytes]:
        """One request: its number, seconds (empty: no limit), bytes kept and bytes allowed; the rest is the worker's.

        The answer: the number, why it ended, exit code of a worker that died (negative: its signal), seconds, and for
        each stream what was kept and how much there was; then the worker's own parts if it lives, and last what has
        become of its state (empty: kept).
        """
        number, seconds, keep, allowed = parts[:4]
        began = time.monotonic()
        until = began + float(seconds) if seconds else None
        most = int(allowed) if allowed else None
        worker, reason, said = self.worker, b"", None
        worker.out.keep = worker.err.keep = int(keep)
        worker.begin(parts[4:])
        while said is None and worker.pid not in self.ended:
            if until is not None and time.monotonic() >= until:
                patience = 0.0 if reason else worker.interrupt()
                reason = reason or b"timeout"
                until = time.monotonic() + patience
                if not patience:
                    self.kill_worker()
                    break
            self.look(None if until is None else until - time.monotonic())
            try:
                said = worker.answer()
            except GoneError:  # it ends, or has closed what it answers through
                reason, until = reason or b"died", time.monotonic() + GONE_S
            if not reason and (why := self.stopped(number, most)):
                reason, until = why, time.monotonic() + worker.interrupt()
        return self.finish(number, reason, said, time.monotonic() - began)

    def stopped(self, number: bytes, most: int | None) -> bytes:
        """Why this request has to stop, apart from its time."""
        frame = self.inward.take()
        if frame is not None and frame == [CANCEL, number]:
            return b"cancelled"
        printed = self.worker.out.total + self.worker.err.total
        return b"output_limit" if most is not None and printed > most else b""

    def kill_worker(self) -> None:
        """Kill it, and then what the request has started: that is ours when its parent has died."""
        kill(self.worker.pid)
        while self.worker.pid not in self.ended:
            self.look(None)

    def kill_started(self, spared: set[int], worker: int) -> None:
        """Kill what is below this process, but for `worker` and `spared`, until none is left: it may fork."""
        until = time.monotonic() + KILL_S
        while found := [pid for pid in below(os.getpid(), spared) if pid != worker]:
            if time.monotonic() > until:
                raise GoneError
            for pid in found:
                kill(pid)
            self.ended.update(reap())

    def finish(self, number: bytes, reason: bytes, said: list[bytes] | None, seconds: float) -> list[bytes]:
        """Collect what was printed; where the request was stopped, end what it started; renew a dead worker."""
        worker, lives = self.worker, said is not None
        if reason:
            self.kill_started(self.known, worker.pid if lives else 0)
        for output in (worker.out, worker.err):
            while output.total < MAX_FRAME and output.take():
                pass
        streams = [*worker.out.clear(), *worker.err.clear()]
        code = 0 if lives else os.waitstatus_to_exitcode(self.ended[worker.pid])
        state = b"" if lives else self.renew()
        reason = reason or (b"exited" if lives else b"died")
        return [number, reason, b"%d" % code, b"%.6f" % seconds, *streams, *(said or []), state]


def main(worker: Worker) -> None:
    """Serve with this worker until the host is gone."""
    try:
        Keeper(worker).serve()
    finally:
        sys.stderr.flush()
        os._exit(0)
