"""What the agent and its host say to each other.

A frame is a body's length and an id (4 bytes each, little-endian), a kind (1 byte) and the body; the other side is
`host/channel.py`. A tree is a row of entries: kind (1 byte: f, d, l, e for the end), mode (4), length of the path (4)
and of what follows (8), the path, and a file's bytes or a link's target; the root's path is empty.
"""


RUN, STDIN, SIGNAL, KILL, FILE, PING = 1, 2, 3, 4, 5, 6
"""Kinds of frames to the agent."""
READY, OUT, ERR, END, CREDIT, REPLY, FAIL, PONG, STARTED, GONE = 16, 17, 18, 19, 20, 21, 22, 23, 24, 25
"""Kinds of frames from it."""
EXITED, TIMEOUT, SILENCE, OUTPUT, CANCELLED, LOST = 0, 1, 2, 3, 4, 5
"""Why a command ended."""
TELL_PID, KILL_LEFTOVERS, PIPED, TREE = 1, 2, 4, 8
"""Flags of a command."""
VERSION = 1
CHUNK = 1 << 16
"""Bytes that are read at once."""
ENTRIES = 2000
"""Of a directory, in one answer."""


def pack(parts: "list[bytes]") -> bytes:
    """Byte strings as one."""
    out = [len(parts).to_bytes(4, "little")]
    out += [len(part).to_bytes(4, "little") for part in parts]
    return b"".join(out + parts)


def unpack(body: bytes) -> "list[bytes]":
    """What `pack` was given."""
    count = int.from_bytes(body[:4], "little")
    at = 4 + 4 * count
    parts = []
    for index in range(count):
        size = int.from_bytes(body[4 + 4 * index : 8 + 4 * index], "little")
        parts.append(body[at : at + size])
        at += size
    return parts
