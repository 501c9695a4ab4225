"""Environments with a sandbox: a shell, its outputs and hooks, and the client that is addressed by ids."""

from __future__ import annotations

import asyncio
import copy
import importlib
import inspect
import pickle
import sys
import types
from typing import Any

import pytest

import verifiers as vf
from conformance_harness import Model, evaluate_one, rollout, rows, texts
from sandbox_harness import Watched, bash, said, shell
from verifiers.envs.sandbox_env import CreateSandboxRequest, SandboxEnv
from verifiers.sandboxes.sandbox import Provider, Sandbox


@pytest.mark.rule("B-001")
def test_the_constructor_takes_what_v0s_takes() -> None:
    """Names, order and defaults of SandboxEnv's parameters are v0's; ours are keywords after them."""
    parameters = list(inspect.signature(SandboxEnv.__init__).parameters.values())[1:]
    given = {item.name: item.default for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD}
    assert given == {
        "sandbox_name": "sandbox-env",
        "docker_image": "python:3.11-slim",
        "start_command": "tail -f /dev/null",
        "cpu_cores": 1,
        "memory_gb": 2,
        "disk_size_gb": 5,
        "gpu_count": 0,
        "timeout_minutes": 60,
        "timeout_per_command_seconds": 30,
        "environment_vars": None,
        "team_id": None,
        "advanced_configs": None,
        "labels": None,
        "max_retries": 5,
        "base_delay": 0.5,
        "backoff_factor": 2.0,
        "max_backoff_seconds": 30.0,
        "jitter": 1e-3,
        "stop_errors": None,
        "sandbox_client_max_workers": None,
        "sandbox_client_max_connections": 100,
        "sandbox_client_max_keepalive_connections": 50,
    }


@pytest.mark.rule("B-002")
def test_the_model_sees_one_tool() -> None:
    """bash(command), described as in v0; what tells it of the sandbox is hidden."""
    env = SandboxEnv(dataset=rows(), rubric=vf.Rubric())
    (tool,) = env.tool_defs
    assert (tool["name"], list(tool["parameters"]["properties"])) == ("bash", ["command"])
    assert tool["description"] == "Execute `command` inside persistent sandbox container."
    assert set(env.skipped_args["bash"]) == {"sandbox_id", "sandbox_state", "working_dir"}


@pytest.mark.rule("B-003")
async def test_the_sandbox_starts_behind_the_first_reply(watched: Watched) -> None:
    """The model is asked while the sandbox is being made; the state has its keys from the beginning."""
    watched.gate.clear()
    env = shell(watched)
    seen = []

    class Hooked(type(env)):  # type: ignore[misc]  # a class made for this one environment
        async def get_model_response(self, state: vf.State, *args: Any, **kwargs: Any) -> Any:
            sandbox_state = copy.deepcopy(state["sandbox_state"])
            seen.append((len(watched.specs), len(watched.made), sandbox_state, state["sandbox_id"]))
            watched.gate.set()
            return await super().get_model_response(state, *args, **kwargs)

    env.__class__ = Hooked
    state = await rollout(env, *bash("echo hi"))
    assert said(state) == ["hi"]
    asked, made, sandbox_state, sandbox_id = seen[0]
    assert (asked <= 1, made) == (True, 0) and sandbox_id == state["sandbox_id"]
    assert sandbox_state == {"ready": False, "ready_wait_time": 0.0, "command_execution_times": []}


@pytest.mark.rule("B-004")
async def test_the_first_command_waits_for_it(provider: Provider) -> None:
    """Then the sandbox is ready, how long it was waited for is known, and each command's time is kept."""
    state = await rollout(shell(provider), *bash("true", "true"))
    assert state["sandbox_state"]["ready"] is True
    assert state["sandbox_state"]["ready_wait_time"] >= 0
    assert len(state["sandbox_state"]["command_execution_times"]) == 2


@pytest.mark.rule("B-005")
@pytest.mark.parametrize(
    ("command", "output"),
    [
        ("printf '\\n  both  \\n'; echo err >&2", "both\nstderr:\nerr"),
        ("echo err >&2; exit 3", "stderr:\nerr"),
        ("true", "(no output)"),
        ("false", "(no output)"),
        ("printf 'a\\n\\nb\\n'", "a\n\nb"),
        ("printf '\\377'", "\ufffd"),
    ],
    ids=["both", "stderr", "nothing", "failing", "lines", "no-utf8"],
)
async def test_output_as_the_model_reads_it(provider: Provider, command: str, output: str) -> None:
    """stdout stripped, stderr in its block, and a word for nothing."""
    assert said(await rollout(shell(provider), *bash(command))) == [output]


@pytest.mark.rule("B-005")
async def test_words_that_no_program_takes_are_the_models_fault(provider: Provider) -> None:
    """An empty command, NUL characters and halves of characters are told to the model: else it could end any rollout
    unscored."""
    state = await rollout(shell(provider), *bash("", "echo \0", "echo \ud800", "echo on"))
    *errors, on = said(state)
    assert on == "on" and all(error.startswith("Error: a command") or "empty" in error for error in errors), errors
    assert state["error"] is None


@pytest.mark.rule("B-006")
async def test_a_command_out_of_time_is_told_to_the_model(provider: Provider) -> None:
    """The text is v0's, the seconds count, what was printed is not lost, and the sandbox goes on."""
    env = shell(provider, timeout_per_command_seconds=1)
    state = await rollout(env, *bash("sleep 60", "echo part; sleep 60", "echo next"))
    timed_out = "Error: Command timed out after 1s"
    assert said(state) == [timed_out, f"{timed_out}\npart", "next"]
    assert state["sandbox_state"]["command_execution_times"][:2] == [1, 1] and state["error"] is None


@pytest.mark.rule("B-007")
async def test_a_failure_of_the_platform_ends_the_rollout(watched: Watched) -> None:
    """A sandbox that dies is a SandboxError, no reward and no tool message; another attempt gets a new one."""

    class Unlucky(SandboxEnv):
        attempts = 0

        async def prepare_sandbox(self, sandbox: Sandbox, state: vf.State) -> None:
            type(self).attempts += 1
            if type(self).attempts == 1:
                await sandbox.delete()

    env = shell(watched, Unlucky, rubric=vf.Rubric(funcs=[lambda completion: 1.0]))
    failed = await evaluate_one(env, *bash("echo hi"))
    assert failed["reward"] is None and failed["error"]["kind"] == "sandbox", failed["error"]
    assert not [message for message in failed["completion"] if message["role"] == "tool"]
    Unlucky.attempts = 0
    model = Model(lambda prompt: "done" if prompt[-1]["role"] == "tool" else bash("echo hi")[0])
    again = await evaluate_one(env, model, max_retries=1)
    assert (again["reward"], len(again["attempts"])) == (1.0, 1)


@pytest.mark.rule("B-008")
async def test_a_request_may_differ_from_task_to_task(watched: Watched) -> None:
    """get_sandbox_request gives a copy; model_copy(update=…), also async, and assignments to it change the sandbox."""

    class Sized(SandboxEnv):
        async def get_sandbox_request(self, state: vf.State) -> CreateSandboxRequest:  # type: ignore[override]
            request = super().get_sandbox_request(state)
            request.docker_image = "host"
            return request.model_copy(update={"memory_gb": 0.5, "labels": [state["answer"]]})

    env = shell(watched, Sized, docker_image="other", environment_vars={"COLOUR": "blue"})
    env.sandbox_request = env.sandbox_request.model_copy(update={"name": "mine"}, deep=True)
    assert said(await rollout(env, *bash("echo $COLOUR"))) == ["blue"]
    (spec,) = watched.specs
    assert (spec.memory, spec.image, spec.cpu, spec.lifetime) == (512, "host", 1, 3600)
    assert {"a0", "name"} <= set(spec.labels) and spec.labels["name"] == "mine"
    assert env.sandbox_request.docker_image == "other" and env.sandbox_request.memory_gb == 0.25


@pytest.mark.rule("B-009")
async def test_post_rollout_sees_the_sandbox_and_rewards_do_not(watched: Watched) -> None:
    """It runs before the deletion and after the completion is made; rewards come after both."""
    order: list[str] = []

    class Checked(SandboxEnv):
        async def post_rollout(self, state: vf.State) -> None:
            order.append(texts(state["completion"])[-1])
            result = await self.sandbox_client.execute_command(state["sandbox_id"], "cat made")
            state["made"] = result.stdout

    async def reward(state: vf.State) -> float:
        order.append("alive" if await watched.made[0].alive() else "gone")
        return float(state["made"] == "x\n")

    record = await evaluate_one(shell(watched, Checked, rubric=vf.Rubric(funcs=[reward])), *bash("echo x > made"))
    assert (record["reward"], order) == (1.0, ["done", "gone"])


@pytest.mark.rule("B-010")
async def test_a_post_rollout_that_fails_is_no_score(provider: Provider) -> None:
    """What could not be looked at is not scored, and the sandbox is gone all the same."""

    class Broken(SandboxEnv):
        async def post_rollout(self, state: vf.State) -> None:
            raise ValueError("no tests")

    env = shell(provider, Broken, rubric=vf.Rubric(funcs=[lambda completion: 1.0]))
    record = await evaluate_one(env, *bash("true"))
    assert record["reward"] is None and "no tests" in record["error"]["message"]
    assert await provider.list() == [] and env.active_sandboxes == set()


@pytest.mark.rule("B-011")
async def test_no_sandbox_outlives_its_rollout(watched: Watched) -> None:
    """Not one that was never used, never came, or belongs to a rollout that failed or was cancelled."""
    env = shell(watched)
    assert (await rollout(env, "hello"))["stop_condition"] == "no_tools_called"

    class Failing(SandboxEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
            await super().setup_state(state, **kwargs)
            raise RuntimeError("setup")

    assert (await rollout(shell(watched, Failing), "hello"))["error"] is not None
    watched.gate.clear()
    begun = asyncio.Event()
    model = Model(lambda prompt: begun.set() or bash("true")[0])
    playing = asyncio.create_task(rollout(env, model))
    await begun.wait()
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    watched.gate.set()
    assert await watched.list() == [] and env.active_sandboxes == set()


@pytest.mark.rule("B-012")
async def test_teardown_deletes_what_is_left(provider: Provider) -> None:
    """An environment that keeps sandboxes beyond a rollout loses them with itself."""

    class Shared(SandboxEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
            if not self.active_sandboxes:
                sandbox = await self.with_retry(self.sandbox_client.create)(self.get_sandbox_request(state))
                self.active_sandboxes.add(sandbox.id)
            state["sandbox_id"] = next(iter(self.active_sandboxes))
            state["sandbox_state"] = {"ready": False, "ready_wait_time": 0.0, "command_execution_times": []}
            return state

        @vf.cleanup
        async def destroy_sandbox(self, state: vf.State) -> None:
            pass

    env = shell(provider, Shared)
    await rollout(env, *bash("echo kept > note"))
    assert said(await rollout(env, *bash("cat note"))) == ["kept"]
    assert len(await provider.list()) == 1
    await env._teardown()
    assert await provider.list() == [] and env.active_sandboxes == set()


@pytest.mark.rule("B-013")
async def test_the_client_is_addressed_by_ids(provider: Provider, tmp_path: Any) -> None:
    """Every method that published environments call, with the arguments they pass."""
    client = shell(provider).sandbox_client
    record = await client.create(CreateSandboxRequest(name="demo", docker_image="host", labels=["one", "two"]))
    assert (record.name, record.status) == ("demo", "PENDING")
    await client.wait_for_creation(record.id, max_attempts=120)
    assert (await client.get(record.id)).status == "RUNNING"
    result = await client.execute_command(
        record.id, "pwd; echo $WHO; echo no >&2; exit 4", working_dir="/tmp", env={"WHO": "me"}, timeout=10
    )
    assert (result.stdout, result.stderr, result.exit_code) == ("/tmp\nme\n", "no\n", 4)
    assert (await client.execute_command(sandbox_id=record.id, command="kill -9 $$")).exit_code == 137
    with pytest.raises(vf.CommandTimeoutError, match=r"timed out after 0\.2s"):
        await client.execute_command(record.id, "sleep 60", timeout=0.2)

    local = tmp_path / "up"
    local.write_bytes(b"\x00file")
    await client.upload_file(record.id, "/workspace/deep/up", str(local))
    await client.upload_bytes(record.id, "/workspace/bytes", b"b" * 300_000, "bytes")
    await client.execute_command(record.id, "cat deep/up bytes > both")
    await client.download_file(record.id, "/workspace/both", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == b"\x00file" + b"b" * 300_000

    command = "cat go; echo out; exit 2"
    job = await client.start_background_job(sandbox_id=record.id, command=command, working_dir="/tmp")
    await client.start_background_job(record.id, "sleep 600")
    while not (status := await client.get_background_job(record.id, job)).completed:
        await client.execute_command(record.id, "sleep 0.01")
    assert (status.exit_code, status.stdout) == (2, "out\n") and "go" in status.stderr

    other = await client.create({"name": "other", "docker_image": "host", "labels": ["two"]})
    await client.bulk_delete(labels=["one"])
    assert [info.labels["name"] for info in await provider.list()] in ([], ["other"])
    await client.delete(other.id)
    await client.delete(other.id)
    with pytest.raises(vf.SandboxError, match="no sandbox"):
        await client.execute_command(other.id, "true")
    assert await provider.list() == []


@pytest.mark.rule("B-014")
async def test_sandbox_metrics_weigh_nothing(provider: Provider) -> None:
    """Both metrics are reported, the mean over the commands, and the reward is the rubric's alone."""
    env = shell(provider, rubric=vf.Rubric(funcs=[lambda completion: 0.5]))
    record = await evaluate_one(env, *bash("true", "true"))
    times = record["sandbox_state"]["command_execution_times"]
    assert record["reward"] == 0.5
    assert record["metrics"]["sandbox_command_execution_time"] == pytest.approx(sum(times) / 2)
    assert record["metrics"]["sandbox_ready_wait_time"] == record["sandbox_state"]["ready_wait_time"]
    assert record["metrics"]["bash_calls"] == 2


@pytest.mark.rule("B-015")
async def test_commands_start_in_the_states_folder(provider: Provider) -> None:
    """state["working_dir"], where it is set, else the sandbox's own folder."""

    class Inside(SandboxEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
            state = await super().setup_state(state, **kwargs)
            state["working_dir"] = "/tmp"
            return state

    assert said(await rollout(shell(provider, Inside), *bash("pwd"))) == ["/tmp"]
    assert said(await rollout(shell(provider), *bash("pwd"))) == ["/workspace"]


@pytest.mark.rule("B-016")
async def test_bash_is_called_by_environments_too(provider: Provider) -> None:
    """By position and by name, with and without the sandbox's state, as all releases allow."""
    outputs = []

    class Own(SandboxEnv):
        async def setup_state(self, state: vf.State, **kwargs: Any) -> vf.State:
            state = await super().setup_state(state, **kwargs)
            sandbox_id, sandbox_state = state["sandbox_id"], state["sandbox_state"]
            await self._wait_for_sandbox_ready(sandbox_state, sandbox_id)
            outputs.append(await self.bash("pwd", sandbox_id, working_dir="/"))
            outputs.append(await self.bash("pwd", sandbox_id, sandbox_state, "/tmp"))
            outputs.append(await self.bash(command="pwd", sandbox_id=sandbox_id, sandbox_state=sandbox_state))
            return state

    await rollout(shell(provider, Own), "done")
    assert outputs == ["/", "/tmp", "/workspace"]


DEEP = {
    "verifiers.envs.sandbox_env": """
        SandboxEnv SandboxState AdvancedConfigs CreateSandboxRequest SandboxCreationError SandboxNotReadyError
        SandboxMonitorRubric CommandTimeoutError
    """,
    "verifiers.envs.python_env": """
        PythonEnv PythonWorkerState PythonMonitorRubric PythonWorkerNotReadyError PythonWorkerRequestError
        PythonWorkerDeadError
    """,
    "verifiers.utils.threaded_sandbox_client": "ThreadedAsyncSandboxClient",
}


@pytest.mark.rule("B-017")
@pytest.mark.parametrize("module", DEEP)
def test_deep_imports_of_sandboxes_resolve(module: str) -> None:
    """The classes, states and errors are where published environments import them from."""
    for name in DEEP[module].split():
        assert hasattr(importlib.import_module(module), name), name
    assert issubclass(vf.PythonEnv, vf.SandboxEnv) and issubclass(vf.SandboxCreationError, vf.SandboxError)


@pytest.mark.rule("B-018")
async def test_a_sandbox_that_cannot_be_made_fails_the_rollout(watched: Watched) -> None:
    """With SandboxCreationError and without a reward, whenever it comes to light; another attempt may succeed."""
    watched.failures = [vf.SandboxCreationError("no room")]
    state = await rollout(shell(watched), *bash("true"))
    assert isinstance(state["error"], vf.SandboxCreationError) and "no room" in str(state["error"])

    class Refusing(SandboxEnv):
        def get_sandbox_request(self, state: vf.State) -> CreateSandboxRequest:
            raise KeyError("image")

    assert isinstance((await rollout(shell(watched, Refusing), "x"))["error"], vf.SandboxCreationError)


@pytest.mark.rule("B-019")
async def test_what_nobody_can_give_ends_the_run(watched: Watched) -> None:
    """A GPU, or an image that is not here: an error that says so, although no tool was called."""
    with pytest.raises(vf.SandboxUnsupportedError, match="GPU"):
        await evaluate_one(shell(watched, gpu_count=1), "x")
    record = await evaluate_one(shell(watched, docker_image="registry.example/no:1"), "x")
    assert record["reward"] is None and "registry.example/no:1" in record["error"]["message"]


@pytest.mark.rule("B-020")
async def test_long_output_loses_its_middle(provider: Provider) -> None:
    """The model sees the beginning and the end and how much is left out; None shows everything."""
    command = "for i in $(seq 1 2000); do echo line $i; done"
    whole = "\n".join(f"line {number}" for number in range(1, 2001))
    (cut,) = said(await rollout(shell(provider, max_output_chars=100), *bash(command)))
    assert cut == f"{whole[:50]}\n[... {len(whole) - 100} characters left out ...]\n{whole[-50:]}"
    assert said(await rollout(shell(provider, max_output_chars=None), *bash(command))) == [whole]


@pytest.mark.rule("B-021")
async def test_a_task_is_prepared_behind_the_first_reply(watched: Watched) -> None:
    """prepare_sandbox has put everything in place when the first command runs; where it fails, the author is named."""

    class Prepared(SandboxEnv):
        async def prepare_sandbox(self, sandbox: Sandbox, state: vf.State) -> None:
            await sandbox.write("/workspace/task", state["answer"].encode())

    assert said(await rollout(shell(watched, Prepared), *bash("cat task"))) == ["a0"]

    class Wrong(SandboxEnv):
        async def prepare_sandbox(self, sandbox: Sandbox, state: vf.State) -> None:
            raise ValueError("no such task")

    record = await evaluate_one(shell(watched, Wrong), *bash("cat task"))
    assert record["reward"] is None and record["error"]["kind"] == "environment"
    assert "no such task" in record["error"]["message"]


@pytest.mark.rule("B-022")
async def test_a_start_command_is_started(provider: Provider) -> None:
    """It runs once in the new sandbox, beside the model's commands, and is not waited for."""
    env = shell(provider, start_command="bash -lc 'echo up > /workspace/up && tail -f /dev/null'")
    state = await rollout(env, *bash("until [ -s up ]; do sleep 0.01; done; cat up"))
    assert said(state) == ["up"]


@pytest.mark.rule("B-023")
async def test_the_record_tells_which_sandbox_it_was(provider: Provider) -> None:
    """Provider, image, isolation, and the times of its start are on the record."""
    record = await evaluate_one(shell(provider, docker_image="python:3.11-slim"), *bash("true"))
    info = record["sandbox_info"]
    assert (info["asked_image"], info["image"]) == ("python:3.11-slim", "host")
    assert info["isolation"] == "namespace" and info["start_s"] > 0 and info["waited_s"] >= 0


@pytest.mark.rule("B-024")
async def test_the_model_is_told_which_limit_it_met(provider: Provider) -> None:
    """A process that was killed for its memory is no silent success."""
    env = shell(provider, timeout_per_command_seconds=20)
    command = "python3 -c 'x = b\"x\" * (1 << 30)'; echo after"
    (told,) = said(await rollout(env, *bash(command)))
    assert "after" in told and ("out of memory" in told or "MemoryError" in told)


@pytest.mark.rule("B-014")
async def test_a_saved_run_is_scored_again_without_a_sandbox(provider: Provider) -> None:
    """What an environment names in record_columns is on its records."""

    class Kept(SandboxEnv):
        record_columns = (*SandboxEnv.record_columns, "made")

        async def post_rollout(self, state: vf.State) -> None:
            state["made"] = [1, 2]

    record = await evaluate_one(shell(provider, Kept), *bash("true"))
    assert record["made"] == [1, 2]


@pytest.mark.rule("B-010")
async def test_a_sandbox_that_broke_is_no_score(provider: Provider) -> None:
    """Also where the environment's own code takes the error for an answer."""

    class Trusting(SandboxEnv):
        async def post_rollout(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> None:
            await super().post_rollout(messages, state, **kwargs)
            await (await self.sandbox_client.sandbox(state["sandbox_id"])).delete()
            try:
                await self.bash("cat reward", state["sandbox_id"], state["sandbox_state"])
            except Exception:
                state["graded"] = texts(messages)

    env = shell(provider, Trusting, rubric=vf.Rubric(funcs=[lambda completion: 1.0]))
    results = await env.evaluate(Model("done").client, "m")
    (record,), (state,) = results["outputs"], results["state"]
    assert record["reward"] is None and record["error"]["kind"] == "sandbox", record["error"]
    assert state["graded"] == ["q0", "done"]


@pytest.mark.rule("B-025")
async def test_environments_with_the_vendors_sdk_recognise_a_time_out(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is imported, its CommandTimeoutError catches ours, which crosses process borders as ours."""
    vendor = types.ModuleType("prime_sandboxes")
    vendor.CommandTimeoutError = type("CommandTimeoutError", (RuntimeError,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "prime_sandboxes", vendor)
    client = shell(provider).sandbox_client
    record = await client.create({"docker_image": "host"})
    with pytest.raises(vendor.CommandTimeoutError) as caught:
        await client.execute_command(record.id, "echo part; sleep 60", timeout=1)
    assert isinstance(caught.value, vf.CommandTimeoutError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is vf.CommandTimeoutError and again.stdout == "part\n"
    await client.close()
