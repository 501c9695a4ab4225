"""The agent's loop over what it waits for, and its end of the connection to the host."""

import posix
import select

from verifiers.sandboxes.guest.agent.wire import CHUNK

TYPE_CHECKING = False
if TYPE_CHECKING:  # without `typing`, which would cost more than all the rest
    from collections.abc import Callable



class Connection:
    """Frames to and from the host: `inward` and `outward` are its two ends; and whatever else is waited for."""

    def __init__(self, inward: int, outward: int) -> None:
        self.inward = inward
        self.outward = outward
        self.buffer = bytearray()
        self.queue: list[bytes] = []
        self.queued = 0
        self.writing = False
        self.poll = select.epoll()
        self.handlers: dict[int, Callable[[int], object]] = {inward: self.receive}
        self.poll.register(inward, select.EPOLLIN)

    def take(self, kind: int, number: int, body: bytes) -> None:
        """Do what a frame asks for."""
        raise NotImplementedError

    def sent(self) -> None:
        """There is room for more."""
        raise NotImplementedError

    def die(self) -> None:
        """The connection has ended: so does the agent, with all processes."""
        raise NotImplementedError

    def send(self, kind: int, number: int, body: bytes = b"") -> None:
        """Queue a frame."""
        self.queue.append(len(body).to_bytes(4, "little") + number.to_bytes(4, "little") + bytes((kind,)) + body)
        self.queued += len(body) + 9

    def flush(self) -> None:
        """Send what can be sent."""
        data = b"".join(self.queue)
        try:
            sent = posix.write(self.outward, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.die()
        rest = data[sent:]
        self.queue = [rest] if rest else []
        self.queued = len(rest)
        if bool(rest) != self.writing:
            self.writing = bool(rest)
            self.watch_out()
        self.sent()

    def watch_out(self) -> None:
        """Wake up when more can be sent, if there is more."""
        if self.outward == self.inward:
            self.poll.modify(self.inward, select.EPOLLIN | (select.EPOLLOUT if self.writing else 0))
        elif self.writing:
            self.watch(self.outward, select.EPOLLOUT, lambda events: None)
        else:
            self.unwatch(self.outward)

    def watch(self, fd: int, events: int, handler: "Callable[[int], object]") -> None:
        """Call `handler` at these events."""
        self.handlers[fd] = handler
        self.poll.register(fd, events)

    def unwatch(self, fd: int) -> None:
        """No more, if it was watched."""
        if self.handlers.pop(fd, None) is not None:
            self.poll.unregister(fd)

    def receive(self, events: int) -> None:
        """Take in frames."""
        if not events & ~select.EPOLLOUT:
            return
        try:
            data = posix.read(self.inward, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.die()
        buffer = self.buffer
        buffer += data
        at = 0
        while len(buffer) - at >= 9:
            end = at + 9 + int.from_bytes(buffer[at : at + 4], "little")
            if len(buffer) < end:
                break
            number = int.from_bytes(buffer[at + 4 : at + 8], "little")
            self.take(buffer[at + 8], number, bytes(buffer[at + 9 : end]))
            at = end
        del buffer[:at]
