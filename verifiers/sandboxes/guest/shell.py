"""A shell that stays: each request is a line it evaluates, so directory, variables, functions and jobs persist.

The shell reads its commands from a pipe that nobody else has, not from a terminal, and no start-up file. After each
command it writes down its state while nobody waits; where a command has to be killed, the shell is killed too, and a
new one begins with that: the state before the command. Its jobs live on. A shell that is not bash restores variables,
options and directory, but no functions.
"""

from __future__ import annotations

import fcntl
import os
import select
import time

from verifiers.sandboxes.guest.keeper import CHUNK, Worker, main

BASH = ["bash", "--norc", "--noprofile"]
SHELLS = {"/bin/bash": BASH, "/usr/bin/bash": BASH, "/bin/sh": ["sh"]}
STATUS = 9
"""The shell's own descriptor for what it says; closed for what it runs."""
SET_PIPE_SIZE, PIPE_BYTES = 1031, 1 << 20
"""F_SETPIPE_SZ of fcntl(2): a command fits into the pipe, so that writing it waits for nobody."""
MOST_STATE = 1 << 22
STATE_S = 2.0
ENTRY = rb"""
__vf_status() { return "$1"; }
if [ -n "${BASH_VERSION-}" ]; then
  shopt -s expand_aliases
  __vf_state() { declare -p; declare -f; alias -p; trap -p; shopt -p; umask -p; echo 'cd -- "$PWD"'; set +o; }
else
  __vf_state() { set; export -p; echo "umask $(umask)"; echo 'cd -- "$PWD"'; set +o; }
fi
"""


def quoted(text: bytes) -> bytes:
    """As one word of the shell."""
    return b"'" + text.replace(b"'", rb"'\''") + b"'"


class Shell(Worker):
    """The first of `SHELLS` that is there."""

    def __init__(self) -> None:
        self.commands = -1
        self.heard = self.token = self.state = b""
        self.last = b"0"

    def start(self) -> str:
        """A shell with the state that the last one had before its last command, if it takes that."""
        self.launch()
        if self.state:
            self.tell(b"eval " + quoted(self.state) + b" >/dev/null 2>&1 %d>&-\n" % STATUS)
            self.ask(b":")
            if self.told() is not None:
                return "restored"
            self.close()
            self.launch()
        self.state = b""
        return "lost"

    def launch(self) -> None:
        """Start the program and tell it what it needs."""
        if self.pid and self.commands >= 0:
            os.close(self.commands)
        self.heard, self.last = b"", b"0"
        commands, self.commands = os.pipe()
        self.answers, status = os.pipe()
        self.fork([commands, status])
        if not self.pid:
            try:
                os.dup2(commands, 0)
                os.dup2(status, STATUS)
                os.set_inheritable(STATUS, True)
                program = next(path for path in SHELLS if os.path.exists(path))
                environment = {name: value for name, value in os.environ.items() if name not in ("ENV", "BASH_ENV")}
                os.execve(program, SHELLS[program], environment)  # noqa: S606 - this is one
            finally:
                os._exit(127)
        os.close(commands)
        os.close(status)
        os.set_blocking(self.answers, False)
        try:
            fcntl.fcntl(self.commands, SET_PIPE_SIZE, PIPE_BYTES)
        except OSError:  # no contextlib here; a long command waits for the shell then
            pass
        self.tell(ENTRY)

    def tell(self, text: bytes) -> None:
        """Let it read this. One that is dead reads nothing; that shows by itself."""
        rest = memoryview(text)
        try:
            while rest:
                rest = rest[os.write(self.commands, rest) :]
        except OSError:
            return

    def ask(self, text: bytes) -> None:
        """Let it say what `text` prints, then a token and the status."""
        self.token = b"\n" + os.urandom(8).hex().encode() + b" "
        end = b"printf '\\n%s %%s\\n' \"$?\"" % self.token.strip()
        self.tell(b"{ { %s; %s; } >&%d; } 2>/dev/null\n" % (text, end, STATUS))

    def told(self) -> bytes | None:
        """What it has said to `ask`; None if it does not within `STATE_S`."""
        until = time.monotonic() + STATE_S
        while self.token not in self.heard:
            left = until - time.monotonic()
            if left <= 0 or self.answers < 0 or not select.select([self.answers], [], [], left)[0]:
                return None
            self.hear()
        text, self.heard = self.heard.partition(self.token)[0], b""
        return text

    def hear(self) -> None:
        """Read what it says. The end comes also when it becomes another program by `exec`: that may go on."""
        try:
            data = os.read(self.answers, CHUNK)
        except BlockingIOError:
            return
        self.heard = (self.heard + data)[-MOST_STATE:]
        if not data:
            os.close(self.answers)
            self.answers = -1

    def rest(self) -> None:
        """Let it write down its state."""
        self.ask(b"__vf_state")

    def begin(self, parts: list[bytes]) -> None:
        """Evaluate a command line, with `$?` as the last one left it."""
        state = self.told()
        self.state = state if state is not None and len(state) < MOST_STATE - CHUNK else b""
        self.token = b"\n" + os.urandom(8).hex().encode() + b" "
        end = b"{ printf '\\n%s %%s\\n' \"$?\" >&%d; } 2>/dev/null" % (self.token.strip(), STATUS)
        command = b"eval %s </dev/null %d>&-" % (quoted(parts[0]), STATUS)
        self.tell(b"{ __vf_status %s; } 2>/dev/null; %s; %s\n" % (self.last, command, end))

    def answer(self) -> list[bytes] | None:
        """The status."""
        status, found, _ = self.heard.partition(self.token)[2].partition(b"\n")
        if not found or not status.isdigit():
            return None
        self.last, self.heard = status, b""
        return [status]


if __name__ == "__main__":
    main(Shell())
