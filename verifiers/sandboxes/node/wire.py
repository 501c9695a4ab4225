"""What travels between a node and its clients: records as JSON, bytes as they are, errors by their class.

A message is the length of its header (4 bytes, big-endian), the header (a JSON object), and the blobs whose lengths
the header's `sizes` lists. A length of zero is no message but a sign of life: work is going on. What has no blobs and
is done at once travels as plain JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, NamedTuple, Protocol

from verifiers.errors import (
    ConfigError,
    Error,
    ProtocolError,
    SandboxBusyError,
    SandboxCreationError,
    SandboxDiedError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxNotReadyError,
    SandboxPathError,
    SandboxUnreachableError,
    SandboxUnsupportedError,
)
from verifiers.sandboxes.results import Capabilities, ExecResult, SandboxInfo
from verifiers.sandboxes.spec import Command, Mount, SandboxSpec, Secret

PROTOCOL = 1
"""Both sides have the same, or do not talk."""
FRAMES = "application/x-sandbox-messages"
HEARTBEAT = bytes(4)
HEADER_BYTES = 1 << 24
"""A longer header is no header."""

KEY, DONE, OWNER, BEAT = "Idempotency-Key", "Sandbox-Done", "Sandbox-Owner", "Sandbox-Beat"
"""Headers: the key of a launch; keys whose answers have arrived; who asks; seconds between signs of life."""

STATUS: dict[type[BaseException], int] = {
    KeyError: 404,
    FileExistsError: 409,
    FileNotFoundError: 404,
    ConfigError: 400,
    ProtocolError: 400,
    SandboxFileNotFoundError: 404,
    SandboxPathError: 409,
    SandboxUnsupportedError: 422,
    SandboxCreationError: 500,
    SandboxNotReadyError: 500,
    SandboxBusyError: 503,
    SandboxUnreachableError: 502,
    SandboxDiedError: 410,
    SandboxError: 500,
}
"""The errors that travel as themselves, each with its status."""
_BY_NAME = {one.__name__: one for one in STATUS}


class Answer(NamedTuple):
    """What was asked for: a JSON object, and bytes beside it."""

    header: dict[str, Any]
    blobs: Sequence[bytes] = ()


class Stream(Protocol):
    """Where bytes come from."""

    async def readexactly(self, n: int) -> bytes:
        """So many bytes; IncompleteReadError if it ends before."""
        ...


def pack(answer: Answer) -> bytes:
    """A message as bytes."""
    header = dict(answer.header)
    if answer.blobs:
        header["sizes"] = [len(blob) for blob in answer.blobs]
    text = json.dumps(header).encode()
    return b"".join((len(text).to_bytes(4, "big"), text, *answer.blobs))


def unpack(body: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a message and all that follows it. ProtocolError if it is none."""
    size = int.from_bytes(body[:4], "big")
    return header_of(body[4 : 4 + size]), body[4 + size :]


async def receive(stream: Stream) -> Answer:
    """The next message of a stream. IncompleteReadError, and what else the stream raises; ProtocolError."""
    while not (size := int.from_bytes(await stream.readexactly(4), "big")):
        pass
    if size > HEADER_BYTES:
        raise ProtocolError(f"the node announced a header of {size} bytes")
    header = header_of(await stream.readexactly(size))
    return Answer(header, [await stream.readexactly(size) for size in header.pop("sizes", ())])


def header_of(text: bytes) -> dict[str, Any]:
    """A JSON object. ProtocolError if it is something else."""
    try:
        header = json.loads(text)
    except ValueError as error:
        raise ProtocolError("a message of a sandbox's node has no JSON header", cause=error) from error
    if not isinstance(header, dict):
        raise ProtocolError(f"a message of a sandbox's node has a {type(header).__name__} as its header")
    return header


# --- errors -------------------------------------------------------------------------------------------------------


def error_answer(error: BaseException) -> tuple[int, Answer]:
    """The status and the message of an error; what is not known here is a `SandboxError`."""
    known = next((one for one in type(error).__mro__ if one in STATUS), None)
    text = str(error.args[0]) if error.args else type(error).__name__
    record: dict[str, Any] = {"type": known.__name__ if known else "SandboxError", "message": text}
    if known is None:
        record["message"] = f"the node failed: {type(error).__name__}: {text}"
    elif isinstance(error, Error):
        record["hint"] = error.hint
    if isinstance(error, SandboxBusyError):
        record["retry_after"] = error.retry_after
    return STATUS[known] if known else 500, Answer({"error": record})


def error_of(record: Mapping[str, Any], node: str) -> BaseException:
    """The exception that a node answered with; those of the platform name the node."""
    kind = _BY_NAME.get(str(record.get("type")), SandboxError)
    text = str(record.get("message", "it failed without a word"))
    if issubclass(kind, SandboxError):
        text = f"{text} (node {node})"
    if not issubclass(kind, Error):
        return kind(text)
    options: dict[str, Any] = {"hint": record.get("hint")}
    if issubclass(kind, SandboxBusyError):
        options["retry_after"] = record.get("retry_after")
    return kind(text, **options)


# --- records ------------------------------------------------------------------------------------------------------


def spec_record(spec: SandboxSpec) -> dict[str, Any]:
    """A specification as JSON, its secrets in clear: it goes to the node and nowhere else."""
    record = {field.name: getattr(spec, field.name) for field in fields(spec)}
    secrets = {name: secret.reveal() for name, secret in spec.secrets.items()}
    mounts = [asdict(mount) for mount in spec.mounts]
    return record | {"env": dict(spec.env), "labels": dict(spec.labels), "secrets": secrets, "mounts": mounts}


def spec_of(record: Mapping[str, Any]) -> SandboxSpec:
    """A specification from JSON. ConfigError if it is none."""
    values = dict(record)
    try:
        values["secrets"] = {name: Secret(value) for name, value in values.get("secrets", {}).items()}
        values["mounts"] = tuple(Mount(**mount) for mount in values.get("mounts", ()))
        if isinstance(values.get("network"), list):
            values["network"] = tuple(values["network"])
        return SandboxSpec(**values)
    except (TypeError, AttributeError) as error:
        raise ConfigError(f"this is no specification of a sandbox: {error}") from error


def command_record(command: Command) -> tuple[dict[str, Any], bytes]:
    """A command as JSON, and its input."""
    record = {field.name: getattr(command, field.name) for field in fields(command) if field.name != "stdin"}
    record["env"] = dict(command.env)
    return record | {"stdin": command.stdin is not None}, command.stdin or b""


def command_of(record: Mapping[str, Any], stdin: bytes) -> Command:
    """A command from JSON and its input. ConfigError if it is none."""
    values = dict(record)
    try:
        values["stdin"] = stdin if values.get("stdin") else None
        if isinstance(values.get("command"), list):
            values["command"] = tuple(values["command"])
        return Command(**values)
    except TypeError as error:
        raise ConfigError(f"this is no command: {error}") from error


def result_answer(result: ExecResult) -> Answer:
    """How a command ended, as a message."""
    record = {field.name: getattr(result, field.name) for field in fields(result)}
    return Answer(record, (record.pop("stdout"), record.pop("stderr")))


def result_of(answer: Answer) -> ExecResult:
    """How a command ended, from a message."""
    stdout, stderr = answer.blobs
    return ExecResult(**answer.header, stdout=stdout, stderr=stderr)


def capabilities_record(found: Capabilities) -> dict[str, Any]:
    """What a provider can do, as JSON."""
    return asdict(found) | {"limits": sorted(found.limits), "network": sorted(found.network)}


def capabilities_of(record: Mapping[str, Any]) -> Capabilities:
    """What a provider can do, from JSON; what a newer node tells beyond that is passed over."""
    known = {field.name for field in fields(Capabilities)}
    values = {name: value for name, value in record.items() if name in known}
    for name in ("limits", "network"):
        values[name] = frozenset(values.get(name, ()))
    return Capabilities(**values)


def info_of(record: Mapping[str, Any]) -> SandboxInfo:
    """A sandbox as a list shows it, from JSON."""
    return SandboxInfo(**record)


BROKEN = (ConnectionError, TimeoutError, asyncio.IncompleteReadError, EOFError)
"""What a stream that broke raises, beside its library's own."""
