"""The agent against what runs beside it: exactly told, whatever that does to its processes."""

import asyncio
import os
import subprocess
import sys

import pytest

from verifiers.errors import SandboxDiedError
from verifiers.sandboxes.spec import SandboxSpec, command

RUNNING = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o '[s]leep 75' | wc -l"


async def test_what_a_killed_supervisor_had_is_killed_before_the_command_has_ended(local_provider):
    """On a busy machine, where its connection is closed long before its children have another parent."""

    async def left(_):
        async with await local_provider.create(SandboxSpec(memory=256, pids=64)) as sandbox:
            await sandbox.start(command("sleep 7500", timeout=None))
            await sandbox.exec("(setsid sleep 7501 &); kill -KILL $PPID; sleep 7502", timeout=0.5)
            return (await sandbox.exec(RUNNING.replace("75", "750[12]"))).stdout

    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    try:
        for _ in range(8):
            assert set(await asyncio.gather(*map(left, range(8)))) == {b"0\n"}
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.parametrize("stop", ["KILL", "STOP"])
async def test_a_command_gains_nothing_by_ending_what_supervises_it(sandbox, stop):
    """It is killed with all that it has started, and the sandbox goes on."""
    await sandbox.start(command("sleep 7500", timeout=None))  # the next has a supervisor of its own
    result = await sandbox.exec(f"(setsid sleep 7501 &); kill -{stop} $PPID; sleep 7502", timeout=0.5)
    assert (result.exit_code, result.signal) == (None, 9)
    assert result.reason in ("signalled", "timeout")
    assert (await sandbox.exec(RUNNING.replace("75", "750[12]"))).stdout == b"0\n"


async def test_commands_at_once_are_told_apart(sandbox):
    """What each leaves is its own, though their first processes have long ended."""
    lines = [f"(setsid sleep 7511 &); {'sleep 7512 &' * number} sleep 0.1; exit {number}" for number in range(4)]
    results = await asyncio.gather(*(sandbox.exec(line, kill_leftovers=bool(at % 2)) for at, line in enumerate(lines)))
    assert [(one.exit_code, one.leftovers) for one in results] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert [one.killed_leftovers for one in results] == [0, 2, 0, 4]
    assert (await sandbox.exec(RUNNING)).stdout == b"4\n"


async def test_no_signal_reaches_the_first_process(sandbox):
    """Not even the one that Python itself would answer."""
    await sandbox.exec("for number in 1 2 3 6 9 10 12 14 15 19; do kill -$number 1; done; kill -9 -1")
    assert (await sandbox.exec("echo on")).stdout == b"on\n"


async def test_what_is_left_is_counted_and_killed_on_demand(sandbox):
    """Also what has left its session and its parent; afterwards nothing of it runs."""
    line = "(setsid sleep 7503 &); sleep 7504 & exit 3"
    kept = await sandbox.exec(line)
    killed = await sandbox.exec(line, kill_leftovers=True)
    assert [(one.exit_code, one.leftovers, one.killed_leftovers) for one in (kept, killed)] == [(3, 2, 0), (3, 2, 2)]
    assert (await sandbox.exec(RUNNING)).stdout == b"2\n"


async def test_what_is_left_may_print_on_for_nobody(sandbox):
    """It is not killed by a pipe that nobody reads, and the next command is not given its output."""
    await sandbox.exec("(while echo more; do sleep 0.01; done) & echo $! > pid")
    assert (await sandbox.exec("sleep 0.1; kill -0 $(cat pid) && echo lives")).stdout == b"lives\n"


async def test_a_killed_process_takes_its_descendants_along_after_its_end(sandbox):
    """`Process.kill` ends what a process has left behind, too."""
    process = await sandbox.start(command("sleep 7505 & exit 0"))
    assert (await process.wait()).leftovers == 1
    await process.kill()
    assert (await sandbox.exec(RUNNING)).stdout == b"0\n"


async def test_a_signal_sent_at_once_is_not_lost(sandbox):
    """It waits until there is a process to send it to."""
    process = await sandbox.start(command("sleep 7506"))
    await process.signal(15)
    assert (await process.wait()).signal == 15


async def test_many_commands_at_once_keep_apart(sandbox):
    """Each gets its own input, output and status; large ones do not wait for each other."""
    line = "head -c {0}0000 /dev/zero | tr '\\0' {1}; exit {0}"
    lines = [line.format(number, chr(97 + number)) for number in range(12)]
    results = await asyncio.gather(*(sandbox.exec(line) for line in lines))
    for number, result in enumerate(results):
        assert (result.exit_code, result.stdout) == (number, bytes([97 + number]) * number * 10_000)


async def test_orphans_are_taken_in(sandbox):
    """Processes whose parents have gone leave no zombies while their command still runs."""
    line = "for i in $(seq 40); do (sh -c 'exit 0' & exit 0); done; sleep 0.3; cat /proc/[0-9]*/stat | grep -c ') Z '"
    assert (await sandbox.exec(line)).stdout == b"0\n"


async def test_a_sandbox_that_has_lost_its_agent_is_dead(sandbox, local_provider):
    """Its users are told so, at once, and nothing of it is left."""
    waiting = asyncio.create_task(sandbox.exec("sleep 7507", timeout=None))
    await sandbox.exec("true")
    pid = sandbox.life.child.pid
    os.kill(_child_of(pid), 9)
    with pytest.raises(SandboxDiedError):
        await waiting
    await sandbox.delete()
    assert await local_provider.list() == []
    assert not os.path.exists(f"/proc/{pid}")


def _child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return int(file.read().split()[0])
