"""A process that was started lives on by itself: it is written to, read, signalled, found again by its id."""

import asyncio
import signal

import pytest

from verifiers.sandboxes.spec import MIB, command


async def collect(chunks):
    """All chunks of an output, as (stream → list of chunks)."""
    found = {"stdout": [], "stderr": []}
    async for chunk in chunks:
        found[chunk.stream].append(chunk)
    return found


def text(chunks):
    return b"".join(chunk.data for chunk in chunks)


async def test_a_process_talks(sandbox):
    """Output arrives while the process waits for more input; its end has the result."""
    process = await sandbox.start(command("while read line; do echo got $line; done; echo bye >&2; exit 4"))
    output = process.output()
    for word in (b"one", b"two"):
        await process.write(word + b"\n")
        heard = b""
        while not heard.endswith(b"\n"):
            heard += (await anext(output)).data
        assert heard == b"got " + word + b"\n"
    await process.close_stdin()
    assert [(chunk.stream, chunk.offset, chunk.data) async for chunk in output] == [("stderr", 0, b"bye\n")]
    result = await process.wait()
    assert (result.exit_code, result.stdout, result.stderr) == (4, b"got one\ngot two\n", b"bye\n")
    assert await process.wait() == result


async def test_the_last_output_is_kept_on_request_and_a_reader_misses_none(sandbox):
    """With keep="last" who reads on has it all, far beyond what is kept; who comes later has the end of it."""
    line = "for n in 0 1 2 3 4 5 6 7; do head -c 100000 /dev/zero; echo $n; read x; done"
    process = await sandbox.start(command(line, max_output=150_000, keep="last"))
    at = 0
    async for chunk in process.output():
        assert chunk.offset == at
        at += len(chunk.data)
        if chunk.data.endswith(b"\n"):
            await process.write(b"on\n")
    result = await process.wait()
    assert (at, result.stdout_bytes, len(result.stdout), result.stdout[-2:]) == (800_016, 800_016, 150_000, b"7\n")
    later = await collect((await sandbox.attach(process.id)).output())
    assert (later["stdout"][0].offset, text(later["stdout"])) == (650_016, result.stdout)


async def test_output_is_read_from_an_offset_after_the_handle_was_lost(provider, sandbox):
    """By the ids alone the process is found again: what it printed, from where one likes, and how it ends."""
    process = await sandbox.start(command("printf 0123456789; printf abc >&2; read x; printf $x; exit 6"))
    async for chunk in process.output():
        if chunk.stream == "stdout" and chunk.offset + len(chunk.data) == 10:
            break
    ids = sandbox.id, process.id
    del process
    found = await (await provider.get(ids[0])).attach(ids[1])
    await found.write(b"end\n")
    result = await found.wait()
    assert (result.exit_code, result.stdout) == (6, b"0123456789end")
    again = await (await provider.get(ids[0])).attach(ids[1])
    tail = await collect(again.output(stdout_from=4, stderr_from=1))
    assert (tail["stdout"][0].offset, text(tail["stdout"])) == (4, b"456789end")
    assert (tail["stderr"][0].offset, text(tail["stderr"])) == (1, b"bc")
    assert await again.wait() == result
    with pytest.raises(KeyError):
        await sandbox.attach("no-such-process")


async def test_signals_arrive_and_those_to_the_dead_are_fine(sandbox):
    """A signal reaches the process; to one that has ended signals, input and kills are a success."""
    line = "trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.02; done"
    process = await sandbox.start(command(line))
    await anext(process.output())
    await process.signal(signal.SIGUSR1)
    result = await process.wait()
    assert (result.exit_code, result.stdout) == (7, b"ready\ncaught\n")
    for number in (signal.SIGTERM, signal.SIGKILL, 0):
        await process.signal(number)
    await process.write(b"dropped")
    await process.close_stdin()
    await process.kill()
    assert await process.wait() == result


async def test_a_kill_takes_everything_it_started(sandbox, running):
    """When `kill` returns, the process and its descendants are gone, wherever they went."""
    line = "setsid sleep 7501 & (sleep 7501 &); trap '' TERM; echo ready; sleep 7501"
    process = await sandbox.start(command(line, timeout=None))
    await anext(process.output())
    await process.kill()
    assert await running("7501") == 0
    result = await process.wait()
    assert (result.exit_code, result.signal, result.stdout) == (None, signal.SIGKILL, b"ready\n")


async def test_writing_waits_for_who_does_not_read(sandbox):
    """Input that is not read is held back, not piled up; the end of the process ends the wait without an error."""
    process = await sandbox.start(command("echo ready; sleep 1000", timeout=None))
    await anext(process.output())
    writing = asyncio.create_task(process.write(bytes(32 * MIB)))
    done, _ = await asyncio.wait({writing}, timeout=0.2)
    assert not done
    assert (await sandbox.exec("echo others go on")).ok
    await process.kill()
    await writing


async def test_a_flood_without_a_reader_is_bounded(sandbox):
    """What nobody reads is kept up to `max_output`, counted whole, and found by its offsets later."""
    process = await sandbox.start(command("head -c 5000000 /dev/zero; echo end >&2", max_output=100_000))
    result = await process.wait()
    assert (result.stdout_bytes, len(result.stdout), result.truncated) == (5_000_000, 100_000, True)
    kept = await collect(process.output())
    assert text(kept["stdout"]) == bytes(100_000)
    assert text(kept["stderr"]) == b"end\n"
    assert (await collect(process.output(stdout_from=99_990)))["stdout"][0].data == bytes(10)


async def test_a_started_process_has_its_deadline(sandbox, running):
    """The time-out of a started process counts from its start, whether anybody waits or not."""
    process = await sandbox.start(command("echo x; setsid sleep 7601 & sleep 7601", timeout=0.3))
    result = await process.wait()
    assert (result.reason, result.stdout) == ("timeout", b"x\n")
    assert await running("7601") == 0


async def test_several_read_one_process(sandbox):
    """Two readers of one process each get all of it, though one begins late and one gives up."""
    process = await sandbox.start(command("echo a; read x; echo b", timeout=None))
    first = asyncio.create_task(collect(process.output()))
    given_up = asyncio.create_task(collect(process.output()))
    await anext(process.output())
    given_up.cancel()
    await process.write(b"\n")
    second = await collect(process.output())
    assert text((await first)["stdout"]) == text(second["stdout"]) == b"a\nb\n"
    with pytest.raises(asyncio.CancelledError):
        await given_up
    assert (await process.wait()).ok


async def test_a_start_that_is_cancelled_leaves_no_process(sandbox):
    """Nobody has its id: one that was still being fed is killed."""
    starting = asyncio.create_task(sandbox.start(command("exec sleep 7601", stdin=bytes(1 << 22), timeout=None)))
    while b"7601" not in (await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '; true")).stdout:
        assert not starting.done()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    found = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 7601'; true")
    assert found.stdout == b"0\n"


async def test_a_server_goes_on_without_a_deadline_and_a_missing_program_is_told(sandbox):
    """`spawn` takes what `exec` takes; who reads a process that could not begin reads why."""
    process = await sandbox.spawn("echo up; read x", stdin=None)
    assert (await anext(process.output())).data == b"up\n"
    await process.kill()
    assert (await process.wait()).signal == signal.SIGKILL
    absent = await sandbox.spawn(["no-such-program"])
    found = await collect(absent.output())
    assert b"no-such-program" in text(found["stderr"]) and not found["stdout"]
    result = await absent.wait()
    assert (result.exit_code, result.stderr) == (127, text(found["stderr"]))
