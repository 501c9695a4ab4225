"""A process that inspects files, one after another, within limits of memory and processor time.

    python -P -m verifiers.hub.package.worker MEMORY_BYTES

Each message, in and out, is a length of four bytes and so much JSON. In: path, filename, policy and seconds, the
processor time that this file may take. Out: `facts`, `refused`, or `failed` with a traceback. It ends with its
standard input. Source that kills the process (the parser's limits are in C) kills this one only: whoever reads from
it finds the end.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import signal
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO

from verifiers.hub.package.facts import Policy
from verifiers.hub.package.inspect import inspect_file
from verifiers.hub.package.refusal import RefusedError

LENGTH = struct.Struct(">I")
OPEN_FILES = 64


def read_message(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message; None at the end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    message: dict[str, Any] = json.loads(stream.read(LENGTH.unpack(head)[0]))
    return message


def encoded(message: dict[str, Any]) -> bytes:
    """A message with its length."""
    body = json.dumps(message).encode()
    return LENGTH.pack(len(body)) + body


def limit(memory: int) -> None:
    """What holds for the whole life of the process: memory, no files written, few open, no core dumped."""
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # a hard limit of the machine that is lower still
            resource.setrlimit(kind, (most, most))


def limit_time(seconds: float) -> None:
    """Processor time from now on, in whole seconds; then the kernel ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime + seconds), hard))


def answer(message: dict[str, Any]) -> dict[str, Any]:
    """Inspect one file."""
    try:
        facts = inspect_file(Path(message["path"]), message["filename"], Policy.from_dict(message["policy"]))
        return {"facts": facts.to_dict()}
    except RefusedError as error:
        return {"refused": error.to_dict()}
    except Exception:  # boundary: a fault of ours, which the server logs
        return {"failed": traceback.format_exc()}


def main() -> None:
    """Answer until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's to handle
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    limit(int(sys.argv[1]))
    replies = os.dup(1)
    os.dup2(2, 1)  # nothing that is printed may get among the replies
    while (message := read_message(sys.stdin.buffer)) is not None:
        limit_time(message["seconds"])
        reply = memoryview(encoded(answer(message)))
        while reply:
            reply = reply[os.write(replies, reply) :]


if __name__ == "__main__":
    main()
