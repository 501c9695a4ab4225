"""The gateway's live processes: the few messages of `command_session.proto` that are needed, and how they travel.

Messages are protocol buffers (https://protobuf.dev/programming-guides/encoding/) over the Connect protocol
(https://connectrpc.com/docs/protocol/): a unary call is a POST of one message; a stream is envelopes of a flag (1
byte), a length (4 bytes, big-endian) and a message; the last, with flag 2, is JSON that says how the call ended.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

SERVICE = "command_session.CommandSession"
END = 2
T = TypeVar("T", bytes, int)
MAX_MESSAGE = 1 << 26
_ENVELOPE = struct.Struct(">BI")


class RpcError(Exception):
    """A call that failed, with Connect's code: "unavailable", "not_found" …"""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


# --- protocol buffers -------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """A number, seven bits a byte."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | str | int) -> bytes:
    """One field of a message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def fields(message: bytes) -> dict[int, Any]:
    """The last value of each field: numbers, and bytes. ValueError: it is no message."""
    found: dict[int, Any] = {}
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        match key & 7:
            case 0:
                found[key >> 3], at = _number(message, at)
            case 2:
                size, at = _number(message, at)
                if at + size > len(message):
                    raise ValueError("a field of more bytes than there are")
                found[key >> 3] = message[at : at + size]
                at += size
            case 1 | 5 as kind:
                at += 8 if kind == 1 else 4
            case _:
                raise ValueError("a field of no known kind")
    return found


def _number(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("a number without an end")


# --- command_session.proto --------------------------------------------------------------------------------------------


def start_request(program: str, arguments: Sequence[str], env: Mapping[str, str]) -> bytes:
    """Start a program with its input open."""
    spec = field(1, program) + b"".join(field(2, one) for one in arguments)
    spec += b"".join(field(3, field(1, name) + field(2, text)) for name, text in env.items())
    return field(1, spec) + field(4, 1)


def input_request(pid: int, data: bytes) -> bytes:
    """Give it input."""
    return field(1, field(1, pid)) + field(2, field(1, data))


def event(response: bytes) -> tuple[str, Any]:
    """What a message of the stream says: ("start", pid), ("stdout" or "stderr", bytes), ("end", status), ("", 0).

    ValueError: it is no such message.
    """
    found = fields(_of(fields(response), 1, b""))
    if 1 in found:
        return "start", _of(fields(_of(found, 1, b"")), 1, 0)
    if 2 in found:
        data = fields(_of(found, 2, b""))
        return ("stderr", _of(data, 2, b"")) if 2 in data else ("stdout", _of(data, 1, b""))
    if 3 in found:
        zigzag = _of(fields(_of(found, 3, b"")), 1, 0)
        return "end", zigzag >> 1 ^ -(zigzag & 1)
    return "", 0


def _of(found: Mapping[int, Any], number: int, default: T) -> T:
    """A field, which has to be of the kind of what it is by default."""
    value = found.get(number, default)
    if not isinstance(value, type(default)):
        raise ValueError(f"a field {number} of another kind")
    return value


# --- envelopes --------------------------------------------------------------------------------------------------------


def envelope(message: bytes, flags: int = 0) -> bytes:
    """A message of a stream."""
    return _ENVELOPE.pack(flags, len(message)) + message


class Envelopes:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now. RpcError: the call ended with an error. EOFError: it ended well."""
        self._buffer += data
        found: list[bytes] = []
        while len(self._buffer) >= _ENVELOPE.size:
            flags, size = _ENVELOPE.unpack_from(self._buffer)
            if size > MAX_MESSAGE or flags not in (0, END):
                raise RpcError("internal", "a stream that is none")
            if len(self._buffer) < _ENVELOPE.size + size:
                break
            message = bytes(self._buffer[_ENVELOPE.size : _ENVELOPE.size + size])
            del self._buffer[: _ENVELOPE.size + size]
            if flags == END:
                if found:  # they come first
                    self._buffer[:0] = envelope(message, END)
                    break
                raise ended(message)
            found.append(message)
        return found


def ended(message: bytes) -> Exception:
    """What the last message of a stream says."""
    error = _parsed(message).get("error")
    return rpc_error(json.dumps(error).encode()) if error else EOFError()


def rpc_error(body: bytes, status: int = 0) -> RpcError:
    """The error of a call, from JSON; of a status where that says nothing."""
    found = _parsed(body)
    codes = {401: "unauthenticated", 403: "permission_denied", 404: "not_found", 429: "resource_exhausted"}
    code = found.get("code") or codes.get(status, "unavailable")
    return RpcError(str(code), str(found.get("message") or found.get("error") or body[:300].decode(errors="replace")))


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
