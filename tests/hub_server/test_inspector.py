"""Uploads are looked into by other processes, which hostile source may kill, and which are replaced."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hub_server.inspector import WAITING_FILES, BusyError, Inspector
from tests.support.archives import make_wheel, wheel_name, write_wheel
from tests.support.refused import REFUSED
from verifiers.hub.package.facts import Policy
from verifiers.hub.package.inspect import inspect_file
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.refusal import RefusedError

GENEROUS = Policy(limits=Limits(bomb_bytes=1 << 40, bomb_ratio=1 << 20))


@pytest.fixture
def inspector():
    """A pool with one process, so that what one file does to it is seen by the next."""
    made = Inspector(1)
    yield made
    made.close()


def worker_pids(parent=None):
    """The processes of pools that a process has started."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            of = stat.read_text().rpartition(")")[2].split()[1]
            line = (stat.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(of) == (parent or os.getpid()) and b"package.worker" in line:
            children.append(int(stat.parent.name))
    return children


def until(condition):
    """Wait for what must come; the test's own time limit ends it if it does not."""
    while not (found := condition()):
        time.sleep(0.01)
    return found


def code_of(inspector, path, policy=None):
    with pytest.raises(RefusedError) as caught:
        inspector.inspect(path, wheel_name(), policy or Policy())
    return caught.value.code


def a_pipe(folder):
    """A file that whoever opens it waits for."""
    os.mkfifo(folder / "upload")
    return folder / "upload"


def opened_while_stopped(pipe, pid):
    """The pipe's other end, if the process has come to it; it is stopped, so that it does not find out and go on."""
    os.kill(pid, signal.SIGSTOP)
    try:
        return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:  # nobody reads it yet
        os.kill(pid, signal.SIGCONT)
        return None


# --- the same verdicts --------------------------------------------------------------------------------------------


def test_it_finds_what_a_look_in_this_process_finds(inspector, tmp_path):
    """The facts of a sound file, and each refusal in full."""
    path = write_wheel(tmp_path, files={"demo_env.pth": "x"})
    assert inspector.inspect(path, path.name, Policy()) == inspect_file(path, path.name, Policy())
    stable = [case for case in REFUSED if case.says != "description-content-type"]  # packaging lists a set there
    for number, case in enumerate(stable[::7]):
        other = tmp_path / str(number)
        other.write_bytes(case.data())
        verdicts = []
        for inspect in (inspect_file, inspector.inspect):
            with pytest.raises(RefusedError) as caught:
                inspect(other, case.filename, case.policy)
            verdicts.append(caught.value.to_dict())
        assert verdicts[0] == verdicts[1]


def test_threads_share_the_processes(tmp_path):
    """Each gets its own answer, and no more processes run than the pool has."""
    paths = [write_wheel(tmp_path, f"env-{number}", "1.0") for number in range(8)]
    inspector = Inspector(2)
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda path: inspector.inspect(path, path.name, Policy()).name, paths * 10))
        assert found == [f"env-{number}" for number in range(8)] * 10
        assert len(worker_pids()) == 2
    finally:
        inspector.close()


# --- hostile source -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [f"x = {'-' * 500_000}1\n", "x = a" + ".a" * 400_000 + "\n", "if a:\n    b\n" + "elif a:\n    b\n" * 90_000]
    + ["lambda: " * 300_000 + "1\n", "x = " + "f(" * 150 + "1" + ")" * 150 + "\n" + "not " * 500_000 + "1\n"],
    ids=["minus", "attributes", "elif", "lambda", "not"],
)
def test_deep_source_is_refused_and_the_next_file_looked_into(inspector, tmp_path, source):
    """Whether the parser gives up or takes the process with it."""
    bad = write_wheel(tmp_path, module=source)
    assert code_of(inspector, bad, GENEROUS) == "inspection-failed"
    good = write_wheel(tmp_path, "other-env")
    assert inspector.inspect(good, good.name, Policy()).name == "other-env"


def test_source_that_takes_too_much_memory_is_refused(tmp_path):
    """A large literal takes a hundred times its own size once it is parsed."""
    inspector = Inspector(1, memory=256 << 20)
    try:
        bad = write_wheel(tmp_path, module="x = [" + "[]," * 1_000_000 + "]\n")
        assert code_of(inspector, bad, GENEROUS) == "inspection-failed"
        good = write_wheel(tmp_path, "other-env")
        assert inspector.inspect(good, good.name, Policy()).name == "other-env"
    finally:
        inspector.close()


def test_source_that_takes_too_much_time_is_refused(tmp_path):
    """Processor time is limited by the kernel, for each file anew."""
    inspector = Inspector(1, memory=8 << 30, seconds=0.1)
    try:
        bad = write_wheel(tmp_path, module="x = [" + "[]," * 1_300_000 + "]\n")
        with pytest.raises(RefusedError, match="too much processor time") as caught:
            inspector.inspect(bad, bad.name, GENEROUS)
        assert caught.value.code == "inspection-failed"
        good = write_wheel(tmp_path, "other-env")
        for _ in range(3):
            assert inspector.inspect(good, good.name, Policy()).name == "other-env"
    finally:
        inspector.close()


@pytest.mark.parametrize("policy", [Policy(), GENEROUS], ids=["usual", "generous"])
def test_eighty_mebibytes_of_zeros_are_refused(inspector, tmp_path, policy):
    """As a bomb, and where such are let through, as a module that is too large to parse; not one byte is kept."""
    path = tmp_path / "upload"
    path.write_bytes(make_wheel(module=None, files={"demo_env.py": bytes(80 << 20)}))
    assert code_of(inspector, path, policy) == ("archive-bomb" if policy == Policy() else "module-source")


# --- turns --------------------------------------------------------------------------------------------------------


class Held:
    """Files of an account that keep processes busy until they are let go."""

    def __init__(self, inspector, folder, number, account="mallory"):
        self.pipes, self.threads = [], []
        for _ in range(number):
            pipe = a_pipe_called(folder, f"{account}-{len(self.pipes)}")
            thread = threading.Thread(target=self._inspect, args=(inspector, pipe, account))
            thread.start()
            self.pipes.append(pipe)
            self.threads.append(thread)

    def _inspect(self, inspector, pipe, account):
        with contextlib.suppress(RefusedError, BusyError):
            inspector.inspect(pipe, wheel_name(), Policy(), account)

    def let_one_go(self):
        """Let one of those end that a process has opened, if there is one."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):  # nobody reads it
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                return True
        return False

    def end(self):
        while any(thread.is_alive() for thread in self.threads):
            self.let_one_go()
            time.sleep(0.01)


def a_pipe_called(folder, name):
    os.mkfifo(folder / name)
    return folder / name


def waiting(inspector, account):
    return sum(turn.account == account for turn in inspector._turns)


def test_the_next_process_is_for_the_account_that_has_the_fewest(tmp_path):
    """However many slow files of another one came before."""
    inspector = Inspector(2)
    held = Held(inspector, tmp_path, 10)
    try:
        until(lambda: waiting(inspector, "mallory") == 8)
        good = write_wheel(tmp_path)
        found = []
        asking = threading.Thread(
            target=lambda: found.append(inspector.inspect(good, good.name, Policy(), "alice").name)
        )
        asking.start()
        until(lambda: waiting(inspector, "alice") == 1)
        until(held.let_one_go)
        asking.join()  # the process that came free was not for one of the eight
        assert found == ["demo-env"]
    finally:
        held.end()
        inspector.close()


def test_no_account_may_have_all_threads_wait(tmp_path):
    """More files than so many are told at once to come again; other accounts' are not."""
    inspector = Inspector(1)
    held = Held(inspector, tmp_path, WAITING_FILES + 1)
    try:
        until(lambda: waiting(inspector, "mallory") == WAITING_FILES)
        good = write_wheel(tmp_path)
        with pytest.raises(BusyError, match="files of mallory wait"):
            inspector.inspect(good, good.name, Policy(), "mallory")
    finally:
        held.end()
        inspector.close()


def test_who_waits_too_long_is_told_so(tmp_path):
    """And the pool goes on as before."""
    inspector = Inspector(1, waiting=0.2)
    held = Held(inspector, tmp_path, 1)
    good = write_wheel(tmp_path)
    try:
        until(lambda: inspector._held["mallory"] == 1)
        with pytest.raises(BusyError, match="nothing came free"):
            inspector.inspect(good, good.name, Policy(), "alice")
        held.end()
        assert inspector.inspect(good, good.name, Policy(), "alice").name == "demo-env"
    finally:
        held.end()
        inspector.close()


# --- processes that end -------------------------------------------------------------------------------------------


def test_a_process_that_is_killed_at_a_file_is_replaced(inspector, tmp_path):
    """That file is refused, by a rule with a code, and the next one is looked into."""
    pipe = a_pipe(tmp_path)
    refused = []
    asking = threading.Thread(target=lambda: refused.append(code_of(inspector, pipe)))
    asking.start()
    pid = until(worker_pids)[0]
    end = until(lambda: opened_while_stopped(pipe, pid))
    os.kill(pid, signal.SIGKILL)
    asking.join()
    os.close(end)
    assert refused == ["inspection-failed"]
    good = write_wheel(tmp_path)
    assert inspector.inspect(good, good.name, Policy()).name == "demo-env"
    assert worker_pids() != [pid]


def test_a_process_that_is_killed_while_it_waits_costs_no_file(inspector, tmp_path):
    """It is replaced before the next one."""
    good = write_wheel(tmp_path)
    for _ in range(3):
        assert inspector.inspect(good, good.name, Policy()).name == "demo-env"
        (pid,) = worker_pids()
        os.kill(pid, signal.SIGKILL)
        until(lambda pid=pid: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_process_that_waits_for_ever_is_ended(tmp_path):
    """Time that is not the processor's is limited too."""
    inspector = Inspector(1, patience=0.5)
    try:
        with pytest.raises(RefusedError, match="took too long"):
            inspector.inspect(a_pipe(tmp_path), wheel_name(), Policy())
        assert worker_pids() == []
    finally:
        inspector.close()


def test_a_fault_of_ours_is_logged_and_refuses_the_file(inspector, tmp_path, caplog):
    """The upload can not be accepted, and the process lives on."""
    assert code_of(inspector, tmp_path) == "inspection-failed"  # a folder can not be opened
    assert "IsADirectoryError" in caplog.text
    good = write_wheel(tmp_path)
    assert inspector.inspect(good, good.name, Policy()).name == "demo-env"


def test_the_processes_know_nothing_of_the_hubs_settings(inspector, tmp_path, monkeypatch):
    """The URL of the database may hold a password."""
    monkeypatch.setenv("HUB_DATABASE_URL", "postgresql://hub:secret@db/hub")
    good = write_wheel(tmp_path)
    inspector.inspect(good, good.name, Policy())
    (pid,) = worker_pids()
    assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_closing_ends_the_processes(tmp_path):
    """Also one that a late file started afterwards."""
    inspector = Inspector(2)
    good = write_wheel(tmp_path)
    for _ in range(2):
        assert inspector.inspect(good, good.name, Policy()).name == "demo-env"
    assert len(worker_pids()) == 2
    inspector.close()
    assert worker_pids() == []
    assert inspector.inspect(good, good.name, Policy()).name == "demo-env"
    assert worker_pids() == []


def test_a_forked_process_has_a_pool_of_its_own(inspector, tmp_path):
    """Two processes that read the answers of one worker would get each other's."""
    good = write_wheel(tmp_path)
    inspector.inspect(good, good.name, Policy())
    before = worker_pids()
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def child():
        facts = inspector.inspect(good, good.name, Policy())
        queue.put((facts.name, worker_pids()))
        inspector.close()

    process = context.Process(target=child)
    process.start()
    process.join()
    name, theirs = queue.get()
    assert name == "demo-env"
    assert len(theirs) == 1
    assert theirs != before == worker_pids()


SERVER = """
import sys, time
from pathlib import Path
from hub_server.inspector import Inspector
from verifiers.hub.package.facts import Policy
path = Path(sys.argv[1])
inspector = Inspector(1)
inspector.inspect(path, path.name, Policy())
print("ready", flush=True)
time.sleep(600)
"""


def test_the_processes_end_with_a_server_that_is_killed(tmp_path):
    """Their input ends then."""
    path = write_wheel(tmp_path)
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(path)], stdout=subprocess.PIPE, text=True)
    with server:
        assert server.stdout.readline() == "ready\n"
        (pid,) = worker_pids(server.pid)
        server.kill()
    until(lambda: not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/cmdline").read_bytes() == b"")
