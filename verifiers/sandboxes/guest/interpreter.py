"""A Python interpreter that stays: each request is a piece of code, run in one namespace.

The value of a last expression is answered as its `repr`. What is printed, by the code or by programs it starts, goes
through the streams that the keeper bounds. At a time-out the code gets KeyboardInterrupt first; the namespace is lost
only if it goes on all the same, or if the process dies.
"""

from __future__ import annotations

import ast
import builtins
import fcntl
import io
import linecache
import os
import signal
import sys
import traceback
import types
from typing import Any

from verifiers.sandboxes.guest.keeper import Frames, GoneError, Worker, main, send

INTERRUPT_S = 0.4
"""So long the code has to end after the interrupt."""
HIGH = 500
"""Descriptors from here on, if there can be so many: code that closes all it sees, closes 3 to 255 or so."""
SPARE = 1 << 16


class Interpreter(Worker):
    """A fork of the keeper, which has run none of the code."""

    def __init__(self) -> None:
        self.requests = -1
        self.token = b""
        self.frames = Frames(-1)

    def start(self) -> str:
        """An empty namespace."""
        if self.requests >= 0:
            os.close(self.requests)
        inward, self.requests = os.pipe()
        self.answers, outward = os.pipe()
        ends = [high(inward), high(outward)]
        self.fork(ends)
        if not self.pid:
            try:
                work(*ends)
            finally:
                os._exit(1)
        for fd in ends:
            os.close(fd)
        os.set_blocking(self.answers, False)
        self.frames = Frames(self.answers)
        return "lost"

    def begin(self, parts: list[bytes]) -> None:
        """Run code; its value and traceback are cut to a number of bytes."""
        code, limit = parts
        self.token = os.urandom(8)
        self.frames.most = 2 * int(limit) + SPARE
        try:
            send(self.requests, [self.token, code, limit])
        except GoneError:
            return  # that it is dead shows by itself

    def hear(self) -> None:
        """Read what it says."""
        try:
            self.frames.more()
        except GoneError:
            os.close(self.answers)
            self.answers = -1

    def answer(self) -> list[bytes] | None:
        """Outcome, value and its full length, traceback and its full length, and the number of the cell."""
        frame = self.frames.take()
        if frame is None and self.answers < 0:
            raise GoneError
        if frame is None or (frame[0] == self.token and len(frame) == 7):
            return frame and frame[1:]
        raise GoneError

    def interrupt(self) -> float:
        """KeyboardInterrupt in the code."""
        os.kill(self.pid, signal.SIGINT)
        return INTERRUPT_S


def high(fd: int) -> int:
    """The same pipe under a number that code does not come across."""
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH)
    except OSError:
        return fd
    os.close(fd)
    return moved


# --- in the worker --------------------------------------------------------------------------------------------------


def work(inward: int, outward: int) -> None:
    """Run what comes in until nothing does."""
    for name, fd in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        raw = open(fd, "wb" if fd else "rb", closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    vars(module)["__builtins__"] = builtins
    sys.path.insert(0, "")
    sys.argv = [""]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    frames, myself, number = Frames(inward), os.getpid(), 0
    while True:
        try:
            token, code, limit = frames.wait()
        except GoneError:
            os._exit(0)
        number += 1
        outcome, value, trace = run_cell(code.decode(errors="replace"), vars(module), f"<cell {number}>")
        if os.getpid() != myself:  # the code has forked, and this is the child
            os._exit(0)
        send(outward, [token, outcome, *cut(value, int(limit)), *cut(trace, int(limit)), b"%d" % number])


def cut(text: str, limit: int) -> list[bytes]:
    """The first bytes of a text, and how many there are."""
    data = text.encode(errors="backslashreplace")
    return [data[:limit], b"%d" % len(data)]


def run_cell(code: str, namespace: dict[str, Any], name: str) -> tuple[bytes, str, str]:
    """Run it: `ok`, `value` or `error`; the value's repr; the traceback of the code's own frames."""
    try:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            value = evaluate(code, namespace, name)
            text = "" if value is None else repr(value)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
                flush(stream)
    except BaseException as error:  # boundary: whatever the code raises, SystemExit too, is its result
        return b"error", "", traceback_of(error, name)
    if value is None:
        return b"ok", "", ""
    return b"value", text, ""


def evaluate(code: str, namespace: dict[str, Any], name: str) -> Any:
    """The value of the last statement if that is an expression; `_` has it then."""
    lines = code.splitlines(keepends=True)
    linecache.cache[name] = (len(code), None, lines, name)
    tree = ast.parse(code, name)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, name, "exec"), namespace)  # noqa: S102 - what this file is for
    if not isinstance(last, ast.Expr):
        return None
    value = eval(compile(ast.Expression(last.value), name, "eval"), namespace)  # noqa: S307
    if value is not None:
        namespace["_"] = value
    return value


def flush(stream: Any) -> None:
    """Whatever the code has put there."""
    try:
        stream.flush()
    except Exception:  # boundary: it may be any object, or closed
        return


def traceback_of(error: BaseException, name: str) -> str:
    """As Python prints it, from the code's first frame on."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != name:
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException:  # boundary: `__str__` of an exception is the code's, too
        return f"{type(error).__name__}: its message cannot be shown\n"


if __name__ == "__main__":
    main(Interpreter())
