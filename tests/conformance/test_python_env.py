"""Environments with a persistent Python: its outputs, its state, and the three ways in which it can be gone."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import verifiers as vf
from conformance_harness import calling, evaluate_one, rollout, rows
from sandbox_harness import interpreter, python, said
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.sessions import Interpreter


@pytest.mark.rule("B-026")
def test_the_model_sees_python_alone() -> None:
    """python(code), described as in v0, and no bash; v0's parameters and defaults."""
    env = vf.PythonEnv(dataset=rows(), rubric=vf.Rubric())
    (tool,) = env.tool_defs
    assert (tool["name"], list(tool["parameters"]["properties"])) == ("python", ["code"])
    assert tool["description"] == "Execute `code` inside persistent Python REPL."
    parameters = inspect.signature(vf.PythonEnv.__init__).parameters
    given = {name: item.default for name, item in parameters.items() if name not in ("self", "kwargs")}
    assert given == {"pip_install_packages": "numpy sympy scipy", "max_startup_wait_seconds": 30}
    assert env.sandbox_request.name == "python-env" and list(env.tool_map) == ["python"]


@pytest.mark.rule("B-027")
async def test_output_lines_of_code(provider: Provider) -> None:
    """stdout, the block of stderr, a traceback or the value of a last expression, each on lines of their own."""
    cells = {
        "x = 6": "(no output)",
        "x * 7": "Out[2]: 42",
        "import sys\nprint('  out')\nprint('err', file=sys.stderr)\n'v'": "  out\nstderr:\nerr\nOut[3]: 'v'",
        "None": "(no output)",
        "def f(n):\n    return n + x\n\nf(1)": "Out[5]: 7",
        "import subprocess\nsubprocess.run(['echo', 'child']).returncode": "child\nOut[6]: 0",
    }
    state = await rollout(interpreter(provider, max_turns=20), *python(*cells, "print(1)\nf('a')", "1 +", "x"))
    answers = said(state)
    assert answers[: len(cells)] == list(cells.values())
    failed, wrong, last = answers[len(cells) :]
    assert failed.startswith("1\nTraceback (most recent call last):")
    assert failed.splitlines()[-1].startswith("TypeError")
    assert "SyntaxError" in wrong and last == "Out[9]: 6"


@pytest.mark.rule("B-028")
async def test_the_state_of_the_interpreter(provider: Provider) -> None:
    """python_state counts the pieces of code and knows the wait; the metric reports it, and rollouts share nothing."""
    env = interpreter(provider)
    record = await evaluate_one(env, *python("x = 1", "x"))
    state = record["python_state"]
    assert (state["ready"], state["execution_count"]) == (True, 2)
    assert record["metrics"]["python_ready_wait_time"] == state["ready_wait_time"] >= 0
    assert len(record["sandbox_state"]["command_execution_times"]) == 2
    assert "NameError" in said(await rollout(env, *python("x")))[0]


@pytest.mark.rule("B-029")
async def test_code_out_of_time_is_told_to_the_model(provider: Provider) -> None:
    """The variables live on if the code lets itself be interrupted; else it is said that they are gone."""
    env = interpreter(provider, timeout_per_command_seconds=1.5)
    stubborn = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)"
    cells = ["import time\nx = 1", "print('part')\ntime.sleep(600)", "x", stubborn, "x"]
    answers = said(await rollout(env, *python(*cells)))
    assert answers[1].startswith("Error: Command timed out after 1.5s\npart") and answers[2].startswith("Out[")
    assert answers[3].startswith("Error: Command timed out after 1.5s") and "are gone" in answers[3]
    assert "NameError" in answers[4]


@pytest.mark.rule("B-030")
async def test_code_that_ends_the_interpreter_is_told_to_the_model(provider: Provider) -> None:
    """It is the code's doing: the model reads how, and goes on with a new one. sys.exit() ends nothing."""
    leaving = "import os, sys\nprint('last')\nsys.stdout.flush()\nos._exit(3)"
    replies = python(leaving, "1 + 1", "import sys\nsys.exit(2)", "2")
    answers = said(await rollout(interpreter(provider), *replies))
    assert answers[0].startswith("last\nError: the Python interpreter ended with exit code 3\n")
    assert "are gone" in answers[0] and answers[1] == "Out[1]: 2"
    assert "SystemExit" in answers[2] and answers[3] == "Out[3]: 2"


@pytest.mark.rule("B-031")
async def test_an_interpreter_that_is_gone_by_itself_fails_the_rollout(provider: Provider) -> None:
    """Dead between two pieces of code: PythonWorkerDeadError, since nobody knows what the variables should be."""

    class Fragile(vf.PythonEnv):
        async def env_response(self, messages: Any, state: vf.State, **kwargs: Any) -> Any:
            if state["python_state"]["execution_count"] == 1:
                for command in ("kill -9 -1; true", "true", "true", "true"):  # the news of it comes between two others
                    await self.sandbox_client.execute_command(state["sandbox_id"], command)
            return await super().env_response(messages, state, **kwargs)

    state = await rollout(interpreter(provider, Fragile), *python("x = 1", "x"))
    assert isinstance(state["error"], vf.PythonWorkerDeadError), state["error"]
    assert said(state) == ["(no output)"]


@pytest.mark.rule("B-032")
async def test_an_interpreter_that_does_not_start_fails_the_rollout(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PythonWorkerNotReadyError, without a reward."""

    async def late(self: Sandbox, **_: Any) -> Interpreter:
        raise TimeoutError

    monkeypatch.setattr("verifiers.sandboxes.sandbox.Sandbox.interpreter", late)
    record = await evaluate_one(interpreter(provider), *python("1"))
    assert record["reward"] is None and record["error"]["error"] == "PythonWorkerNotReadyError"


@pytest.mark.rule("B-033")
async def test_the_packages_of_this_python_are_there(provider: Provider) -> None:
    """The default ones can be imported without a network; what is missing ends the run and is named."""
    env = interpreter(provider, pip_install_packages="numpy sympy scipy", memory_gb=1, timeout_per_command_seconds=60)
    code = "import numpy, scipy.linalg, sympy\nint(numpy.arange(4).sum()), str(sympy.sqrt(8))"
    assert said(await rollout(env, *python(code))) == ["Out[1]: (6, '2*sqrt(2)')"]
    lacking = interpreter(provider, pip_install_packages="numpy 'no-such-package>=2' sympy<0.1")
    record = await evaluate_one(lacking, "no tool is called")
    assert record["reward"] is None and record["error"]["error"] == "SandboxUnsupportedError"
    assert "no no-such-package>=2, sympy<0.1" in record["error"]["message"]


@pytest.mark.rule("B-034")
async def test_environments_run_code_of_their_own(provider: Provider) -> None:
    """python() is called from setup_state and from tools that take its place, as published environments do."""

    class Loaded(vf.PythonEnv):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.remove_tool(self.python)
            self.add_tool(self.execute, args_to_skip=["sandbox_id", "sandbox_state", "python_state", "state"])

        async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
            state = await super().setup_state(state, **kwargs)
            await self.python("given = 5", state["sandbox_id"], state["sandbox_state"], state["python_state"])
            return state

        def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
            names = ("sandbox_id", "sandbox_state", "python_state")
            return {**tool_args, **{name: state[name] for name in names}, "state": state}

        async def execute(
            self, code: str, sandbox_id: str, sandbox_state: Any, python_state: Any, state: Any, limit: int = 3
        ) -> str:
            """Run code."""
            output = await self.python(
                code=code, sandbox_id=sandbox_id, sandbox_state=sandbox_state, python_state=python_state
            )
            return f"{state['answer']}: {output}"

    state = await rollout(interpreter(provider, Loaded), calling(("execute", {"code": "given + 1"})), "done")
    assert said(state) == ["a0: Out[2]: 6"]
