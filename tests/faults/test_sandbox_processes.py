"""A run whose rollouts use sandboxes, and which is stopped: nothing of a sandbox outlives it.

In the command's own process and in a worker; by Ctrl-C and by kill -9.
"""

from __future__ import annotations

import json
import signal
import time
import uuid
from pathlib import Path

import pytest

from tests.support.command import PATIENCE, settled
from tests.support.mock_openai import MockOpenAI, chat, tool_turn
from tests.support.namespaces import need_namespaces

pytestmark = pytest.mark.slow  # each starts a process or two


@pytest.fixture(autouse=True)
def namespaces():
    """What these tests stop is isolated by namespaces."""
    need_namespaces()


SHELL = """
class Shell(vf.SandboxEnv):
    async def post_rollout(self, state):
        result = await self.sandbox_client.execute_command(state["sandbox_id"], "cat made")
        state["made"] = result.stdout.strip()


def made(state, answer):
    return float(state["made"] == answer)


def load_environment():
    return Shell(eval_dataset=ROWS, rubric=vf.Rubric(funcs=[made]), timeout_per_command_seconds=600, memory_gb=0.25)
"""


def bash(command):
    """A reply that runs a command."""
    return tool_turn("bash", json.dumps({"command": command}))


def marked(mark):
    """How many processes of this machine have this word among their arguments."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += mark.encode() in path.read_bytes()
        except OSError:
            continue
    return found


def wait_until(holds):
    """Wait for something that other processes do."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("flags", [(), ("-w", 1)], ids=["own-process", "worker"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_no_sandbox_outlives_a_run_that_is_stopped(command, number, flags):
    """However it is stopped, the commands that its rollouts were running are gone, and the run can be continued."""
    command.add("shell", SHELL)
    mark = f"mark-{uuid.uuid4().hex}"
    with MockOpenAI(bash(f"sleep 600 & sleep 600; : {mark}"), models=["m"]) as server:
        process = command.start(*command.line("shell", server, "-n", 3, *flags))
        wait_until(lambda: marked(mark) >= 3 or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        process.send_signal(number)
        ended = command.end(process)
    if number == signal.SIGINT:
        assert ended.code == 130 and not marked(mark), ended.err
    wait_until(lambda: not marked(mark))


def test_rollouts_of_workers_have_sandboxes(command):
    """Each rollout of each worker makes a file in its own, and is scored by it."""
    command.add("shell", SHELL)

    def reply(request):
        messages = request.json["messages"]
        return chat("done") if messages[-1]["role"] == "tool" else bash(f"echo {messages[-1]['content']} > made")

    with MockOpenAI(reply, models=["m"]) as server:
        ended = command.run("shell", server, "-n", 6, "-w", 2)
    assert ended.code == 0, ended.err
    records = settled(ended.folder, 6)
    assert [record["reward"] for record in records] == [1.0] * 6
    assert {record["sandbox_info"]["isolation"] for record in records} == {"namespace"}
