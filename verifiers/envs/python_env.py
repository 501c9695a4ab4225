"""`PythonEnv`: the model works with a Python interpreter that stays, in a sandbox that its rollout has for itself.

    env = vf.PythonEnv(dataset=rows, rubric=rubric, max_turns=20)

Variables, functions and imports last from call to call, and the value of a last expression is shown, as in a notebook.
Code that runs out of its time or ends the interpreter is told to the model. The interpreter starts with the sandbox,
behind the model's first reply.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from typing import Any, TypedDict

from packaging.requirements import InvalidRequirement, Requirement

from verifiers.envs.sandbox_env import SandboxEnv, SandboxState, joined
from verifiers.errors import (
    ConfigError,
    Error,
    PythonWorkerDeadError,
    PythonWorkerNotReadyError,
    PythonWorkerRequestError,
    SandboxUnsupportedError,
)
from verifiers.rubrics.rubric import Rubric
from verifiers.sandboxes.sandbox import Sandbox
from verifiers.sandboxes.sessions import CodeResult, Interpreter
from verifiers.types import Messages, State

__all__ = [
    "PythonEnv",
    "PythonMonitorRubric",
    "PythonWorkerDeadError",
    "PythonWorkerNotReadyError",
    "PythonWorkerRequestError",
    "PythonWorkerState",
]

VERSIONS = """import importlib.metadata, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps({name: version(name) for name in sys.argv[1:]}))"""


class PythonWorkerState(TypedDict):
    """What is known of a rollout's interpreter. execution_count: the number of the last piece of code."""

    ready: bool
    execution_count: int
    ready_wait_time: float


class PythonMonitorRubric(Rubric):
    """Reports how many seconds the rollout waited for its interpreter."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_metric(self.python_ready_wait_time)

    async def python_ready_wait_time(self, state: State) -> float:
        return float((state.get("python_state") or {}).get("ready_wait_time", 0.0))


class PythonEnv(SandboxEnv):
    """A persistent Python (the tool `python`) in a sandbox of its own for each rollout.

    pip_install_packages: what the code may import, as for `pip install`. Sandboxes of this machine see the packages of
        the Python that runs this, read-only; what is missing is installed if the sandbox has a network, and is an
        error that ends the run if it has not.
    max_startup_wait_seconds: for the interpreter and for each of both steps with packages.

    Everything else is `SandboxEnv`'s; `timeout_per_command_seconds` holds for one piece of code. State key:
    `python_state`.
    """

    record_columns = (*SandboxEnv.record_columns, "python_state")

    def __init__(
        self,
        pip_install_packages: str = "numpy sympy scipy",
        max_startup_wait_seconds: float = 30,
        **kwargs: Any,
    ) -> None:
        self.pip_install_packages = pip_install_packages
        self.max_startup_wait_seconds = max_startup_wait_seconds
        self._requirements = _read(pip_install_packages)
        self._complete: set[str] = set()
        self._pythons: dict[str, asyncio.Task[Interpreter]] = {}
        super().__init__(**{"sandbox_name": "python-env", **kwargs})
        self.add_rubric(PythonMonitorRubric())
        self.add_tool(self.python, args_to_skip=["sandbox_id", "sandbox_state", "python_state"])
        self.remove_tool(self.bash)

    async def setup_state(self, state: State, **kwargs: Any) -> State:
        """Ask for the rollout's sandbox and interpreter, and wait for neither."""
        state = await super().setup_state(state, **kwargs)
        state["python_state"] = PythonWorkerState(ready=False, execution_count=0, ready_wait_time=0.0)
        return state

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Messages, state: State, **kwargs: Any
    ) -> dict[str, Any]:
        """Give `python` the rollout's sandbox and interpreter."""
        updated = super().update_tool_args(tool_name, tool_args, messages, state, **kwargs)
        if tool_name == "python":
            for name in ("sandbox_id", "sandbox_state", "python_state"):
                updated[name] = state[name]
        return updated

    # --- the tool --------------------------------------------------------------------------------------------

    async def python(
        self, code: str, sandbox_id: str, sandbox_state: SandboxState, python_state: PythonWorkerState
    ) -> str:
        """Execute `code` inside persistent Python REPL."""
        if not python_state["ready"]:
            await self._wait_for_worker_ready(sandbox_id, sandbox_state, python_state)
        interpreter = await self._pythons[sandbox_id]
        seconds = self.timeout_per_command_seconds
        try:
            result = await interpreter.run(code, timeout=seconds)
        except Error:
            raise
        except Exception as error:  # boundary: what is no SandboxError by name is one by nature
            raise PythonWorkerRequestError(f"the code could not be run: {error}", cause=error) from error
        sandbox_state["command_execution_times"].append(seconds if result.outcome == "timeout" else result.seconds)
        if result.state == "lost" and result.outcome in ("ok", "error"):
            raise PythonWorkerDeadError("the interpreter ended while no code was running: its variables are gone")
        python_state["execution_count"] = result.number or python_state["execution_count"] + 1
        return self._shown(told(result, seconds, python_state["execution_count"]))

    async def _wait_for_worker_ready(
        self, sandbox_id: str, sandbox_state: SandboxState, python_state: PythonWorkerState
    ) -> None:
        started = time.monotonic()
        if not sandbox_state["ready"]:
            await self._wait_for_sandbox_ready(sandbox_state, sandbox_id)
        await self._start_python(sandbox_id, await self.sandbox_client.sandbox(sandbox_id))
        python_state["ready"] = True
        python_state["ready_wait_time"] = time.monotonic() - started

    # --- the interpreter -------------------------------------------------------------------------------------

    def _preparation(self, state: State) -> dict[str, Any]:
        then = super()._preparation(state).get("setup")

        async def prepare(sandbox: Sandbox) -> None:
            await self._start_python(state["sandbox_id"], sandbox)
            if then is not None:
                await then(sandbox)

        return {"setup": prepare}

    async def _start_python(self, sandbox_id: str, sandbox: Sandbox) -> None:
        """Have an interpreter in this sandbox, whoever asks first."""
        if sandbox_id not in self._pythons:
            self._pythons[sandbox_id] = asyncio.create_task(self._open(sandbox))
        await asyncio.shield(self._pythons[sandbox_id])

    async def _open(self, sandbox: Sandbox) -> Interpreter:
        try:
            await self._provide_packages(sandbox)
            async with asyncio.timeout(self.max_startup_wait_seconds):
                return await sandbox.interpreter()
        except TimeoutError as error:
            said = f"the interpreter did not start within {self.max_startup_wait_seconds:g} s"
            raise PythonWorkerNotReadyError(said, cause=error) from error

    async def _provide_packages(self, sandbox: Sandbox) -> None:
        """See to it that the packages are there. What one sandbox had without installing, its like have too."""
        kind = sandbox.spec.pool_key
        if not self.pip_install_packages.strip() or kind in self._complete:
            return
        missing = await self._missing(sandbox)
        if missing is not None and not missing:
            self._complete.add(kind)
        elif sandbox.spec.network == "none":
            names = ", ".join(str(item) for item in missing or self._requirements)
            raise SandboxUnsupportedError(
                f"pip_install_packages: the sandbox's Python has no {names}, and no network to get it from",
                hint="Install it beside verifiers (pip install …): sandboxes of this machine see it. Or take an image "
                "that has it, or a provider whose sandboxes can install it (network='open'), or do without.",
            )
        else:
            words = ["python3", "-m", "pip", "install", "-q", *shlex.split(self.pip_install_packages)]
            result = await sandbox.exec(words, timeout=self.max_startup_wait_seconds)
            if not result.ok:
                said = result.stderr_text.strip()[-500:] or result.reason
                raise PythonWorkerNotReadyError(f"pip_install_packages: pip failed: {said}")

    async def _missing(self, sandbox: Sandbox) -> list[Requirement] | None:
        """The packages that are not there, or not in a version that fits; None if that cannot be told."""
        names = [item.name for item in self._requirements]
        result = await sandbox.exec(["python3", "-c", VERSIONS, *names], timeout=self.max_startup_wait_seconds)
        if not result.ok:
            said = result.stderr_text.strip()[-500:] or result.reason
            raise PythonWorkerNotReadyError(f"there is no usable python3 in the sandbox: {said}")
        if len(names) < len(shlex.split(self.pip_install_packages)):
            return None  # options of pip, addresses: only pip understands them
        found: dict[str, str | None] = json.loads(result.stdout)
        return [item for item in self._requirements if not _fits(item, found[item.name])]

    async def _delete(self, sandbox_id: str) -> None:
        await super()._delete(sandbox_id)
        if (python := self._pythons.pop(sandbox_id, None)) is not None:
            python.cancel()
            await asyncio.wait({python})
            _ = python.cancelled() or python.exception()  # nobody has to ask why there was none


def told(result: CodeResult, seconds: float, number: int) -> str:
    """What the model reads of a piece of code that was given `seconds`."""
    parts = [joined(result.stdout_text.rstrip(), result.stderr_text.rstrip())]
    if result.outcome == "timeout":
        parts.insert(0, f"Error: Command timed out after {seconds}s")
    elif result.outcome == "output_limit":
        parts.append(f"Error: killed after {result.stdout_bytes + result.stderr_bytes} bytes of output")
    elif result.outcome == "died":
        how = f"signal {result.signal}" if result.signal is not None else f"exit code {result.exit_code}"
        parts.append(f"Error: the Python interpreter ended with {how}")
    elif result.traceback is not None:
        parts.append(result.traceback.rstrip())
    elif result.value is not None:
        parts.append(f"Out[{number}]: {result.value}")
    if result.state == "lost":
        parts.append("A new interpreter was started: all variables, functions and imports are gone.")
    return "\n".join(part for part in parts if part) or "(no output)"


def _read(packages: str) -> list[Requirement]:
    """The requirements among the words of a `pip install`. ConfigError: it is no list of words."""
    try:
        words = shlex.split(packages)
    except ValueError as error:
        raise ConfigError(f"pip_install_packages is {packages!r}", hint="Write it as for pip install.") from error
    found = []
    for word in words:
        try:
            found.append(Requirement(word))
        except InvalidRequirement:
            continue
    return found


def _fits(item: Requirement, version: str | None) -> bool:
    return version is not None and item.specifier.contains(version, prereleases=True)
