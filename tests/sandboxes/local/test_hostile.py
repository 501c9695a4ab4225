"""What one caller or one program does wrong stays with it."""

import asyncio
import gc
import os
from pathlib import Path

import pytest

from verifiers.errors import ConfigError, SandboxCreationError, SandboxDiedError, SandboxPathError
from verifiers.sandboxes.host.process import GuestProcess
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.sandbox import Sandbox
from verifiers.sandboxes.spec import Command, Isolation, SandboxSpec

CHANGES = """
import os, resource
ways = (lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3)), lambda: resource.prlimit(1, 9, (0, 0)),
        lambda: os.setpriority(os.PRIO_USER, 0, 19), lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
        lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)), lambda: os.sched_setaffinity(1, {0}))
for way in ways:
    try:
        print(way())
    except PermissionError:
        print("refused")
os.setpriority(os.PRIO_PROCESS, 0, 5), os.sched_setaffinity(0, os.sched_getaffinity(0))
"""


@pytest.mark.parametrize("level", ["namespace", "none"])
async def test_a_command_has_no_descriptors_but_its_own(level: Isolation):
    """The first one, which the agent itself starts, and others. With its connection they could speak for the agent,
    and with that of the process outside they could take the place of other sandboxes."""
    line = "for fd in 3 4 5 6 7 8 9; do (eval ': >&'$fd) 2>/dev/null && echo $fd; done; echo end"
    async with LocalProvider(level=level) as provider:
        for _ in range(2):
            sandbox = await provider.create(SandboxSpec(isolation=level, network="open"))
            assert (await sandbox.exec(line)).stdout == b"end\n"
            await sandbox.start(Command(command="sleep 60"))
            assert (await sandbox.exec(line)).stdout == b"end\n"


async def test_the_agents_own_limits_and_priority_are_out_of_reach(sandbox: Sandbox):
    """A command changes its own, and nobody's by number 1 or by user: the agent's deadlines depend on those."""
    result = await sandbox.exec(["python3", "-c", CHANGES])
    assert result.stdout_text.split() == ["refused"] * 6
    assert result.exit_code == 0, result.stderr_text
    assert (await sandbox.exec("echo on")).stdout == b"on\n"


async def test_a_request_that_cannot_be_read_ends_no_other_sandbox(local_provider: LocalProvider, sandbox: Sandbox):
    """The process that starts all of a provider's sandboxes outlives names that are bytes, and nonsense."""
    named = await local_provider.create(SandboxSpec(workdir="/a\udcff"))
    assert (await named.exec("pwd")).stdout == b"/a\xff\n"
    spawner = local_provider._spawner
    assert spawner is not None
    await spawner._send(b'{"id": "nonsense", "arguments": [1]}', [])
    assert await local_provider.create(SandboxSpec())
    assert (await sandbox.exec("echo on")).stdout == b"on\n"


async def test_a_command_that_is_not_made_leaves_nobody_waiting(sandbox: Sandbox):
    """Those that wait are told that the sandbox has ended, also after one that raised before it was sent."""
    command = Command(command="true")
    with pytest.raises(TypeError):
        GuestProcess(sandbox.channel, command, [b"/", "no bytes"], judge=sandbox.judge)  # type: ignore[attr-defined]
    waiting = asyncio.ensure_future(sandbox.exec("sleep 60"))
    await asyncio.sleep(0)
    await sandbox.delete()
    with pytest.raises(SandboxDiedError):
        await waiting


async def test_far_deadlines_and_words_that_no_program_takes_are_no_end_of_a_sandbox(sandbox: Sandbox):
    """The agent counts to the far end of time, and refuses what only its system refuses."""
    result = await sandbox.exec("sleep 0.1; echo on", timeout=1e300, silence=1e18)
    assert result.stdout == b"on\n"
    assert (await sandbox.exec(["."])).exit_code == 126
    assert await sandbox.alive()


async def test_files_of_terabytes_are_refused_at_once(sandbox: Sandbox, tmp_path: Path):
    """They take no room where they are; here they would."""
    await sandbox.exec("mkdir tree; truncate -s 4T tree/file")
    with pytest.raises(SandboxPathError, match="256 MiB"):
        await sandbox.read("tree/file")
    assert len(await sandbox.read("tree/file", size=1 << 20)) == 1 << 20
    with pytest.raises(SandboxPathError, match="too large"):
        await sandbox.download("tree", tmp_path / "tree")
    assert not list(tmp_path.iterdir())
    assert (await sandbox.exec("ps ax | wc -l")).exit_code == 0
    for text in ("a\0b", "half \ud800"):
        with pytest.raises(SandboxPathError):
            await sandbox.read(text)


@pytest.mark.parametrize("level", ["namespace", "none"])
async def test_files_that_nobody_else_may_read_are_no_hindrance(level: Isolation):
    """A strict umask is usual on shared machines; sandboxes are other users."""
    before = os.umask(0o077)
    try:
        async with LocalProvider(level=level) as provider:
            sandbox = await provider.create(SandboxSpec(isolation=level, network="open"))
            result = await sandbox.exec("cat /etc/hosts > copy && python3 -c 'print(1)'")
            assert result.stdout == b"1\n", result.stderr_text
    finally:
        os.umask(before)


async def test_no_place_for_what_sandboxes_need_is_said_with_what_to_do(tmp_path: Path):
    """A full or missing disk is a failure of the platform, with the directory that may be changed."""
    (tmp_path / "file").touch()
    async with LocalProvider(root=tmp_path / "file" / "below") as provider:
        with pytest.raises(SandboxCreationError, match="file") as told:
            await provider.create(SandboxSpec())
    assert "root=" in str(told.value.hint)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what that user leaves open
def test_a_provider_outlives_an_event_loop_and_serves_one_at_a_time():
    """What the loop before has made is ended and cannot be spoken to, and nobody waits for it."""

    async def made() -> Sandbox:
        return await provider.create(SandboxSpec())

    async def again(old: Sandbox) -> None:
        for call in (lambda: old.exec("true"), old.alive, lambda: old.read("/etc/hosts"), old.delete):
            with pytest.raises(ConfigError, match="another event loop"):
                await call()
        new = await made()
        assert (await new.exec("echo on")).stdout == b"on\n"
        with pytest.raises(ConfigError, match="two event loops"):
            await asyncio.to_thread(asyncio.run, made())
        assert [one.id for one in await provider.list()] == [new.id]
        await new.delete()
        await provider.close()

    provider = LocalProvider()
    left = asyncio.run(made())
    state = provider._state
    asyncio.run(again(left))
    assert state is not None and not state.exists()
    del left
    gc.collect()
