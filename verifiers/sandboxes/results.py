"""What a sandbox answers: plain records, equal for every provider."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Literal

from verifiers.sandboxes.spec import Isolation

Reason = Literal["exited", "signalled", "timeout", "silence", "output_limit", "oom", "pids", "cancelled"]
"""Why a command ended. `oom` and `pids`: a limit of the sandbox was met meanwhile; the command may have gone on."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExecResult:
    """How a command ended: data for the model, whatever it says.

    exit_code: None if a signal ended it; signal: None if it exited. Both come from `wait`, never from text or files.
    stdout, stderr: at most `max_output` bytes; *_bytes: how many were printed.
    seconds: from its start to its end; cpu_seconds, peak_memory (bytes): of its processes, where that is known.
    leftovers: processes it left running; killed_leftovers: those that were killed.
    """

    exit_code: int | None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    seconds: float = 0.0
    cpu_seconds: float | None = None
    peak_memory: int | None = None
    reason: Reason = "exited"
    oom_killed: bool = False
    pids_limited: bool = False
    leftovers: int = 0
    killed_leftovers: int = 0

    def __repr__(self) -> str:
        """What is not as usual: authors put results into messages."""
        shown = [one for one in fields(self) if one.default is MISSING or getattr(self, one.name) != one.default]
        return f"{type(self).__name__}({', '.join(f'{one.name}={getattr(self, one.name)!r}' for one in shown)})"

    @property
    def ok(self) -> bool:
        """It exited with 0 and no limit was met."""
        return self.exit_code == 0 and self.reason == "exited" and not self.oom_killed

    @property
    def timed_out(self) -> bool:
        """It was killed at its deadline, or after its time of silence."""
        return self.reason in ("timeout", "silence")

    @property
    def truncated(self) -> bool:
        """More was printed than was kept."""
        return self.stdout_bytes > len(self.stdout) or self.stderr_bytes > len(self.stderr)

    @property
    def stdout_text(self) -> str:
        """What was kept of stdout, read as UTF-8; what is no UTF-8 is replaced."""
        return self.stdout.decode(errors="replace")

    @property
    def stderr_text(self) -> str:
        """The same of stderr."""
        return self.stderr.decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some output of a running process: `offset` counts the bytes of its stream before it."""

    stream: Literal["stdout", "stderr"]
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class FileStat:
    """A file in a sandbox. size: bytes; mode: permission bits; mtime: seconds since the epoch; path: absolute."""

    path: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    mode: int
    mtime: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a sandbox uses now. memory, disk: bytes; None where the provider cannot tell."""

    memory: int | None = None
    peak_memory: int | None = None
    disk: int | None = None
    pids: int | None = None
    cpu_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """A sandbox as a list shows it. age: seconds."""

    id: str
    labels: dict[str, str]
    image: str
    isolation: str
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a provider can do, as it found out.

    isolation: the level its sandboxes get. limits: names of the limits of a spec that are enforced; weak: of those,
    the ones enforced in a weaker way (by process or by user, not by sandbox), with how.
    """

    isolation: Isolation
    limits: frozenset[str] = frozenset()
    weak: dict[str, str] = field(default_factory=dict)
    network: frozenset[str] = frozenset({"none"})
    images: bool = False
    mounts: bool = False
    attach: bool = True
