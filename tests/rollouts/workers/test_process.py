"""A worker process: it plays, fails, hangs and dies, and the link tells which; it never outlives its parent."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rollouts.workers.workers_support import (
    ECHO,
    alive,
    eventually,
    group_of,
    load_of,
    write_environment,
)
from tests.support.mock_openai import MockOpenAI
from verifiers.errors import (
    ConfigError,
    EnvironmentArgumentError,
    EnvironmentLoadError,
    EnvironmentNotFoundError,
    ProtocolError,
    WorkerDiedError,
)
from verifiers.rollouts.plan import plan_rollouts
from verifiers.rollouts.workers.messages import (
    Cancel,
    Done,
    Failed,
    GetRows,
    LogLevel,
    Ping,
    Play,
    Pong,
    Sealed,
)
from verifiers.rollouts.workers.process import ProcessLink


@pytest.fixture
def endpoint():
    with MockOpenAI(lambda request: request.json["messages"][-1]["content"]) as server:
        yield server


async def rows_of(link, messages):
    await link.send(GetRows(1))
    rows = []
    async for message in messages:
        rows += message.rows
        if message.last:
            break
    return rows


def play(request, rows, repeats=1):
    return Play(request, list(plan_rollouts(rows, repeats)), {str(position): row for position, row in enumerate(rows)})


async def until(messages, *kinds):
    """The messages up to the first of these kinds."""
    seen = []
    async for message in messages:
        seen.append(message)
        if isinstance(message, kinds):
            break
    return seen


async def test_a_worker_loads_gives_its_rows_plays_and_ends(tmp_path, endpoint):
    """One whole life of a worker."""
    link = ProcessLink(load_of(tmp_path, write_environment(tmp_path, "toy", ECHO), endpoint.base_url))
    ready = await link.start()
    assert ready.facts["env_id"] == "toy" and ready.facts["environment"]["digest"].startswith("tree:")
    messages = link.messages()
    rows = await rows_of(link, messages)
    assert [row["answer"] for row in rows] == ["q0", "q1", "q2", "q3"]
    await link.send(play(2, rows, 2))
    seen = await until(messages, Done)
    assert sorted(message.record["reward"] for message in seen if isinstance(message, Sealed)) == [1.0] * 8
    await link.stop(20)
    with pytest.raises(WorkerDiedError, match="exit code 0"):
        await anext(messages)


@pytest.mark.parametrize(
    ("source", "args", "error", "text"),
    [
        ("import nothing_of_this_name", {}, EnvironmentLoadError, "nothing_of_this_name"),
        ("raise RuntimeError('broken here')", {}, EnvironmentLoadError, "broken here"),
        (ECHO.replace("**kwargs", "level=1"), {"levle": 2}, EnvironmentArgumentError, "levle"),
        ("def load_environment():\n    sys.exit(3)", {}, EnvironmentLoadError, "SystemExit"),
    ],
)
async def test_an_error_of_loading_comes_back_as_it_is(tmp_path, source, args, error, text):
    """The caller sees the typed error of the worker, with its hint."""
    link = ProcessLink(load_of(tmp_path, write_environment(tmp_path, "broken", source), env_args=args))
    with pytest.raises(error, match=text) as caught:
        await link.start()
    assert caught.value.hint and not alive(link.pid)


async def test_an_environment_that_is_not_thereis_told_as_such(tmp_path):
    """Also for an interpreter that does not exist."""
    with pytest.raises(EnvironmentNotFoundError):
        await ProcessLink(load_of(tmp_path, "absent-env")).start()
    with pytest.raises(WorkerDiedError, match="can not run"):
        await ProcessLink(load_of(tmp_path, "absent-env"), str(tmp_path / "python")).start()


async def test_a_worker_that_dies_while_loading_says_what_it_said(tmp_path):
    """The last lines of a process that was killed are in the error."""
    source = "print('about to fall', file=sys.stderr, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(WorkerDiedError, match="SIGKILL") as caught:
        await ProcessLink(load_of(tmp_path, write_environment(tmp_path, "falls", source))).start()
    assert caught.value.said == "about to fall"


@pytest.mark.parametrize("ending", ["raise RuntimeError('broken here')", "os._exit(3)", "time.sleep(600)"])
def test_a_worker_that_does_not_load_is_told_on_uvloop_too(tmp_path, ending):
    """Its transports give no socket once they close, and Ray's actors run on it."""
    uvloop = pytest.importorskip("uvloop")
    expected = (EnvironmentLoadError, WorkerDiedError)

    async def start() -> None:
        link = ProcessLink(load_of(tmp_path, write_environment(tmp_path, "toy", ending)), load_seconds=2)
        with pytest.raises(expected):
            await link.start()
        assert not alive(link.pid)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(start())


async def test_loading_has_a_deadline(tmp_path):
    """A worker that never gets ready is ended."""
    link = ProcessLink(load_of(tmp_path, write_environment(tmp_path, "slow", "time.sleep(600)")), load_seconds=3)
    with pytest.raises(WorkerDiedError, match="did not load slow within 3 s"):
        await link.start()
    assert not alive(link.pid)


@pytest.mark.parametrize(
    ("program", "error", "text"),
    [
        ("send(Hello(version='0.0.1'))", ConfigError, r"verifiers 0\.0\.1"),
        ("sock.sendall(b'\\x00\\x00\\x00\\x02no')", ProtocolError, "no message"),
        ("sock.sendall(b'\\xff' * 100)", ProtocolError, "claims"),
    ],
)
async def test_another_version_or_another_program_is_refused(tmp_path, program, error, text):
    """The handshake comes before anything else, and what is no message ends the link."""
    script = tmp_path / "python"
    script.write_text(
        f"#!{sys.executable}\nimport socket, sys, time\nsys.path[:0] = {sys.path!r}\n"
        "from verifiers.rollouts.workers.link import to_frame\n"
        "from verifiers.rollouts.workers.messages import Hello\n"
        "sock = socket.socket(fileno=int(sys.argv[-2]))\nsend = lambda message: sock.sendall(to_frame(message))\n"
        f"{program}\ntime.sleep(60)\n"
    )
    script.chmod(0o755)
    link = ProcessLink(load_of(tmp_path, "toy"), str(script))
    with pytest.raises(error, match=text):
        await link.start()
    assert not alive(link.pid)


async def test_a_killed_worker_ends_its_messages_with_how_it_died(tmp_path, endpoint):
    """What it sealed before arrives first."""
    link = ProcessLink(load_of(tmp_path, write_environment(tmp_path, "toy", ECHO), endpoint.base_url))
    await link.start()
    messages = link.messages()
    rows = await rows_of(link, messages)
    await link.send(play(2, rows[:1]))
    await until(messages, Done)
    os.kill(link.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match=r"process \d+\) was ended by signal 9 \(SIGKILL\)"):
        await anext(messages)
    await link.send(Ping(1))  # to nobody
    await link.kill()


BLOCKS = """
class Blocking(vf.SingleTurnEnv):
    async def setup_state(self, state):
        BLOCK


def load_environment():
    return Blocking(dataset=[{"question": "q"}], rubric=vf.Rubric())
"""


async def test_a_worker_whose_loop_is_blocked_still_answers_and_says_so(tmp_path, endpoint):
    """A busy interpreter is no death: pings are answered beside the event loop."""
    source = BLOCKS.replace("BLOCK", "exec('while True: pass')")
    link = ProcessLink(load_of(tmp_path, write_environment(tmp_path, "busy", source), endpoint.base_url))
    await link.start()
    messages = link.messages()
    rows = await rows_of(link, messages)
    await link.send(play(2, rows))
    blocked = 0.0
    while blocked < 1.0:
        await link.send(Ping(1))
        answer = (await until(messages, Pong))[-1]
        blocked = answer.blocked
        await asyncio.sleep(0.1)
    assert answer.tasks == 1
    await link.kill()
    assert not alive(link.pid)


async def test_code_that_holds_the_interpreter_ends_the_worker_with_its_place(tmp_path, endpoint):
    """Not even the thread that answers pings runs then; the watchdog does."""
    source = BLOCKS.replace("BLOCK", "__import__('re').match('(a+)+$', 'a' * 60 + 'b')")
    name = write_environment(tmp_path, "held", source)
    link = ProcessLink(load_of(tmp_path, name, endpoint.base_url), held_seconds=3)
    await link.start()
    messages = link.messages()
    await link.send(play(2, await rows_of(link, messages)))
    with pytest.raises(WorkerDiedError, match="exit code 1") as caught:
        await until(messages, Done)
    assert "setup_state" in caught.value.said
    await link.kill()


async def test_a_request_is_cancelled_with_its_cleanup(tmp_path):
    """Its Done says so, and cleanup handlers ran before it."""
    source = (
        "class Held(vf.SingleTurnEnv):\n"
        "    async def setup_state(self, state):\n        (HERE / 'began').touch()\n        await asyncio.sleep(60)\n\n"
        "    @vf.cleanup\n    async def release(self, state):\n        (HERE / 'released').touch()\n\n\n"
        "def load_environment():\n    return Held(dataset=[{'question': 'q'}], rubric=vf.Rubric())\n"
    )
    link = ProcessLink(load_of(tmp_path, write_environment(tmp_path, "held", source)))
    await link.start()
    messages = link.messages()
    await link.send(play(2, await rows_of(link, messages)))
    await eventually((tmp_path / "began").exists)
    await link.send(Cancel(2))
    assert await anext(messages) == Done(2, cancelled=True)
    assert (tmp_path / "released").exists()
    await link.stop(20)


async def test_rows_that_json_can_not_carry_are_taken_from_the_workers_own_data(tmp_path, endpoint):
    """Bytes and dates arrive as they are; a row that is not the planned one is refused."""
    source = (
        "import datetime\n\n\ndef kind(raw, day):\n    return float(type(raw) is bytes and day.year == 2024)\n\n\n"
        "def load_environment():\n"
        "    rows = [{'question': 'q', 'raw': b'\\x00', 'day': datetime.date(2024, 1, 1)}]\n"
        "    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[kind]))\n"
    )
    link = ProcessLink(load_of(tmp_path, write_environment(tmp_path, "odd", source), endpoint.base_url))
    await link.start()
    messages = link.messages()
    await link.send(GetRows(1))
    chunk = await anext(messages)
    assert chunk.exact == [False]
    plan = list(plan_rollouts(chunk.rows))
    await link.send(Play(2, plan, {}))
    assert (await until(messages, Sealed))[-1].record["reward"] == 1.0
    await until(messages, Done)
    await link.send(Play(3, plan, {"0": {**chunk.rows[0], "question": "another"}}))
    (failed,) = await until(messages, Failed)
    assert failed.request == 3 and "not the one that was planned" in failed.error["message"]
    await link.stop(20)


async def test_a_large_record_comes_whole(tmp_path):
    """An answer of 20 MB is no problem of the link."""
    with MockOpenAI("x" * 20_000_000) as server:
        link = ProcessLink(load_of(tmp_path, write_environment(tmp_path, "toy", ECHO), server.base_url))
        await link.start()
        messages = link.messages()
        await link.send(play(2, (await rows_of(link, messages))[:1]))
        sealed = (await until(messages, Sealed))[-1]
        assert len(sealed.record["completion"][0]["content"]) == 20_000_000
        await link.stop(20)


async def test_logs_and_prints_of_a_worker_are_in_the_log_of_its_parent(tmp_path, caplog):
    """Log entries keep their logger and level; what is printed is told as the worker's."""
    source = "import logging\nlogging.getLogger('verifiers.toy').warning('look here')\nprint('printed', flush=True)\n"
    name = write_environment(tmp_path, "talks", source + ECHO)
    with caplog.at_level(logging.INFO, logger="verifiers"):
        link = ProcessLink(load_of(tmp_path, name), number=7)
        await link.start()
        await link.send(LogLevel(logging.ERROR))
        await link.stop(20)
    assert ("verifiers.toy", logging.WARNING, "look here") in caplog.record_tuples
    assert any(record.message == "worker 7: printed" for record in caplog.records)


PARENT = """
import asyncio, sys
sys.path[:] = {path!r}
from pathlib import Path
from tests.rollouts.workers.workers_support import load_of
from verifiers.rollouts.workers.process import ProcessLink

async def main():
    link = ProcessLink(load_of(Path({folder!r}), "stays"))
    start = asyncio.create_task(link.start())
    while link.pid is None:
        await asyncio.sleep(0.01)
    print(link.pid, flush=True)
    await start
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("when", ["loading", "ready"])
async def test_a_killed_parent_leaves_no_process(tmp_path, when):
    """SIGKILL of the parent ends its worker and what the worker started, loading or loaded."""
    source = "import subprocess\nsubprocess.Popen(['sleep', '600'])\n(HERE / 'loading').touch()\n"
    source += "time.sleep(600)\n" if when == "loading" else ECHO
    write_environment(tmp_path, "stays", source)
    script = PARENT.format(path=sys.path, folder=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        if when == "ready":
            assert parent.stdout.readline() == "ready\n"
        await eventually((tmp_path / "loading").exists)
        assert len(group_of(worker)) == 2
        parent.kill()
    await eventually(lambda: not group_of(worker))


async def test_ending_a_worker_ends_what_it_started(tmp_path):
    """Also a child that ignores every signal that can be ignored."""
    source = "import subprocess\nsubprocess.Popen(['sh', '-c', 'trap \"\" TERM INT HUP; sleep 600'])\n" + ECHO
    link = ProcessLink(load_of(tmp_path, write_environment(tmp_path, "stays", source)))
    await link.start()
    assert len(group_of(link.pid)) > 1
    await link.stop(20)
    await eventually(lambda: not group_of(link.pid))
    assert group_of(link.pid) == []


def test_the_program_does_not_look_into_the_working_directory(tmp_path, monkeypatch):
    """A file named like a module of ours, where the command is run, is not imported."""
    (tmp_path / "orjson.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)

    async def life():
        link = ProcessLink(load_of(Path(tmp_path / "envs"), "absent-env"))
        with pytest.raises(EnvironmentNotFoundError):
            await link.start()

    asyncio.run(life())
