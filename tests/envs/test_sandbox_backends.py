"""Environments with sandboxes over every provider: what a rollout does there is the same."""

import json

import pytest

import verifiers as vf
from tests.support.sandbox_providers import PROVIDERS
from verifiers.clients.scripted import ScriptedClient


@pytest.fixture(params=[pytest.param(name, marks=() if name == "node" else pytest.mark.slow) for name in PROVIDERS])
async def provider(request, tmp_path):
    """Each provider in turn; those that this machine cannot give are skipped by name."""
    async with PROVIDERS[request.param](tmp_path / "provider") as provider:
        try:
            await provider.capabilities()
        except vf.SandboxUnsupportedError as error:
            pytest.skip(str(error))
        yield provider


def call(tool, **arguments):
    calls = [{"id": "1", "name": tool, "arguments": json.dumps(arguments)}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


async def play(env, *replies):
    results = await env.evaluate(ScriptedClient([*replies, "done"]), "m")
    (record,) = results["outputs"]
    assert record["error"] is None, record["error"]
    return record, [message["content"] for message in record["completion"] if message["role"] == "tool"]


class Looking(vf.SandboxEnv):
    """Puts a file in before, takes one out after."""

    async def prepare_sandbox(self, sandbox, state):
        await sandbox.write("/workspace/given", b"given")

    async def post_rollout(self, state):
        client, sandbox_id = self.sandbox_client, state["sandbox_id"]
        await client.upload_bytes(sandbox_id, "/workspace/more", b"more")
        job = await client.start_background_job(sandbox_id, "cat made more")
        while not (status := await client.get_background_job(sandbox_id, job)).completed:
            await client.execute_command(sandbox_id, "true")
        state["seen"] = status.stdout


async def test_a_shell_over_every_provider(provider):
    """Prepared, used, looked at and deleted; out of time is told to the model."""
    options = {"dataset": [{"question": "q", "answer": "a"}], "memory_gb": 0.25, "timeout_per_command_seconds": 2}
    reward = vf.Rubric(funcs=[lambda state: float(state["seen"] == "givenmore")])
    env = Looking(provider=provider, rubric=reward, docker_image="host", **options)
    commands = ["cat given | tee made; echo err >&2", "sleep 60", "pwd"]
    record, said = await play(env, *(call("bash", command=command) for command in commands))
    assert said[:2] == ["given\nstderr:\nerr", "Error: Command timed out after 2s"]
    assert said[2].endswith("/workspace")
    assert record["reward"] == 1.0 and not await provider.list()


async def test_a_python_over_every_provider(provider):
    """Its variables stay, and its end is told."""
    env = vf.PythonEnv(
        dataset=[{"question": "q", "answer": "a"}],
        rubric=vf.Rubric(),
        provider=provider,
        docker_image="host",
        memory_gb=0.25,
        pip_install_packages="",
    )
    _, said = await play(env, call("python", code="x = 20"), call("python", code="x + 1"), call("python", code="1 / 0"))
    assert said[:2] == ["(no output)", "Out[2]: 21"] and "ZeroDivisionError" in said[2]
