"""What a worker and its pool say to each other, as dataclasses and as bytes.

    parent                                 worker
                                    <--    Hello       which protocol, which versions
    Load   the environment, the client -->
                                    <--    Ready       facts of the environment
    GetRows                         -->
                                    <--    RowChunk …  the last one says so
    Play   a group                  -->
                                    <--    Generated … one for each rollout, as its last turn has ended
                                    <--    Sealed …    one for each rollout, as it is final
                                    <--    Counts      what its client counted meanwhile
                                    <--    Done        nothing more comes for this request
    Cancel a request                -->    (answered by its Done)
    Ping                            -->
                                    <--    Pong        how long the event loop has been blocked
                                    <--    Failed      a request, or the whole worker, ended with an error
                                    <--    Log, Note   what was logged; a line for people
    LogLevel                        -->
    Stop                            -->    (the worker tears the environment down and ends)

A message is one JSON object with its class under `type`. Rows and records are JSON already, so they are put into a
message as they are (`orjson.Fragment`) and no value is encoded twice. There is no pickle: a worker runs other people's
code, and unpickling what it sends would run that code here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from verifiers import errors
from verifiers.error_text import ErrorChain, error_record, text_of
from verifiers.errors import Error, InfraError, ProtocolError
from verifiers.rollouts.plan import PlannedRollout

PROTOCOL = 1
"""Version of the messages. Both ends must have the same."""


# --- from the parent ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """Load an environment and make the client. `paths` replaces `sys.path`, None leaves it.

    client: a `ClientConfig` as a dict; it names the variable that holds the key, never the key.
    cache, served_by: the response cache, as in `verifiers.clients.cache.through_cache`.
    options: `EngineOptions`, see `verifiers.rollouts.workers.options`.
    split, num_examples, shuffle_seed: which rows a run plays, as in `Environment.get_dataset` and `get_eval_dataset`.
    """

    env_id: str
    env_args: dict[str, Any] = field(default_factory=dict)
    extra_env_kwargs: dict[str, Any] = field(default_factory=dict)
    paths: list[str] | None = None
    client: dict[str, Any] = field(default_factory=dict)
    cache: str | bool = False
    served_by: str | None = None
    model: str = ""
    sampling_args: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    split: str = "eval"
    num_examples: int = -1
    shuffle_seed: int | None = None
    log_level: int = 30


@dataclass(frozen=True, slots=True)
class GetRows:
    """The rows that Load chose are wanted."""

    request: int


@dataclass(frozen=True, slots=True)
class Play:
    """Rollouts of one group. `rows` are those that the rollouts' positions name, in JSON.

    A row is None where JSON can not carry it: the worker then takes it from its own data. Either way the worker checks
    its content against the task's hash.
    """

    request: int
    rollouts: list[PlannedRollout]
    rows: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the rollouts of a request, with their cleanup. Answered by its `Done`."""

    request: int


@dataclass(frozen=True, slots=True)
class Ping:
    """A sign of life is wanted."""

    number: int


@dataclass(frozen=True, slots=True)
class LogLevel:
    """From here on only what is logged at this level or above is wanted."""

    level: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel what is in flight, tear the environment down, and end."""


# --- from the worker ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message."""

    protocol: int = PROTOCOL
    version: str = ""
    python: str = field(default_factory=lambda: ".".join(map(str, sys.version_info[:3])))
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True, slots=True)
class Ready:
    """The environment is loaded. `facts`: see `verifiers.rollouts.workers.worker.facts_of`."""

    facts: Any


@dataclass(frozen=True, slots=True)
class RowChunk:
    """Rows in order. `exact[i]` says whether JSON carries row i without loss."""

    request: int
    rows: list[Any]
    exact: list[bool]
    last: bool


@dataclass(frozen=True, slots=True)
class Generated:
    """A rollout asks its model nothing more: another may take its place while it is scored, or waits for its group."""

    request: int
    rollout_id: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """The record of a rollout, as it is saved."""

    request: int
    rollout_id: str
    record: Any


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests of the client that were tried again, by reason, and what its cache answered, since the last Counts."""

    retried: dict[str, int]
    cache: dict[str, int] | None


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing more comes for this request."""

    request: int
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """A request ended with an error; with `request` None the worker did."""

    request: int | None
    error: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Pong:
    """`blocked`: seconds since the worker's event loop last had its turn. `tasks`: requests in flight."""

    number: int
    blocked: float
    tasks: int


@dataclass(frozen=True, slots=True)
class Log:
    """One entry of the worker's log, with its traceback in the text. It is logged again at the other end."""

    level: int
    logger: str
    text: str


@dataclass(frozen=True, slots=True)
class Note:
    """A line for people, from the engine's `on_log`."""

    text: str


ToWorker = Load | GetRows | Play | Cancel | Ping | LogLevel | Stop
FromWorker = Hello | Ready | RowChunk | Generated | Sealed | Counts | Done | Failed | Pong | Log | Note
Message = ToWorker | FromWorker

_KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (*ToWorker.__args__, *FromWorker.__args__)}

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


# --- bytes ----------------------------------------------------------------------------------------------------


def encode(message: Message) -> bytes:
    """The message as one JSON object. ProtocolError for a value that JSON does not have."""
    try:
        return orjson.dumps({"type": type(message).__name__, "fields": message}, option=_OPTIONS)
    except TypeError as error:
        raise ProtocolError(f"{type(message).__name__} can not be sent: {error}", cause=error) from error


def decode(data: bytes | bytearray | memoryview) -> Message:
    """The message of `encode`. ProtocolError for anything else."""
    try:
        value = orjson.loads(data)
        kind, fields = _KINDS[value["type"]], value["fields"]
        if kind is Play:
            fields["rollouts"] = [PlannedRollout(**planned) for planned in fields["rollouts"]]
        message: Message = kind(**fields)
        return message
    except (ValueError, KeyError, TypeError) as error:
        shown = bytes(data[:80])
        raise ProtocolError(f"{shown!r} is no message ({type(error).__name__}: {error})", cause=error) from error


# --- errors ---------------------------------------------------------------------------------------------------


class CauseError(Exception):
    """A cause of an error from a worker: shown by the name and the text that the original has."""


def error_to_dict(error: BaseException) -> dict[str, Any]:
    """A typed error as it crosses: class, message, hint, and class and text of each of its causes."""
    _, *causes = ErrorChain(error).chain
    named = [(type(cause).__name__, text_of(cause)) for cause in causes]
    return {**error_record(error), "hint": getattr(error, "hint", None), "causes": named}


def error_from_dict(data: Mapping[str, Any]) -> Error:
    """The typed error again; one of a class that this end does not know becomes an InfraError."""
    known = getattr(errors, str(data.get("error")), None)
    cls = known if isinstance(known, type) and issubclass(known, Error) else InfraError
    message = str(data.get("message") or data.get("error") or "unknown")
    # Constructors differ (a list of keys, an extra); what is shown and how it is treated is all here.
    error: Error = cls.__new__(cls, message)
    error.args = (message,)
    if data.get("hint"):
        error.hint = str(data["hint"])
    outer: BaseException = error
    for name, text in data.get("causes") or ():
        outer.__cause__ = type(str(name), (CauseError,), {})(str(text))
        outer = outer.__cause__
    return error
