"""A limit ends a command and everything it started, and nothing else."""

import asyncio
import signal

import pytest

from tests.support.sandbox_providers import until
from verifiers.sandboxes.spec import command

# Ways to stay alive: {word} is an argument of every process that must die.
SURVIVORS = (
    "sleep {word} & setsid sleep {word} & (setsid sh -c 'sleep {word} & sleep {word}' &) ; "
    "sh -c 'trap \"\" TERM HUP INT; sleep {word}; : {word}' & "
    "sh -c 'kill -STOP $$; : {word}' & nohup sleep {word} >/dev/null 2>&1 & echo started; sleep {word}"
)
MANY = 7


async def test_at_the_deadline_everything_it_started_dies(sandbox, running):
    """At the time-out the output so far is kept, and children that left, ignore signals or stand still are dead."""
    call = asyncio.create_task(sandbox.exec(SURVIVORS.format(word="7201"), timeout=2.5))

    async def all_there():
        return await running("7201") >= MANY

    await until(all_there)
    assert not call.done(), "the children were not seen alive"
    result = await call
    assert (result.reason, result.timed_out, result.exit_code) == ("timeout", True, None)
    assert result.stdout == b"started\n"
    assert await running("7201") == 0
    assert (await sandbox.exec("echo on")).ok


async def test_a_command_can_not_stop_its_deadline(sandbox):
    """Signals that a command sends to all it can reach do not keep it alive past its time, nor end the sandbox."""
    for name in ("STOP", "KILL", "INT", "TERM"):
        line = f"echo x; trap '' INT TERM; kill -{name} -1; sleep 1000"
        result = await sandbox.exec(line, timeout=0.5)
        assert result.exit_code is None
        assert result.stdout == b"x\n"
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGSTOP, signal.SIGKILL, signal.SIGPIPE):
        await sandbox.exec(f"kill -{number:d} 1")
    assert (await sandbox.exec("echo on")).stdout == b"on\n"


async def test_silence_has_a_limit_of_its_own(sandbox):
    """A command that prints nothing for so long is ended for its silence, and says so."""
    result = await sandbox.exec("echo x; sleep 1000", silence=0.3, timeout=60)
    assert (result.reason, result.timed_out, result.stdout) == ("silence", True, b"x\n")


async def test_one_commands_end_leaves_others_alone(sandbox):
    """A background process without a deadline outlives another command's time-out and flood."""
    process = await sandbox.start(command("cat; exit 5", timeout=None))
    assert (await sandbox.exec("sleep 1000", timeout=0.2)).timed_out
    assert (await sandbox.exec("yes", output_limit=100_000)).reason == "output_limit"
    await process.write(b"still here")
    await process.close_stdin()
    result = await process.wait()
    assert (result.exit_code, result.stdout) == (5, b"still here")


async def test_a_cancelled_call_kills_its_command(sandbox, running):
    """Cancelling the caller ends the command with all it started; the sandbox goes on."""
    call = asyncio.create_task(sandbox.exec("setsid sleep 7301 & sleep 7301", timeout=None))
    await until(lambda: _at_least(running("7301"), 2))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    async def gone():
        return await running("7301") == 0

    await until(gone)


async def _at_least(count, number):
    return await count >= number


async def test_too_many_processes_fail_inside_only(provider, spec, needs):
    """A fork bomb meets the limit, is named for it, and leaves neighbours and the sandbox itself usable."""
    needs("pids")
    bombed, neighbour = await asyncio.gather(provider.create(spec(pids=24)), provider.create(spec()))
    bomb = "b() { b | b & b; }; b 2>/dev/null; for i in 1 2 3 4 5 6 7 8 9; do sleep 7401 & done 2>/dev/null; wait"
    call = asyncio.create_task(bombed.exec(bomb, timeout=1.5))
    assert (await neighbour.exec("echo fine")).stdout == b"fine\n"
    result = await call
    assert result.pids_limited or not result.ok
    assert (await bombed.exec("echo on")).stdout == b"on\n"


async def test_out_of_memory_is_told_though_the_shell_says_zero(provider, spec, needs):
    """Only the processes of the sandbox die, and the result says so even when the shell exits with 0."""
    needs("memory")
    sandbox = await provider.create(spec(memory=64))
    hog = "x = bytearray(1)\nwhile True: x += bytes(1 << 22)"
    result = await sandbox.exec(["/bin/sh", "-c", 'python3 -c "$0" 2>/dev/null; exit 0', hog])
    if "memory" not in (await provider.capabilities()).weak:
        assert (result.exit_code, result.oom_killed, result.ok) == (0, True, False)
    assert (await sandbox.exec("echo on")).stdout == b"on\n"


async def test_the_disk_has_an_end(provider, spec, needs):
    """Writing meets the limit inside, in bytes and in files; then the sandbox still reads, runs and is deleted."""
    needs("disk")
    sandbox = await provider.create(spec(disk=8, inodes=500))
    await sandbox.write("kept", b"kept")
    full = await sandbox.exec("head -c 40000000 /dev/zero > big; ls -s big >&2; echo more >> kept2 || echo full")
    assert "No space" in full.stderr_text or "too large" in full.stderr_text
    assert await sandbox.read("kept") == b"kept"
    assert (await sandbox.exec("rm big; echo on")).stdout == b"on\n"
    if "inodes" in (await provider.capabilities()).limits:
        many = await sandbox.exec("i=0; while [ $i -lt 2000 ]; do : > f$i || exit 9; i=$((i+1)); done")
        assert many.exit_code != 0
    await sandbox.delete()
    assert not await sandbox.alive()
