"""What is asked of a sandbox: `SandboxSpec`, and what is asked of one command in it: `Command`.

Every limit and deadline is a field with its default here; nothing is taken from the surroundings. A limit is a
positive number, or None for none; zero and negatives are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
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
READ_BYTES = 256 * MIB
"""Largest file that is read without saying how much of it: a file in a sandbox may claim to have terabytes."""


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
        for name in ("memory", "disk", "inodes", "pids"):
            if not isinstance(getattr(self, name), int | None):
                raise ConfigError(f"{name} is {getattr(self, name)!r}", hint="Give a whole number, or None for none.")
        check_words("its image, working directory or a mount", self._places())
        check_variables(self.env)
        for name, secret in self.secrets.items():
            if not isinstance(secret, Secret):
                raise ConfigError(f"the secret {name!r} is {type(secret).__name__}", hint="Wrap it: Secret(value).")
            try:
                check_variables({name: secret.reveal()})
            except ConfigError:  # whose message has the value
                text = f"the name or the value of the secret {name!r:.100} can be no variable"
                raise ConfigError(text, hint="Both are text without NUL characters, the name without '='.") from None
        if not self.workdir.startswith("/"):
            raise ConfigError(f"workdir is {self.workdir!r}", hint="Give an absolute path inside the sandbox.")
        if isinstance(self.network, str) and self.network not in ("none", "open"):
            raise ConfigError(f"network is {self.network!r}", hint='"none", "open" or a tuple of hosts.')

    def _places(self) -> tuple[str, ...]:
        return (self.image, self.workdir, *(end for mount in self.mounts for end in (mount.source, mount.target)))

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
        check_words("a command", words)
        if not words[0]:
            raise ConfigError("the program's name is empty", hint="Give a line for the shell, or a program.")
        check_words("the directory of a command", (self.cwd or "",))
        check_variables(self.env)

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments."""
        return ("/bin/sh", "-c", self.command) if isinstance(self.command, str) else self.command


def command(
    line: str | Sequence[str], *, stdin: bytes | str | None = None, env: Mapping[str, str] | None = None, **options: Any
) -> Command:
    """A `Command` of what callers write: lists of words, text as input."""
    words = line if isinstance(line, str) else tuple(line)
    if isinstance(stdin, str):
        check_words("the input", (stdin.replace("\0", ""),))
    data = os.fsencode(stdin) if isinstance(stdin, str) else stdin
    return Command(command=words, stdin=data, env=dict(env or {}), **options)


def check_limit(name: str, value: object) -> None:
    """Refuse what is no limit."""
    if value is not None and (not isinstance(value, int | float) or not 0 < value < float("inf")):
        raise ConfigError(f"{name} is {value!r}", hint="A limit is a positive number, or None for none.")


def check_variables(variables: Mapping[str, str]) -> None:
    """Refuse what is no environment of a program."""
    check_words("a variable", (part for pair in variables.items() for part in pair))
    for name in variables:
        if not name or "=" in name:
            raise ConfigError(f"a variable is named {name!r}", hint="A name is not empty and holds no '='.")


def check_words(what: str, words: Iterable[str]) -> None:
    """Refuse what no program and no file can be given: NUL characters, and halves of characters."""
    for word in words:
        if not isinstance(word, str):
            raise ConfigError(f"{what} is {word!r:.100}, no text", hint="Give a str.")
        if "\0" in word:
            raise ConfigError(f"{what} holds a NUL character", hint="No program can be given one.")
        try:
            os.fsencode(word)
        except UnicodeEncodeError:
            hint = "A lone surrogate is half of a character: text.encode(errors='replace').decode() is without them."
            raise ConfigError(f"{what} is no Unicode text: {word!r:.100}", hint=hint) from None
