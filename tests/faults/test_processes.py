"""What happens to the command itself: signals, closed streams, a full disk, threads and streams of author code.

For each: it ends, with the right exit code, and what was finished is saved and is what the figures are of.
"""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import time

import pytest

from tests.support.command import PATIENCE, settled
from tests.support.mock_openai import MockOpenAI, hang, slow

pytestmark = pytest.mark.slow  # each starts a process or two


@pytest.fixture(autouse=True)
def hearing_hangups():
    """A process that ignores SIGHUP, as under nohup, hands that on to those it starts; these tests send it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def endpoint(seconds: float = 0.0) -> MockOpenAI:
    """Answers with the question, after a while."""
    return MockOpenAI(lambda request: slow(request.json["messages"][-1]["content"], seconds), models=["m"])


TIDY = """
class Tidy(vf.SingleTurnEnv):
    @vf.cleanup
    async def tidy(self, state):
        with open("cleaned.txt", "a") as file:
            file.write("x")


def load_environment():
    return Tidy(eval_dataset=ROWS, rubric=vf.Rubric(funcs=[right]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_saves_cleans_up_and_names_the_command_that_continues(command, number):
    """Exit 130; everything sealed is kept; what was in flight is cleaned up; resumed, the run is complete."""
    command.add("tidy", TIDY)
    flags = ("-n", 24, "-c", 3)
    with endpoint(0.2) as server:
        process = command.start(*command.line("tidy", server, *flags))
        folder = command.wait_for_records(4)
        process.send_signal(number)
        ended = command.end(process)
        saved = (folder / "results.jsonl").read_bytes()
        assert ended.code == 130 and "--resume" in ended.err
        assert 4 <= saved.count(b"\n") < 24
        cleaned = (command.folder / "cleaned.txt").read_text()
        assert saved.count(b"\n") <= len(cleaned) <= len(server.requests)
        resumed = command.run("tidy", server, *flags, "--resume", folder)
    assert resumed.code == 0, resumed.err
    assert {record["reward"] for record in settled(folder, 24)} == {1.0}
    assert (folder / "results.jsonl").read_bytes().startswith(saved)


def test_a_closed_terminal_saves_and_cleans_up(command):
    """The terminal goes away in the middle of a live display: nobody can be told, and nothing is lost."""
    command.add("tidy", TIDY)
    with endpoint(0.2) as server:
        line = command.line("tidy", server, "-n", 24, "-c", 3)
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(command.folder)
            os.execve(line[0], line, {**command.variables, "TERM": "xterm"})  # noqa: S606
        folder = command.wait_for_records(4)
        os.close(terminal)
        end = time.monotonic() + PATIENCE
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            assert time.monotonic() < end, os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
    saved = (folder / "results.jsonl").read_text().splitlines()
    assert 4 <= len(saved) < 24 and all(json.loads(line)["reward"] == 1.0 for line in saved)
    assert len((command.folder / "cleaned.txt").read_text()) >= len(saved)
    assert json.loads((folder / "summary.json").read_text())["counts"]["ok"] == len(saved)


def test_nohup_outlives_the_terminal(command):
    """A command that was told to ignore SIGHUP goes on."""
    with endpoint(0.1) as server:
        line = command.line("toy", server, "-n", 12, "-c", 2)
        process = command.start("bash", "-c", 'trap "" HUP; exec "$@"', "-", *line)
        command.wait_for_records(2)
        process.send_signal(signal.SIGHUP)
        ended = command.end(process)
    assert ended.code == 0, ended.err
    settled(ended.folder, 12)


def test_the_second_signal_ends_a_command_whose_request_hangs(command):
    """A request that hangs and a cleanup that hangs, too: two Ctrl-C and the command is gone."""
    command.add(
        "stuck",
        "class Stuck(vf.SingleTurnEnv):\n"
        "    @vf.cleanup\n"
        "    async def hang(self, state):\n"
        "        print('cleaning', file=sys.stderr, flush=True)\n"
        "        await asyncio.sleep(3600)\n\n\n"
        "def load_environment():\n"
        "    return Stuck(eval_dataset=ROWS, rubric=vf.Rubric(funcs=[right]))\n",
    )
    with MockOpenAI(hang(), models=["m"]) as server:
        process = command.start(*command.line("stuck", server, "-n", 2))
        while not server.requests:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert any("cleaning" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        assert command.end(process).code == 130


# --- streams --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_streams_that_take_nothing_cost_nothing(command, closed):
    """Without a stdout (or any stream) the run is played, and no stray text gets into its files."""
    with endpoint() as server:
        ended = command.run("toy", server, "-n", 3, shell=f'exec "$@" {closed}')
    assert ended.code == 0, ended.err
    assert {record["reward"] for record in settled(ended.folder, 3)} == {1.0}


def test_figures_that_find_no_place_are_an_error(command):
    """stdout on a full disk: the run is saved, and the command does not pretend to have printed."""
    with endpoint() as server:
        ended = command.run("toy", server, "-n", 3, shell='exec "$@" >/dev/full')
    assert ended.code == 1 and "can not write to stdout: No space left on device" in ended.err
    assert "Traceback" not in ended.err
    settled(ended.folder, 3)


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["plain", "json"])
def test_a_reader_that_goes_away_ends_no_run(command, flags):
    """`vf-eval | head -1`: the run is finished and saved all the same."""
    with endpoint(0.01) as server:
        ended = command.run("toy", server, "-n", 60, "-c", 2, *flags, shell='"$@" | head -1; exit ${PIPESTATUS[0]}')
    assert ended.code == 0, ended.err
    settled(ended.folder, 60)
    assert "BrokenPipe" not in ended.err and "Traceback" not in ended.err


CLOSING = """
def close(completion):
    {code}
    return 1.0


def load_environment():
    return vf.SingleTurnEnv(eval_dataset=ROWS, rubric=vf.Rubric(funcs=[close]))
"""


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["plain", "json"])
@pytest.mark.parametrize(
    "code",
    ["sys.stdout.close()", "sys.stdout.close(); sys.stderr.close()", "sys.stdout = sys.stderr = None"],
    ids=["stdout", "both", "none"],
)
def test_author_code_that_closes_the_streams_silences_nobody(command, flags, code):
    """`sys.stdout.close()` in a reward function, or None in its place: the figures are still printed."""
    command.add("closing", CLOSING.format(code=code))
    with endpoint() as server:
        ended = command.run("closing", server, "-n", 3, *flags)
    assert ended.code == 0, ended.err
    settled(ended.folder, 3)
    if flags:
        assert json.loads(ended.out.splitlines()[-1])["counts"]["ok"] == 3
    else:
        assert "3 ok" in ended.out


# --- the disk -------------------------------------------------------------------------------------------------


def can_mount() -> bool:
    """Whether a file system of our own may be mounted, in a name space of our own."""
    tried = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/mnt"]
    return shutil.which("unshare") is not None and subprocess.run(tried, capture_output=True).returncode == 0


@pytest.mark.skipif(not can_mount(), reason="needs a user name space in which tmpfs can be mounted")
def test_a_full_disk_ends_the_run_with_what_fits(command):
    """A real file system of 64 kB: the run stops with the reason, and its lines are whole."""
    (command.folder / "outputs").mkdir()
    shell = (
        "mount -t tmpfs -o size=64k tmpfs outputs && { \"$@\"; code=$?; cp -r outputs kept; exit $code; }"
    )
    with endpoint() as server:
        line = command.line("toy", server, "-n", 300)
        ended = command.end(command.start("unshare", "-rm", "bash", "-c", shell, "-", *line))
    assert ended.code == 1, ended.err
    assert "No space left" in ended.err and "--resume" in ended.err and "Traceback" not in ended.err
    (results,) = command.folder.glob("kept/**/results.jsonl")
    records = [json.loads(text) for text in results.read_text().splitlines()]
    assert 0 < len(records) < 300 and {record["reward"] for record in records} == {1.0}


# --- what author code leaves behind ---------------------------------------------------------------------------

LEFT = {
    "a thread": "threading.Thread(target=time.sleep, args=(3600,), name='lingering').start()",
    "a call in the loop's threads": "asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)",
    "a process": "multiprocessing.get_context('fork').Process(target=time.sleep, args=(3600,)).start()",
    "a pool of processes": "state['kept'] = POOL.submit(time.sleep, 3600)",
    "a task": "state['kept'] = asyncio.ensure_future(never_ends())",
}

LEAVING = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

POOL = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))


async def never_ends():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass


async def leave(completion, state):
    {left}
    return 1.0


def load_environment():
    return vf.SingleTurnEnv(eval_dataset=ROWS, rubric=vf.Rubric(funcs=[leave]))
"""


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
@pytest.mark.parametrize("flags", [(), ("-w", 2)], ids=["in process", "workers"])
def test_what_author_code_leaves_running_does_not_keep_the_command(command, left, flags):
    """The figures are printed, and the process ends although something in it does not."""
    command.add("leaving", LEAVING.format(left=left))
    with endpoint() as server:
        ended = command.run("leaving", server, "-n", 3, *flags)
    assert ended.code == 0, ended.err
    settled(ended.folder, 3)
    assert "3 ok" in ended.out and "Traceback" not in ended.err
    told = "threads and processes of the environment" in ended.err or "tasks of the environment do not end" in ended.err
    assert told or flags  # a worker that is told to end tells its log only


@pytest.mark.parametrize("flags", [(), ("-w", 2)], ids=["in process", "workers"])
def test_an_environment_that_swallows_its_time_out_is_left_behind(command, flags):
    """`env_response` catches every CancelledError: the rollout times out all the same, with the turn it has."""
    command.add(
        "swallowing",
        "class Swallow(vf.MultiTurnEnv):\n"
        "    async def env_response(self, messages, state, **kwargs):\n"
        "        while True:\n"
        "            try:\n"
        "                await asyncio.sleep(3600)\n"
        "            except asyncio.CancelledError:\n"
        "                pass\n\n\n"
        "def load_environment():\n"
        "    return Swallow(eval_dataset=ROWS, rubric=vf.Rubric(funcs=[right]), max_turns=3)\n",
    )
    with endpoint() as server:
        ended = command.run("swallowing", server, "-n", 3, "--timeout", 1, *flags)
    assert ended.code == 0, ended.err
    assert {record["stop_condition"] for record in settled(ended.folder, 3)} == {"timeout_reached"}
    assert "goes on after its time-out" in ended.err
