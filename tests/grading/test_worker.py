"""The worker process of the maths grader, as it is: its clock, its limits, its deaths, and its reuse."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import pytest

from verifiers.errors import GraderError
from verifiers.grading import worker
from verifiers.grading.expression import Apply, Expr, Symbol, UnreadableError, number
from verifiers.grading.math_compare import prepared
from verifiers.grading.math_parser import read
from verifiers.grading.verdict import Verdict, reward_of

X = Symbol("x")


def tree(text: str) -> Expr:
    return prepared(read(text))


def endless() -> Expr:
    """A sum of nested sines, valid and within the caps, that costs more than a second of numerics."""
    term: Expr = X
    for _ in range(30):
        term = Apply("sin", (Apply("add", (term, number(1))),))
    return Apply("add", tuple(Apply("mul", (term, number(n))) for n in range(1, 60)))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[worker.WorkerPool]:
    """A pool of one worker for this test alone."""
    own = worker.WorkerPool(1)
    monkeypatch.setattr(worker, "_pool", own)
    yield own
    own.close()


def resident(pool: worker.WorkerPool) -> int:
    """The process id of the idle worker."""
    [idle] = pool._idle
    return idle.process.pid


def at_start_of_request(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
    """Do something to the worker when it has begun a request, which the reading of its clock shows."""
    read_clock, acted = worker._cpu_seconds, threading.Event()

    def clock(pid: int) -> float | None:
        if not acted.is_set():
            acted.set()
            act(pid)
        return read_clock(pid)

    monkeypatch.setattr(worker, "_cpu_seconds", clock)


def ended(pid: int, seconds: float) -> bool:
    """Whether a process is gone within some seconds."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


def test_it_compares(pool: worker.WorkerPool) -> None:
    """Equal, unequal and symbolically equal trees."""
    assert worker.compare(tree(r"\sqrt{3+2\sqrt{2}}"), tree(r"1+\sqrt{2}"), 5.0)
    assert not worker.compare(tree("x+1"), tree("x+2"), 5.0)


def test_one_worker_serves_many_requests(pool: worker.WorkerPool) -> None:
    """The process stays for the next request."""
    worker.compare(X, X, 5.0)
    first = resident(pool)
    for _ in range(5):
        worker.compare(X, number(1), 5.0)
    assert resident(pool) == first


def test_a_worker_is_replaced_after_its_share(
    pool: worker.WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SymPy's caches grow, so a worker serves a fixed number of requests, and its process is then ended."""
    monkeypatch.setattr(worker, "REQUESTS_PER_WORKER", 2)
    worker.compare(X, X, 5.0)
    worker.compare(X, X, 5.0)
    first = resident(pool)
    worker.compare(X, X, 5.0)
    assert resident(pool) != first
    assert ended(first, 0)


def test_cpu_time_runs_out(pool: worker.WorkerPool) -> None:
    """A comparison beyond its CPU allowance ends, its worker with it, and the next one works."""
    worker.compare(X, X, 5.0)
    first = resident(pool)
    with pytest.raises(worker.OutOfTimeError):
        worker.compare(endless(), Apply("add", (endless(), number(0))), 0.1)
    assert ended(first, 0)
    assert worker.compare(X, X, 5.0)


def test_a_stopped_worker_does_not_run_out_of_time(
    pool: worker.WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wall time is not counted: a worker that stands still for five times its allowance still answers."""

    def go_on(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # the test has failed, and its worker is gone
            os.kill(pid, signal.SIGCONT)

    def pause(pid: int) -> None:
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(2.5, go_on, (pid,)).start()

    worker.compare(X, X, 5.0)
    first = resident(pool)
    at_start_of_request(monkeypatch, pause)
    assert worker.compare(X, Apply("add", (X, number(0))), 0.5)
    assert resident(pool) == first


def test_a_killed_worker_is_an_error(pool: worker.WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that dies in the middle raises GraderError, and the next comparison works."""
    worker.compare(X, X, 5.0)
    first = resident(pool)
    at_start_of_request(monkeypatch, lambda pid: os.kill(pid, signal.SIGKILL))
    with pytest.raises(GraderError, match="-9"):
        worker.compare(endless(), Apply("add", (endless(), number(0))), 5.0)
    assert ended(first, 0)
    assert worker.compare(X, X, 5.0)


def test_a_worker_that_died_idle_is_replaced(pool: worker.WorkerPool) -> None:
    """A worker that was killed between two requests is noticed before the next one is sent."""
    worker.compare(X, X, 5.0)
    first = resident(pool)
    os.kill(first, signal.SIGKILL)
    assert ended(first, 30)
    assert worker.compare(X, X, 5.0)
    assert resident(pool) != first


def test_a_worker_that_cannot_start_is_an_error(
    pool: worker.WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No interpreter to start is GraderError, never a verdict."""
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(GraderError, match="could not be started"):
        worker.compare(X, X, 5.0)


def test_values_over_the_caps_are_unreadable(pool: worker.WorkerPool) -> None:
    """The caps hold in the worker too."""
    tower = Apply("pow", (number(2), Apply("pow", (number(2), Apply("pow", (number(2), X))))))
    with pytest.raises(UnreadableError):
        worker.compare(Apply("pow", (number(9), Apply("pow", (number(9), number(99))))), tower, 5.0)


def test_memory_is_limited(pool: worker.WorkerPool) -> None:
    """The worker's address space is bounded, and it writes no core files."""
    worker.compare(X, X, 5.0)
    with open(f"/proc/{resident(pool)}/limits") as limits:
        lines = limits.read().splitlines()
    [space] = [line.split() for line in lines if line.startswith("Max address space")]
    [core] = [line.split() for line in lines if line.startswith("Max core file size")]
    assert space[3] == space[4] == str(worker.MEMORY_LIMIT)
    assert core[4] == core[5] == "0"


def test_out_of_memory_is_a_timeout_and_no_crash(
    pool: worker.WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Running out of memory is the allowance running out."""
    monkeypatch.setattr(pool, "ask", lambda *_: {"out_of_memory": True})
    with pytest.raises(worker.OutOfTimeError):
        worker.compare(X, X, 5.0)


def test_it_works_off_the_main_thread(pool: worker.WorkerPool) -> None:
    """Several threads share one worker, and each gets its own answer."""
    answers: dict[int, bool] = {}

    def ask(index: int) -> None:
        answers[index] = worker.compare(X, X if index % 2 else number(index), 5.0)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {index: bool(index % 2) for index in range(8)}


def test_it_dies_with_its_parent() -> None:
    """A parent that is killed outright leaves no worker behind."""
    code = textwrap.dedent(
        """
        import time
        from verifiers.grading import worker
        from verifiers.grading.expression import Symbol
        worker.compare(Symbol("x"), Symbol("x"), 5.0)
        print(worker.pool()._idle[0].process.pid, flush=True)
        time.sleep(600)
        """
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert not ended(child, 0)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert ended(child, 30)


def test_closing_ends_idle_workers() -> None:
    """A closed pool leaves no process."""
    own = worker.WorkerPool(1)
    own.ask({"answer": ["Symbol", "x"], "gold": ["Symbol", "x"]}, 5.0)
    child = resident(own)
    own.close()
    assert ended(child, 0)


@pytest.mark.parametrize(
    ("verdict", "reward"),
    [(Verdict.RIGHT, 1.0), (Verdict.WRONG, 0.0), (Verdict.NO_ANSWER, 0.0), (Verdict.UNPARSABLE, 0.0)],
)
def test_verdicts_that_are_scores(verdict: Verdict, reward: float) -> None:
    """Right pays 1; wrong, missing and unparsable answers pay 0."""
    assert reward_of(verdict) == reward
    assert verdict.is_right is (reward == 1.0)


@pytest.mark.parametrize("verdict", [Verdict.TIMEOUT, Verdict.BAD_GOLD])
def test_verdicts_that_are_no_scores(verdict: Verdict) -> None:
    """A failure of the grading is an error and never a number."""
    with pytest.raises(GraderError):
        reward_of(verdict)
    assert not verdict.is_right
