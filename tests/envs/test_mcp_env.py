"""`MCPEnv` against real server processes: tools, results, deaths, endings."""

import asyncio
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import verifiers as vf
from tests.support.mock_openai import MockOpenAI, tool_turn
from verifiers.cli import eval as command
from verifiers.clients.scripted import ScriptedClient
from verifiers.envs.experimental.mcp_env import MCPEnv, MCPServerConfig
from verifiers.envs.registry import teardown
from verifiers.tools import mcp_session

SERVER = str(Path(__file__).parents[1] / "support" / "mcp_server.py")


def config(name="tests", *args, **fields):
    return {"name": name, "command": sys.executable, "args": [SERVER, *args], **fields}


def calls(*tool_calls):
    """A reply that calls tools, each given as (name, arguments)."""
    listed = [
        {"id": f"call_{i}", "name": name, "arguments": json.dumps(arguments)}
        for i, (name, arguments) in enumerate(tool_calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": listed}


def model(*tool_calls):
    """A model that calls tools once and then tells what the last one said."""

    def reply(prompt, *_args, **_kwargs):
        if prompt[-1]["role"] != "tool":
            return calls(*tool_calls)
        content = prompt[-1]["content"]
        return content if isinstance(content, str) else json.dumps(content)

    return ScriptedClient(reply)


def right(completion, answer):
    return float(completion[-1]["content"] == answer)


@pytest.fixture
async def make():
    """Environments around servers, torn down at the end; no process and no thread may be left."""
    made, before = [], set(threading.enumerate())

    def environment(*servers, n=1, answer="3", **kwargs):
        rows = [{"question": f"q{i}", "answer": answer} for i in range(n)]
        rubric = vf.Rubric(funcs=[right])
        env = MCPEnv(mcp_servers=list(servers) or [config()], dataset=rows, rubric=rubric, **kwargs)
        made.append(env)
        return env

    yield environment
    for env in made:
        await teardown(env)
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "mcp"]


async def say(env, *tool_calls):
    """The tool messages of one rollout that makes these calls."""
    state = await env.rollout(env.get_dataset()[0], model(*tool_calls), "scripted")
    if state["error"]:
        raise state["error"]
    return [message["content"] for message in state["completion"] if message["role"] == "tool"]


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_rollout_calls_the_tools_of_a_server(make) -> None:
    """Tools appear with the server's schemas, their texts reach the model, and calls are counted."""
    env = make()
    assert env.tool_defs == []  # nothing is started before the first rollout
    results = await env.evaluate(model(("add", {"a": 1, "b": 2})), "scripted")
    output = results["outputs"][0]
    assert (
        output["reward"] == 1.0
        and output["metrics"]["add_calls"] == 1
        and output["metrics"]["pid_calls"] == 0
    )
    add = next(tool for tool in env.tool_defs if tool.name == "add")
    assert add.description == "Add two numbers." and add.parameters["required"] == ["a"]
    assert env.mcp_tools["add"].offer.server == "tests"


async def test_all_rollouts_share_one_process(make) -> None:
    """A hundred concurrent rollouts are served by one process, started once, which ends with the teardown."""
    env = make(n=100, answer="?")
    results = await env.evaluate(model(("pid", {})), "scripted", max_concurrent=100)
    said = {output["completion"][-1]["content"] for output in results["outputs"]}
    assert len(said) == 1
    await teardown(env)
    assert not is_alive(int(said.pop()))


def test_runs_on_different_loops_share_the_connection() -> None:
    """Two runs, each with an event loop of its own, reach the same process."""
    env = MCPEnv(
        mcp_servers=[config()], dataset=[{"question": "q", "answer": "?"}], rubric=vf.Rubric(funcs=[right])
    )
    try:
        said = [
            env.evaluate_sync(model(("pid", {})), "scripted")["outputs"][0]["completion"][-1]["content"]
            for _ in range(2)
        ]
        assert said[0] == said[1]
    finally:
        asyncio.run(teardown(env))


async def test_results_become_content(make) -> None:
    """Texts are joined, a picture becomes an image part, and an empty result says so."""
    text, parts, nothing = await say(make(), ("variable", {"name": "HOME"}), ("picture", {}), ("nothing", {}))
    assert text == os.environ["HOME"]
    assert parts[0] == {"type": "text", "text": "a pixel"}
    assert parts[1]["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert nothing == "No result returned from tool"


async def test_errors_are_for_the_model(make) -> None:
    """What the server reports, bad arguments and unknown tools are told to the model, and the rollout goes on."""
    raised, misfit, unknown = await say(make(), ("fails", {}), ("add", {"a": "x"}), ("nope", {}))
    assert "Error executing tool fails" in raised
    assert "integer" in misfit
    assert unknown.startswith("Error: Tool 'nope' not found") and "add" in unknown


async def test_a_slow_call_is_told_and_the_server_serves_on(make) -> None:
    """A call beyond `tool_timeout` ends as a tool message; the connection stays."""
    env = make(tool_timeout=3)
    slow, before, after = await say(env, ("wait", {"seconds": 60}), ("pid", {}), ("pid", {}))
    assert slow == "The tool 'wait' did not finish within 3 seconds."
    assert before == after


async def test_variables_reach_the_server(make) -> None:
    """`env` sets variables of the server's process; ours do not leak into it."""
    env = make(config(env={"MARK": "set"}))
    assert await say(env, ("variable", {"name": "MARK"}), ("variable", {"name": "PYTHONPATH"})) == [
        "set",
        "unset",
    ]


async def test_tools_of_one_name_are_told_apart(make) -> None:
    """Where two servers offer one name, the server's name stands before it, and each call goes to its server."""

    def add(a: int) -> str:
        return "our own"

    env = make(config("one"), config("two", "tools", "only.here"), tools=[add])
    first, second, own, only = await say(
        env, ("one__pid", {}), ("two__pid", {}), ("add", {"a": 1}), ("only_here", {})
    )
    assert first != second and own == "our own" and only == f"only.here of {second}"
    assert {"one__add", "two__add", "add"} <= {tool.name for tool in env.tool_defs}


def test_what_is_no_server_is_refused() -> None:
    """Two servers of one name, or one with neither command nor address, are configuration errors."""
    rows = [{"question": "q"}]
    with pytest.raises(vf.ConfigError, match="one name"):
        MCPEnv(mcp_servers=[config("a"), config("a")], dataset=rows)
    with pytest.raises(vf.ConfigError, match="command or a url"):
        MCPEnv(mcp_servers=[{"name": "a"}], dataset=rows)
    with pytest.raises(vf.ConfigError, match="command or a url"):
        MCPServerConfig("a", command="x", url="http://localhost/mcp")


@pytest.mark.parametrize(
    ("command", "args", "seconds", "reason"),
    [
        ("/nowhere/server", [], 60, "No such file"),
        (sys.executable, ["-c", "import sys; sys.exit('no licence')"], 60, "no licence"),
        (sys.executable, ["-c", "import time; time.sleep(60)"], 1.5, "no answer within 1.5 s"),
    ],
)
async def test_a_server_that_does_not_start_ends_the_run(make, command, args, seconds, reason) -> None:
    """The error names server, command and reason, with what the process said; nothing is played."""
    env = make({"name": "broken", "command": command, "args": args}, n=20, connect_timeout=seconds)
    with pytest.raises(vf.ToolServerStartError, match="broken") as caught:
        await env.evaluate(model(("add", {"a": 1})), "scripted", max_retries=3)
    assert reason in str(caught.value) and command in str(caught.value)


async def test_a_server_killed_in_a_call_fails_that_rollout(make, tmp_path) -> None:
    """SIGKILL in mid-call: the rollout fails with ToolServerError and no reward; the next ones find a new process."""
    env = make(n=3, answer="alive")
    results = await env.evaluate(
        model(("dies", {"mark": str(tmp_path / "mark")})), "scripted", max_concurrent=1
    )
    first, *others = results["outputs"]
    assert first["error"]["error"] == "ToolServerError" and first["reward"] is None
    assert "'tests' ended during a call of 'dies'" in first["error"]["message"]
    assert [output["reward"] for output in others] == [1.0, 1.0]


async def test_retries_play_again_what_a_dead_server_cost(make, tmp_path) -> None:
    """With retries, a server that is killed in the middle of a concurrent run costs no rollout."""
    env = make(n=24, answer="alive")
    mark = {"mark": str(tmp_path / "mark")}
    results = await env.evaluate(
        model(("wait", {"seconds": 0.05}), ("dies", mark)), "scripted", max_concurrent=8, max_retries=2
    )
    assert [output["reward"] for output in results["outputs"]] == [1.0] * 24


async def test_a_server_that_died_idle_is_started_again(make) -> None:
    """Killed between rollouts, the server is back for the next one."""
    env = make(n=1, answer="?")
    (pid,) = await say(env, ("pid", {}))
    os.kill(int(pid), signal.SIGKILL)
    results = await env.evaluate(model(("pid", {})), "scripted", max_retries=2)
    (output,) = results["outputs"]
    assert output["error"] is None and output["completion"][-1]["content"] != pid


@pytest.mark.slow
async def test_a_server_that_hangs_is_replaced(make, monkeypatch) -> None:
    """A stopped process answers nothing: its call is told to be too slow, and then it is killed and started again."""
    monkeypatch.setattr(mcp_session, "ALIVE_SECONDS", 1.0)
    env = make(tool_timeout=3)
    (stopped,) = await say(env, ("pid", {}))
    os.kill(int(stopped), signal.SIGSTOP)
    said = "did not finish"
    while "did not finish" in said:  # and the call that meets its end is played again
        results = await env.evaluate(model(("pid", {})), "scripted", max_retries=3)
        said = results["outputs"][0]["completion"][-1]["content"]
    assert said.isdecimal() and said != stopped
    await teardown(env)
    assert not is_alive(int(stopped))


async def test_a_cancelled_run_leaves_no_process(make) -> None:
    """Cancelling the run in the middle of a call and tearing down ends the server."""
    env = make()
    (pid,) = await say(env, ("pid", {}))
    run = asyncio.ensure_future(env.evaluate(model(("wait", {"seconds": 60})), "scripted"))
    await asyncio.sleep(0.3)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await teardown(env)
    assert not is_alive(int(pid))


@pytest.mark.slow
def test_a_script_without_teardown_leaves_no_process(tmp_path) -> None:
    """The end of the program ends the servers, whether the environment is still there or not."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, verifiers as vf\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from test_mcp_env import config, model, right\n"
        "def run():\n"
        "    env = vf.MCPEnv(mcp_servers=[config()], dataset=[{'question': 'q', 'answer': '?'}])\n"
        "    output = env.evaluate_sync(model(('pid', {})), 'scripted')['outputs'][0]\n"
        "    print(output['completion'][-1]['content'])\n"
        "    return env if sys.argv[2] == 'kept' else None\n"
        "kept = run()\n"
    )
    for how in ("kept", "dropped"):
        command = [sys.executable, str(script), str(Path(__file__).parent), how]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        pid = int(done.stdout)
        for _ in range(100):
            if not is_alive(pid):
                break
            threading.Event().wait(0.1)
        assert not is_alive(pid) and "Traceback" not in done.stderr


async def test_streamable_http(make) -> None:
    """A server at a URL serves tools; its restart is survived, its absence is a start error."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/mcp"
    with pytest.raises(vf.ToolServerStartError, match=url):
        await say(make({"name": "web", "url": url}, connect_timeout=20), ("pid", {}))
    env = make({"name": "web", "url": url, "headers": {"X-Key": "k"}})
    said = []
    for _ in range(2):
        process = await serve(port)
        try:
            results = await env.evaluate(model(("pid", {})), "scripted", max_retries=2)
            said.append(results["outputs"][0]["completion"][-1]["content"])
            assert said[-1] == str(process.pid)
        finally:
            process.kill()
            process.wait()


async def serve(port):
    process = subprocess.Popen([sys.executable, SERVER, "http", str(port)], stderr=subprocess.DEVNULL)
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            await asyncio.sleep(0.1)
        else:
            return process
    raise AssertionError("the server did not start")


def test_without_the_extra_the_error_names_it(monkeypatch) -> None:
    """Without the SDK the class is there, and making an environment says what to install."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "mcp" else found(name, *rest)
    )
    with pytest.raises(vf.MissingExtraError) as caught:
        vf.MCPEnv(mcp_servers=[config()], dataset=[{"question": "q"}])
    assert "pip install 'verifiers[mcp]>=1'" in caught.value.hint


def test_vf_eval_plays_it(tmp_path, monkeypatch) -> None:
    """`vf-eval` loads such an environment from a folder, plays it and saves the tool messages."""
    folder = tmp_path / "environments" / "shelf"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("[project]\nname = 'shelf'\nversion = '0.1.0'\n")
    (folder / "shelf.py").write_text(
        "import verifiers as vf\n"
        "def load_environment():\n"
        "    rows = [{'question': 'What is 1 + 2?', 'answer': '3'}]\n"
        "    right = lambda completion, answer: float(completion[-1]['content'] == answer)\n"
        f"    return vf.MCPEnv(mcp_servers=[{config()!r}], dataset=rows, rubric=vf.Rubric(funcs=[right]))\n"
    )
    monkeypatch.chdir(tmp_path)
    with MockOpenAI(tool_turn("add", '{"a": 1, "b": 2}'), "3") as server:
        assert command.run(["shelf", "-m", "m", "-b", server.base_url, "-n", "1", "-r", "1"]) == 0
    (saved,) = tmp_path.glob("**/results.jsonl")
    record = json.loads(saved.read_text())
    assert record["reward"] == 1.0 and record["completion"][1]["content"] == "3"
    assert server.requests[0].json["tools"][0]["function"]["name"] == "add"
