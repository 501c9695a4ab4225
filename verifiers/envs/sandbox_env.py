"""`SandboxEnv`: the model works with a shell in a sandbox that its rollout has for itself.

    env = vf.SandboxEnv(dataset=rows, rubric=rubric, max_turns=20)

The sandbox starts behind the model's first reply and is waited for at the first command. By default it is one of this
machine (`LocalProvider`), without a network; `provider=` takes any other. What a command did is told to the model;
what the platform failed to do ends the rollout with a `SandboxError` and no reward, and another attempt may follow.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypedDict, TypeVar

from verifiers.decorators import accepted, cleanup, maybe_await, teardown
from verifiers.envs.lifecycle import boundary, record_error
from verifiers.envs.stateful_tool_env import StatefulToolEnv
from verifiers.errors import (
    CommandTimeoutError,
    ConfigError,
    EnvironmentCodeError,
    Error,
    SandboxCreationError,
    SandboxError,
    SandboxNotReadyError,
    as_error,
)
from verifiers.rubrics.rubric import Rubric
from verifiers.sandboxes.by_id import CommandResponse, SandboxClient
from verifiers.sandboxes.lease import Lease
from verifiers.sandboxes.request import START_COMMAND, AdvancedConfigs, CreateSandboxRequest
from verifiers.sandboxes.results import ExecResult
from verifiers.sandboxes.retrying import Retrying
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import Command, Isolation
from verifiers.types import Messages, State, concat_messages

__all__ = [
    "AdvancedConfigs",
    "CommandTimeoutError",
    "CreateSandboxRequest",
    "SandboxClient",
    "SandboxCreationError",
    "SandboxEnv",
    "SandboxMonitorRubric",
    "SandboxNotReadyError",
    "SandboxState",
]

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

OUTPUT_CHARS = 20_000
"""Characters of one command's output that the model is shown: about 5,000 tokens."""


class SandboxState(TypedDict):
    """What is known of a rollout's sandbox. Times in seconds."""

    ready: bool
    ready_wait_time: float
    command_execution_times: list[float]


class SandboxMonitorRubric(Rubric):
    """Reports how long the rollout waited for its sandbox, and its commands' mean time."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_metric(self.sandbox_ready_wait_time)
        self.add_metric(self.sandbox_command_execution_time)

    async def sandbox_ready_wait_time(self, state: State) -> float:
        return float(_state_of(state)["ready_wait_time"])

    async def sandbox_command_execution_time(self, state: State) -> float:
        times = _state_of(state)["command_execution_times"]
        return sum(times) / len(times) if times else 0.0


class SandboxEnv(StatefulToolEnv):
    """A shell (the tool `bash`) in a sandbox of its own for each rollout.

    sandbox_name, labels: to find the sandboxes by.
    docker_image: what the provider takes as an image. The local one has v0's default: the system it runs on.
    start_command: started once in a new sandbox, and not waited for.
    cpu_cores, memory_gb, disk_size_gb: what a sandbox may use. gpu_count: none here has one.
    timeout_minutes: how long a sandbox lives at most; also the deadline of `post_rollout`.
    timeout_per_command_seconds: for one command of the model.
    environment_vars: of every command.
    max_retries, base_delay, backoff_factor, max_backoff_seconds, jitter: of `self.with_retry(func)`.
    stop_errors: further exception types of tools that end the rollout. A `SandboxError` always does.
    max_output_chars: longer output is shown to the model without its middle.
    network: "none", "open", or hosts, where the provider can do that.
    isolation: the least level that is accepted ("namespace", "landlock", "none"); None: what the provider is set to.
    provider: where sandboxes come from; None: the default one of this process.

    `team_id`, `advanced_configs` and `sandbox_client_*` are settings of v0's service, without effect here. State keys:
    `sandbox_id`, `sandbox_state`, and `sandbox_info` for the record. A command starts in `state["working_dir"]`.
    """

    record_columns: tuple[str, ...] = ("sandbox_state", "sandbox_info")
    _ending_errors = (SandboxError, EnvironmentCodeError)

    def __init__(
        self,
        sandbox_name: str = "sandbox-env",
        docker_image: str = "python:3.11-slim",
        start_command: str = START_COMMAND,
        cpu_cores: float = 1,
        memory_gb: float = 2,
        disk_size_gb: float = 5,
        gpu_count: int = 0,
        timeout_minutes: float = 60,
        timeout_per_command_seconds: float = 30,
        environment_vars: dict[str, str] | None = None,
        team_id: str | None = None,
        advanced_configs: Any = None,
        labels: list[str] | None = None,
        max_retries: int = 5,
        base_delay: float = 0.5,
        backoff_factor: float = 2.0,
        max_backoff_seconds: float = 30.0,
        jitter: float = 1e-3,
        stop_errors: list[type[Exception]] | None = None,
        sandbox_client_max_workers: int | None = None,
        sandbox_client_max_connections: int = 100,
        sandbox_client_max_keepalive_connections: int = 50,
        *,
        max_output_chars: int | None = OUTPUT_CHARS,
        network: Literal["none", "open"] | Iterable[str] = "none",
        isolation: Isolation | None = None,
        provider: Provider | None = None,
        **kwargs: Any,
    ) -> None:
        # Commands have deadlines of their own; tools of subclasses may run several.
        kwargs.setdefault("tool_timeout", None)
        super().__init__(stop_errors=[SandboxError] if stop_errors is None else stop_errors, **kwargs)
        self.add_rubric(SandboxMonitorRubric())
        self.timeout_per_command_seconds = timeout_per_command_seconds
        self.max_output_chars = max_output_chars
        self.cleanup_seconds = timeout_minutes * 60
        retrying = Retrying(max_retries, base_delay, backoff_factor, max_backoff_seconds, jitter)
        self.sandbox_client: Any = SandboxClient(provider)
        self.sandbox_request = CreateSandboxRequest(
            name=sandbox_name,
            docker_image=docker_image,
            start_command=start_command,
            cpu_cores=cpu_cores,
            memory_gb=memory_gb,
            disk_size_gb=disk_size_gb,
            gpu_count=gpu_count,
            timeout_minutes=timeout_minutes,
            environment_vars=environment_vars,
            team_id=team_id,
            advanced_configs=advanced_configs,
            labels=labels or [],
            network=network if isinstance(network, str) else tuple(network),
            isolation=isolation,
        )
        self.active_sandboxes: set[str] = set()
        self._proved = False
        self.with_retry = retrying.wraps
        self.add_tool(self.bash, args_to_skip=["sandbox_id", "sandbox_state", "working_dir"])

    # --- hooks -----------------------------------------------------------------------------------------------

    def get_sandbox_request(self, state: State) -> CreateSandboxRequest:
        """What sandbox this rollout gets: a copy of `self.sandbox_request`. Override it to change it per task:
        `super().get_sandbox_request(state).model_copy(update={...})`."""
        return self.sandbox_request.model_copy()

    async def prepare_sandbox(self, sandbox: Sandbox, state: State) -> None:
        """Override it to put a task's files into its sandbox, or to run commands there, before the model does.

        It is called when the sandbox is there, usually while the model writes its first reply.
        """

    async def post_rollout(self, *args: Any, **kwargs: Any) -> None:
        """Override it, as `post_rollout(self, state)`, to take out of the sandbox what scoring needs: it is deleted
        before the rollout is scored.

        An exception fails the rollout: what could not be looked at is not scored. An override may name `messages`,
        the conversation, too.
        """

    # --- the life of a sandbox -------------------------------------------------------------------------------

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Ask for the rollout's sandbox, and do not wait for it."""
        try:
            request = await maybe_await(self.get_sandbox_request, state)
            sandbox = await self.with_retry(self.sandbox_client.create)(request, **self._preparation(state))
        except Error:
            raise
        except Exception as error:  # boundary: a request or a client of the environment's own
            raise SandboxCreationError(str(error), cause=error) from error
        self.active_sandboxes.add(sandbox.id)
        state["sandbox_id"] = sandbox.id
        state["sandbox_state"] = SandboxState(ready=False, ready_wait_time=0.0, command_execution_times=[])
        returned = await super().setup_state(state, **kwargs)
        return state if returned is None else returned

    def _preparation(self, state: State) -> dict[str, Any]:
        """The option by which `create` is told of `prepare_sandbox`, where that does something."""
        if type(self).prepare_sandbox is SandboxEnv.prepare_sandbox:
            return {}

        async def prepare(sandbox: Sandbox) -> None:
            try:
                await maybe_await(self.prepare_sandbox, sandbox, state)
            except Exception as error:  # boundary: code of the environment
                typed = as_error(error, EnvironmentCodeError, "prepare_sandbox")
                raise typed from typed.__cause__

        return {"setup": prepare}

    async def _wait_for_sandbox_ready(self, sandbox_state: SandboxState, sandbox_id: str) -> None:
        started = time.monotonic()
        try:
            await self.sandbox_client.wait_for_creation(sandbox_id)
        except Error:
            raise
        except Exception as error:  # boundary: a client of the environment's own
            raise SandboxNotReadyError(str(error), cause=error) from error
        sandbox_state["ready"] = True
        sandbox_state["ready_wait_time"] = time.monotonic() - started

    @cleanup
    async def destroy_sandbox(self, state: State) -> None:
        """Call `post_rollout`, then delete the sandbox, whatever came before."""
        try:
            with boundary(state, "post_rollout"):
                candidates = {"messages": _conversation(state), "state": state}
                await maybe_await(self.post_rollout, **accepted(self.post_rollout, candidates))
        except asyncio.CancelledError as error:
            record_error(state, EnvironmentCodeError("post_rollout did not end in time", cause=error))
            raise
        finally:
            if state.get("sandbox_id") is not None:
                try:
                    await self._note(state)
                finally:
                    await self._delete(state["sandbox_id"])

    async def _note(self, state: State) -> None:
        """Keep for the record what sandbox it was. One that nobody can give fails the rollout, used or not; so does one
        that broke, also if the environment's code took the error for an answer."""
        find = getattr(self.sandbox_client, "lease", None)  # a client of the environment's own may have none
        if find is None or state["sandbox_id"] not in self.active_sandboxes:
            return
        lease: Lease = find(state["sandbox_id"])
        if not self._proved and state.get("stop_condition") is not None:
            # Until one has come, nobody knows that there can be any: a rollout without commands would not tell.
            with contextlib.suppress(Error):
                await lease.sandbox()
                self._proved = True
        state["sandbox_info"] = lease.facts()
        failure = self.sandbox_client.failure(state["sandbox_id"]) or lease.failure
        if isinstance(failure, Error) and (failure.fatal or failure is not lease.failure):
            record_error(state, failure)

    async def _delete(self, sandbox_id: str) -> None:
        try:
            await self.with_retry(self.sandbox_client.delete)(sandbox_id)
            self.active_sandboxes.discard(sandbox_id)
        except Exception as error:  # boundary: teardown tries again, and a sandbox does not outlive its lifetime
            self.logger.warning("sandbox %s could not be deleted: %s", sandbox_id, error)

    async def bulk_delete_sandboxes(self, global_ids: list[str]) -> None:
        """Delete several sandboxes."""
        await self.with_retry(self.sandbox_client.bulk_delete)(global_ids)
        self.active_sandboxes.difference_update(global_ids)

    @teardown
    async def teardown_sandboxes(self) -> None:
        """Delete the sandboxes that are left."""
        if self.active_sandboxes:
            await self.bulk_delete_sandboxes(sorted(self.active_sandboxes))

    # --- the tool --------------------------------------------------------------------------------------------

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """Give `bash` the rollout's sandbox."""
        updated = dict(tool_args)
        if tool_name == "bash":
            updated["sandbox_id"] = state["sandbox_id"]
            updated["sandbox_state"] = state["sandbox_state"]
            updated["working_dir"] = state.get("working_dir")
        return updated

    async def bash(
        self,
        command: str,
        sandbox_id: str,
        sandbox_state: SandboxState | None = None,
        working_dir: str | None = None,
    ) -> str:
        """Execute `command` inside persistent sandbox container."""
        try:
            Command(command=command)
        except ConfigError as error:  # the model's words: an empty command, NUL, half of a character
            return f"Error: {error}"
        if sandbox_state is None:
            sandbox_state = SandboxState(ready=False, ready_wait_time=0.0, command_execution_times=[])
        if not sandbox_state["ready"]:
            await self._wait_for_sandbox_ready(sandbox_state, sandbox_id)
        seconds = self.timeout_per_command_seconds
        started = time.monotonic()
        try:
            response = await self.sandbox_client.execute_command(
                sandbox_id, command, working_dir=working_dir, timeout=seconds
            )
        except CommandTimeoutError as error:
            sandbox_state["command_execution_times"].append(seconds)
            said = f"Error: Command timed out after {seconds}s"
            printed = joined(error.stdout.strip(), error.stderr.strip())
            return self._shown(f"{said}\n{printed}" if printed else said)
        except SandboxError:
            raise
        except Exception as error:  # boundary: what is no SandboxError by name is one by nature
            raise SandboxError(f"the command could not be run: {error}", cause=error) from error
        sandbox_state["command_execution_times"].append(time.monotonic() - started)
        said = joined(response.stdout.strip(), (response.stderr or "").strip(), note_of(response))
        return self._shown(said or "(no output)")

    def _shown(self, text: str) -> str:
        return text if self.max_output_chars is None else without_middle(text, self.max_output_chars)


def _state_of(state: State) -> SandboxState:
    empty = SandboxState(ready=False, ready_wait_time=0.0, command_execution_times=[])
    return {**empty, **(state.get("sandbox_state") or {})}


def _conversation(state: State) -> Messages:
    """The prompt and what followed it."""
    return concat_messages([state["prompt"], state["completion"] or []])


def joined(stdout: str, stderr: str, note: str = "") -> str:
    """Both streams as the model reads them; empty if there is nothing to read."""
    parts = [stdout, f"stderr:\n{stderr}" if stderr else "", note]
    return "\n".join(part for part in parts if part)


def note_of(response: CommandResponse) -> str:
    """What the model cannot see in the output: that a limit was met, and which."""
    result = getattr(response, "result", None)
    if not isinstance(result, ExecResult):
        return ""
    notes = []
    if result.oom_killed:
        notes.append("Error: out of memory: a process was killed")
    if result.pids_limited:
        notes.append("Error: too many processes: one could not be started")
    if result.reason == "output_limit":
        notes.append(f"Error: killed after {result.stdout_bytes + result.stderr_bytes} bytes of output")
    elif result.truncated:
        kept = len(result.stdout) + len(result.stderr)
        notes.append(f"Note: {result.stdout_bytes + result.stderr_bytes - kept} more bytes of output were not kept")
    return "\n".join(notes)


def without_middle(text: str, limit: int) -> str:
    """`text`, or its beginning and end of `limit` characters together, and between them how much is left out."""
    if len(text) <= limit:
        return text
    tail = limit // 2
    head = limit - tail
    return f"{text[:head]}\n[... {len(text) - limit} characters left out ...]\n{text[len(text) - tail:]}"
