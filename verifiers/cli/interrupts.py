"""Ctrl-C, SIGTERM and SIGHUP while an event loop runs: the first asks for an orderly end, the second ends the process.

    with interruptible(output) as interrupt:                             # cancels the present task
    with interruptible(output, loop.stop, "stopping after this step"):   # or calls something
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from verifiers.cli.output import Output, is_terminal
from verifiers.errors import ExitCode


class Interrupt:
    """Counts signals: the first calls `stop` in the event loop and says so, the second ends the process."""

    def __init__(self, output: Output, stop: Callable[[], object], told: str) -> None:
        self.pressed = 0
        self._output = output
        self._stop = stop
        self._told = told
        self._loop = asyncio.get_running_loop()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.pressed += 1
        if self.pressed > 1:
            if is_terminal(sys.stderr):
                os.write(2, b"\x1b[?25h\n")  # a live display hides the cursor
            os._exit(ExitCode.INTERRUPTED)
        # Printing and stopping are left to the loop: a signal may come in the middle of a write.
        self._loop.call_soon_threadsafe(self._act)

    def _act(self) -> None:
        self._output.note(self._told)
        self._stop()


CANCELLING = "stopping: what is in flight is cancelled and cleaned up"


@contextmanager
def interruptible(
    output: Output, stop: Callable[[], object] | None = None, told: str = CANCELLING
) -> Iterator[Interrupt]:
    """Answer signals within the block: see the top of this file. `told` is printed with the first."""
    task = asyncio.current_task()
    assert task is not None
    interrupt = Interrupt(output, stop or task.cancel, f"{told} (Ctrl-C again ends at once)")
    heard = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it: that is to stay so
        heard.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
