"""What is asked of a sandbox: `SandboxSpec`, and what is asked of one command in it: `Command`.

Every limit and deadline is a field with its default here; nothing is taken from the surroundings. A limit is a
positive number, or None for none; zero and negatives are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from verifiers.errors import ConfigError

Isolation = Literal["none", "landlock", "namespace"]
ISOLATION_LEVELS: tuple[Isolation, ...] = ("none", "landlock", "namespace")
"""From the weakest to the strongest."""

MIB = 1 << 20
OUTPUT_BYTES = MIB
"""Bytes kept of each stream of one command; more is counted and dropped, and the command goes on."""
OUTPUT_LIMIT = 256 * MIB
"""Bytes that one command may print on both streams together before it is killed: nobody drains `yes`."""
COMMAND_SECONDS = 30.0


class Secret:
    """A value that is never printed: `repr`, logs and records show `***`."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself."""
        return self._value

    def __repr__(self) -> str:
        return "Secret('***')"

    __str__ = __repr__


@dataclass(frozen=True, slots=True)
class Mount:
    """A file or directory of the host that the sandbox sees at `target`, read-only unless said otherwise."""

    source: str
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """One sandbox: what is in it and what it may use.

    image: "host" (the system's own /usr, read-only), a directory that holds a root file system, or what the provider
        takes as an image's name.
    workdir: where commands start and relative paths lead.
    cpu: cores' worth of time; memory, disk: MiB, disk being all that is written; inodes, pids: counts.
    lifetime: seconds until the sandbox is deleted whatever it does; idle_lifetime: the same without a request.
    network: "none", "open", or the hosts that may be reached, where the provider can do that.
    env: of every command. secrets: the same, given when a rollout takes the sandbox; never logged.
    isolation: the least level that is accepted; a provider that cannot give it fails to create.
    labels: to find and delete sandboxes by. idempotency_key: a repeated `create` gives the same sandbox.
    """

    image: str = "host"
    workdir: str = "/workspace"
    cpu: float | None = 1.0
    memory: int | None = 1024
    disk: int | None = 1024
    inodes: int | None = 100_000
    pids: int | None = 256
    lifetime: float | None = 3600.0
    idle_lifetime: float | None = None
    network: Literal["none", "open"] | tuple[str, ...] = "none"
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    isolation: Isolation = "namespace"
    labels: Mapping[str, str] = field(default_factory=dict)
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        for name in ("cpu", "memory", "disk", "inodes", "pids", "lifetime", "idle_lifetime"):
            check_limit(name, getattr(self, name))
        if self.isolation not in ISOLATION_LEVELS:
            raise ConfigError(f"isolation is {self.isolation!r}", hint=f"One of {', '.join(ISOLATION_LEVELS)}.")
        if not self.workdir.startswith("/"):
            raise ConfigError(f"workdir is {self.workdir!r}", hint="Give an absolute path inside the sandbox.")
        if isinstance(self.network, str) and self.network not in ("none", "open"):
            raise ConfigError(f"network is {self.network!r}", hint='"none", "open" or a tuple of hosts.')

    @property
    def pool_key(self) -> str:
        """Equal for specs whose idle sandboxes are interchangeable: what comes at the claim is left out."""
        shared = asdict(replace(self, secrets={}, labels={}, idempotency_key=None))
        return hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: a line for `sh -c`, or a program with its arguments.

    cwd: relative to the sandbox's workdir. env: on top of the sandbox's own. stdin: all of it; None for none.
    timeout: seconds it may run, from its start, not from when it was asked for. silence: seconds without output.
    max_output: bytes kept of each stream, the first ones or the last ones as `keep` says; with "last", who reads a
        process while it prints has to fall behind by so much to miss any. output_limit: bytes of both after which it
        is killed.
    kill_leftovers: whether what it leaves running is killed when it ends; at a time-out everything is.
    """

    command: str | tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    timeout: float | None = COMMAND_SECONDS
    silence: float | None = None
    max_output: int = OUTPUT_BYTES
    keep: Literal["first", "last"] = "first"
    output_limit: int | None = OUTPUT_LIMIT
    kill_leftovers: bool = False

    def __post_init__(self) -> None:
        for name in ("timeout", "silence", "max_output", "output_limit"):
            check_limit(name, getattr(self, name))
        if self.keep not in ("first", "last"):
            raise ConfigError(f"keep is {self.keep!r}", hint='"first" or "last".')
        if not self.command:
            raise ConfigError("the command is empty", hint="Give a line for the shell, or a program.")
        words = (self.command,) if isinstance(self.command, str) else self.command
        words += tuple(part for pair in self.env.items() for part in pair)
        if any("\0" in word for word in words):
            raise ConfigError("a command or variable holds a NUL character", hint="No program can be given one.")

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments."""
        return ("/bin/sh", "-c", self.command) if isinstance(self.command, str) else self.command


def command(
    line: str | Sequence[str], *, stdin: bytes | str | None = None, env: Mapping[str, str] | None = None, **options: Any
) -> Command:
    """A `Command` of what callers write: lists of words, text as input."""
    words = line if isinstance(line, str) else tuple(line)
    data = stdin.encode() if isinstance(stdin, str) else stdin
    return Command(command=words, stdin=data, env=dict(env or {}), **options)


def check_limit(name: str, value: float | None) -> None:
    """Refuse what is no limit."""
    if value is not None and not value > 0:
        raise ConfigError(f"{name} is {value!r}", hint="A limit is a positive number, or None for none.")
