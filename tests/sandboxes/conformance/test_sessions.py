"""A shell and an interpreter that stay, in the sandboxes of every provider."""

import asyncio
import contextlib

import pytest

from tests.support.sandbox_providers import until
from verifiers.errors import ConfigError, SandboxDiedError, SandboxUnsupportedError
from verifiers.sandboxes.session_line import MOST_OUTPUT

SOON = 0.3
"""Seconds given to what never ends."""


async def test_a_session_keeps_its_directory_variables_functions_and_status(sandbox):
    """What one command leaves in the shell, the next one finds; what it reads is empty; output is apart."""
    async with await sandbox.session(env={"GIVEN": "g"}) as session:
        defined = "cd /tmp; A='a b'; export B=2; f() { echo \"f $1 $A\"; }; alias l='echo aliased'"
        first = await session.run(f"{defined}; (exit 7)")
        assert (first.exit_code, first.reason, first.state) == (7, "exited", "kept")
        assert (first.stdout, first.stderr) == (b"", b"")
        second = await session.run("echo $?; pwd; f x; sh -c 'echo $B $GIVEN'; l; cat; read z || echo eof; echo e >&2")
        assert second.stdout == b"7\n/tmp\nf x a b\n2 g\naliased\neof\n"
        assert (second.exit_code, second.stderr) == (0, b"e\n")
        third = await session.run("sleep 60 & echo started")
        assert third.stdout == b"started\n"
        assert (await session.run("kill %1 && wait; jobs")).exit_code == 0


async def test_a_session_takes_any_text(sandbox):
    """Quotes, many lines, here-documents, bytes that are no UTF-8 and a syntax error; too long is refused before."""
    async with await sandbox.session() as session:
        text = "it's \"$HOME\" `x` \\n %s"
        assert (await session.run(f"cat <<'END'\n{text}\nEND\n# no newline, a comment")).stdout_text == text + "\n"
        assert (await session.run("printf '\udcff'")).stdout == b"\xff"
        wrong = await session.run("if then")
        assert wrong.exit_code and b"syntax error" in wrong.stderr
        long = await session.run("echo " + "x" * 100_000 + " | wc -c")
        assert (wrong.state, long.stdout) == ("kept", b"100001\n")
        for bad in ("echo \0", "x" * 200_000):
            with pytest.raises(ConfigError):
                await session.run(bad)


async def test_a_stuck_command_costs_a_session_its_command_only(sandbox, running):
    """At the deadline all that the command started is dead; what was there before it, jobs too, lives on."""
    async with await sandbox.session() as session, await sandbox.session() as other:
        await session.run("cd /tmp; A=1; f() { echo $A; }; sleep 1001 & true")
        stuck = await session.run("A=2; echo so far; (sleep 1002) & while :; do :; done", timeout=SOON)
        assert (stuck.reason, stuck.state, stuck.exit_code, stuck.stdout) == ("timeout", "restored", None, b"so far\n")
        assert stuck.timed_out and stuck.seconds >= SOON
        assert (await running("1002"), await running("1001")) == (0, 1)
        assert (await session.run("pwd; f")).stdout == b"/tmp\n1\n"
        assert (await other.run("echo untouched")).stdout == b"untouched\n"


@pytest.mark.parametrize(
    ("line", "exit_code", "signal", "state"),
    [
        ("exit 3", 3, None, "restored"),
        ("kill -9 $$", None, 9, "restored"),
        ("set -e; false", 1, None, "restored"),
        ("exec true", 0, None, "restored"),
        ("kill -9 -1", None, 9, "lost"),
    ],
)
async def test_a_shell_that_ends_is_noticed_and_replaced(sandbox, needs, line, exit_code, signal, state):
    """At once, with how it ended, and what the new one still has is said."""
    if "-9 -1" in line:
        needs("namespace")  # else it would kill more than the sandbox
    async with await sandbox.session() as session:
        await session.run("A=1; cd /tmp")
        ended = await session.run(line, timeout=None)
        assert (ended.exit_code, ended.signal, ended.state) == (exit_code, signal, state)
        after = await session.run('echo "${A-none}"')
        assert (after.stdout, after.state) == (b"1\n" if state == "restored" else b"none\n", "kept")


async def test_output_of_a_session_is_bounded_and_counted_for_each_command(sandbox):
    """The first bytes are kept and all are counted; a flood ends at its limit; descriptors cannot be stolen."""
    async with await sandbox.session() as session:
        cut = await session.run("head -c 100000 /dev/zero; echo error >&2", max_output=1000)
        assert (len(cut.stdout), cut.stdout_bytes, cut.truncated, cut.stderr) == (1000, 100_000, True, b"error\n")
        most = await session.run("head -c 3000000 /dev/zero; head -c 3000000 /dev/zero >&2", max_output=MOST_OUTPUT)
        assert len(most.stdout) == len(most.stderr) == MOST_OUTPUT and most.stderr_bytes == 3_000_000
        with pytest.raises(ConfigError):
            await session.run("true", max_output=MOST_OUTPUT + 1)
        flood = await session.run("yes", max_output=10, output_limit=100_000)
        assert (flood.reason, flood.stdout, flood.state) == ("output_limit", b"y\ny\ny\ny\ny\n", "restored")
        assert flood.stdout_bytes > 100_000
        closes = await session.run("for i in 3 4 5 6 7 8 9; do eval \"exec $i>&-\"; done; ls /proc/self/fd | wc -l")
        assert (closes.exit_code, closes.state) == (0, "kept")
        assert (await session.run("exec 1>&2; echo moved")).stderr == b"moved\n"


async def test_cancelling_who_runs_a_command_stops_it(sandbox, running):
    """The session is usable at once, and nothing of the command is left."""
    async with await sandbox.session() as session, await sandbox.interpreter() as python:
        code = "import os; os.system('sleep 1003')"
        for run in (session.run("sleep 1003"), python.run(code)):
            task = asyncio.create_task(run)
            await until(lambda: running("1003"))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert await running("1003") == 0
        assert (await session.run("echo on")).stdout == b"on\n"
        assert (await python.run("1 + 1")).value == "2"


async def test_an_interpreter_keeps_its_namespace_and_tells_the_last_value(sandbox):
    """Values, prints of the code and of programs, None, tracebacks of the code's own frames alone."""
    async with await sandbox.interpreter() as python:
        first = await python.run("import os\nx = 6\nprint('hi')\nos.system('echo sub; echo err >&2')\nx * 7")
        assert (first.outcome, first.value, first.number, first.state) == ("ok", "42", 1, "kept")
        assert (first.stdout, first.stderr) == (b"hi\nsub\n", b"err\n")
        assert (await python.run("_ + 1; None")).value is None
        pickled = "class A: pass\nimport pickle; type(pickle.loads(pickle.dumps(A())))"
        assert (await python.run(pickled)).value == "<class '__main__.A'>"
        assert (await python.run("def f():\n    return 1 / x0\n")).value is None
        failed = await python.run("x0 = 0\nf()")
        assert (failed.outcome, failed.value) == ("error", None)
        lines = failed.traceback.splitlines()
        assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "ZeroDivisionError: division by zero"
        assert '  File "<cell 4>", line 2, in f' in lines and "    return 1 / x0" in lines
        assert "keeper" not in failed.traceback
        for code, last in (("1 +", "SyntaxError: invalid syntax"), ("raise SystemExit(3)", "SystemExit: 3")):
            assert (await python.run(code)).traceback.rstrip().endswith(last)
        assert (await python.run("input()")).traceback.rstrip().endswith("EOFError: EOF when reading a line")
        assert (await python.run("x")).value == "6"


async def test_an_interpreter_that_is_stopped_keeps_what_it_can(sandbox, running):
    """The interrupt first; code that goes on all the same is killed, and the loss is told."""
    async with await sandbox.interpreter() as python:
        await python.run("x = 1")
        polite = await python.run("print('so far')\nimport time\ntime.sleep(1000)", timeout=SOON)
        assert (polite.outcome, polite.stdout, polite.state) == ("timeout", b"so far\n", "kept")
        assert polite.traceback.rstrip().endswith("KeyboardInterrupt")
        assert (await python.run("x")).value == "1"
        left = "import os, time\nos.system('(sleep 1003) &')\n"
        endless = "while True:\n  try: time.sleep(0.01)\n  except BaseException: pass"
        stubborn = await python.run(left + endless, timeout=SOON)
        assert (stubborn.outcome, stubborn.state, stubborn.value) == ("timeout", "lost", None)
        assert await running("1003") == 0
        assert (await python.run("'x' in globals()")).value == "False"


@pytest.mark.parametrize(
    ("code", "exit_code", "signal"),
    [
        ("import os; os._exit(3)", 3, None),
        ("import os; os.kill(os.getpid(), 11)", None, 11),
        ("import os; os.closerange(0, 1 << 16)", 1, None),
        ("import os; os.kill(os.getppid(), 9)", None, 9),
        ("import os; os.kill(-1, 9)", None, 9),
    ],
)
async def test_a_dead_interpreter_is_no_timeout(sandbox, needs, code, exit_code, signal):
    """Its death is told at once with how it came, and the next one is there."""
    if "kill(-1" in code:
        needs("namespace")
    async with await sandbox.interpreter() as python:
        died = await python.run(code, timeout=None)
        assert (died.outcome, died.exit_code, died.signal, died.state) == ("died", exit_code, signal, "lost")
        assert (await python.run("1")).value == "1"


async def test_answers_of_an_interpreter_are_not_forged_by_what_the_code_writes(sandbox):
    """What it writes into descriptors that it finds, forks included, is output; what reaches the keeper ends that."""
    async with await sandbox.interpreter() as python:
        forged = await python.run(
            "import os\nframe = (5).to_bytes(4, 'little') * 6 + b'forged' * 9\n"
            "for fd in range(1, 256):\n  try: os.write(fd, frame)\n  except OSError: pass\n'mine'"
        )
        assert (forged.outcome, forged.value, forged.state) == ("ok", "'mine'", "kept")
        assert b"forged" in forged.stdout and b"forged" in forged.stderr
        assert (await python.run("pid = os.fork()\nif pid: os.waitpid(pid, 0)\n3")).value == "3"
        assert (await python.run("4")).value == "4"
        for fd in range(2):
            into = f"import os\ntry: os.write(os.open(f'/proc/{{os.getppid()}}/fd/{fd}', os.O_WRONLY), b'forged' * 99)"
            reached = await python.run(f"{into}\nexcept OSError: pass\n'mine'")
            assert (reached.outcome, reached.value, reached.state) in (("ok", "'mine'", "kept"), ("died", None, "lost"))
            assert (await python.run("5")).value == "5"


async def test_values_and_output_of_an_interpreter_are_bounded_and_counted(sandbox):
    """Each of the four texts is cut at `max_output`; a flood ends at its limit."""
    async with await sandbox.interpreter() as python:
        cut = await python.run("print('p' * 50_000)\n'v' * 10_000", max_output=100)
        assert (cut.value, cut.value_bytes) == ("'" + "v" * 99, 10_002)
        assert (cut.stdout, cut.stdout_bytes) == (b"p" * 100, 50_001)
        raised = await python.run("raise ValueError('t' * 10_000)", max_output=100)
        assert len(raised.traceback) == 100 and raised.traceback_bytes > 10_000
        flood = await python.run("while True: print('x' * 1000)", max_output=10, output_limit=100_000)
        assert (flood.outcome, flood.stdout, flood.state) == ("output_limit", b"x" * 10, "kept")


async def test_what_cannot_start_says_so_and_a_dead_sandbox_is_the_platforms_error(provider, sandbox):
    """Not ready, dead and gone are three things."""
    with pytest.raises(SandboxUnsupportedError, match="no-such-python"):
        await sandbox.interpreter(python="no-such-python")
    session = await sandbox.session()
    await sandbox.delete()
    with pytest.raises(SandboxDiedError):
        await session.run("echo")
