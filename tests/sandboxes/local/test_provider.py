"""Sandboxes of this machine from their creation to their end, with real processes."""

from collections.abc import AsyncIterator

import pytest

from verifiers.errors import SandboxFileNotFoundError
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.sandbox import Sandbox
from verifiers.sandboxes.spec import SandboxSpec, command


@pytest.fixture
async def sandbox() -> AsyncIterator[Sandbox]:
    async with LocalProvider() as provider:
        yield await provider.create(SandboxSpec())


async def test_a_command_gives_its_output_and_its_status(sandbox: Sandbox) -> None:
    """stdout, stderr and the exit code are kept apart."""
    result = await sandbox.exec("echo hi; echo no >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"hi\n", b"no\n")


async def test_input_of_any_size_arrives_whole(sandbox: Sandbox) -> None:
    """More than a pipe and the window hold goes through."""
    data = bytes(range(256)) * 4096
    assert (await sandbox.exec(["cat"], stdin=data)).stdout == data


async def test_what_holds_the_pipes_does_not_hold_the_result(sandbox: Sandbox) -> None:
    """A command ends when its first process does; what it left is counted."""
    result = await sandbox.exec("sleep 1000 & echo x")
    assert (result.stdout, result.leftovers, result.killed_leftovers) == (b"x\n", 1, 0)


async def test_a_timeout_kills_all_and_keeps_the_output(sandbox: Sandbox) -> None:
    """Nothing that ignores signals or leaves its session survives."""
    line = "trap '' TERM; echo before; (setsid sleep 4321 &); sleep 4321"
    result = await sandbox.exec(line, timeout=0.2)
    assert (result.reason, result.stdout) == ("timeout", b"before\n")
    assert (await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 4321'")).stdout == b"0\n"


async def test_files_go_in_and_out(sandbox: Sandbox) -> None:
    """Larger than one frame too; what is missing is not empty."""
    data = b"0123456789abcdef" * 100_000
    await sandbox.write("a/b", data)
    assert await sandbox.read("a/b") == data
    with pytest.raises(SandboxFileNotFoundError):
        await sandbox.read("a/c")


async def test_a_process_is_written_to_and_read_from(sandbox: Sandbox) -> None:
    """Its input stays open; its output comes with offsets."""
    process = await sandbox.start(command("read x; echo got $x"))
    await process.write(b"abc\n")
    assert b"".join([chunk.data async for chunk in process.output()]) == b"got abc\n"
    assert (await process.wait()).exit_code == 0
