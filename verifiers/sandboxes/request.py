"""`CreateSandboxRequest`: what published environments ask of a sandbox, in the units they use, read as a `SandboxSpec`.

    request = CreateSandboxRequest(name="demo", docker_image="python:3.11-slim", memory_gb=2)
    request.model_copy(update={"labels": ["math"]}).to_spec()

The fields that belong to an account of the upstream vendor (`team_id`, `region`, `advanced_configs`) are taken and
have no effect here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from verifiers.errors import ConfigError, SandboxUnsupportedError
from verifiers.sandboxes.spec import Isolation, SandboxSpec, Secret

START_COMMAND = "tail -f /dev/null"
"""v0's default, which keeps a container alive. A sandbox needs no such thing: it is not run."""
MIB_PER_GB = 1024


class AdvancedConfigs(BaseModel):
    """Settings of the upstream vendor's service; kept, without effect."""

    model_config = ConfigDict(extra="allow")


class CreateSandboxRequest(BaseModel):
    """One sandbox as environments ask for it.

    docker_image: what the provider takes as an image's name. The local one knows v0's default as its own system.
    start_command: started once when the sandbox is there, and not waited for.
    cpu_cores, memory_gb, disk_size_gb: what it may use. timeout_minutes: how long it lives at most.
    labels: to find it by. secrets: environment variables that are never logged.
    network, workdir: as in `SandboxSpec`. network_access and network_allowlist are other ways to say `network`.
    isolation: the least level that is accepted; None: what the provider is set to.
    """

    model_config = ConfigDict(extra="ignore", arbitrary_types_allowed=True)

    name: str = "sandbox"
    docker_image: str | None = "python:3.11-slim"
    start_command: Any = START_COMMAND
    cpu_cores: float = 1
    memory_gb: float = 2
    disk_size_gb: float = 5
    gpu_count: int = 0
    timeout_minutes: float = 60
    idle_timeout_minutes: float | None = None
    environment_vars: dict[str, str] | None = None
    secrets: dict[str, str] | None = Field(default=None, repr=False)
    labels: list[str] | dict[str, str] = Field(default_factory=list)
    network: Literal["none", "open"] | tuple[str, ...] = "none"
    network_access: bool | None = None
    network_allowlist: list[str] | None = None
    isolation: Isolation | None = None
    workdir: str = "/workspace"
    team_id: str | None = None
    region: str | None = None
    advanced_configs: Any = None
    idempotency_key: str | None = None

    @classmethod
    def read(cls, request: Any) -> CreateSandboxRequest:
        """This request, a dict, or the vendor's own object of the same fields."""
        if isinstance(request, cls):
            return request
        if isinstance(request, BaseModel):
            given = request.model_dump(exclude_none=True)
        elif isinstance(request, Mapping):
            given = dict(request)
        else:
            raise ConfigError(
                f"{type(request).__name__} is no request for a sandbox",
                hint="Pass a CreateSandboxRequest or a SandboxSpec.",
            )
        return cls.model_validate(given)

    @property
    def startup(self) -> str | tuple[str, ...] | None:
        """What to start in a new sandbox: a line for the shell, a program, or None for nothing."""
        command = self.start_command
        if isinstance(command, Mapping):
            return (command["executable"], *command.get("args", ()))
        if command is not None and not isinstance(command, str):
            return (command.executable, *command.args)
        return None if command is None or command.strip() in ("", START_COMMAND) else command

    def to_spec(self, isolation: Isolation = "namespace") -> SandboxSpec:
        """The same as a `SandboxSpec`, at the level `isolation` if it names none.

        SandboxUnsupportedError: it asks for a GPU.
        """
        if self.gpu_count:
            raise SandboxUnsupportedError(
                f"{self.gpu_count} GPUs are asked for: no sandbox here has one", hint="Leave gpu_count at 0."
            )
        labels = self.labels if isinstance(self.labels, dict) else dict.fromkeys(self.labels, "")
        return SandboxSpec(
            image=self.docker_image or "host",
            workdir=self.workdir,
            cpu=self.cpu_cores,
            memory=round(self.memory_gb * MIB_PER_GB),
            disk=round(self.disk_size_gb * MIB_PER_GB),
            lifetime=self.timeout_minutes * 60,
            idle_lifetime=None if self.idle_timeout_minutes is None else self.idle_timeout_minutes * 60,
            network=self._network(),
            env=dict(self.environment_vars or {}),
            secrets={name: Secret(value) for name, value in (self.secrets or {}).items()},
            isolation=self.isolation or isolation,
            labels={"name": self.name, **labels},
            idempotency_key=self.idempotency_key,
        )

    def _network(self) -> Literal["none", "open"] | tuple[str, ...]:
        if self.network_allowlist is not None:
            return tuple(self.network_allowlist)
        if self.network_access is not None:
            return "open" if self.network_access else "none"
        return self.network
