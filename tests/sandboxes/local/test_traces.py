"""What sandboxes leave on the machine: nothing, however they and their owner end."""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from verifiers.errors import SandboxDiedError
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.spec import SandboxSpec, command

OWNER = """
import asyncio, sys
from verifiers.errors import SandboxDiedError
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.spec import SandboxSpec, command

async def main():
    async with LocalProvider() as provider:
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.start(command(f"(setsid sleep {sys.argv[1]} &); echo on; sleep {sys.argv[1]}"))
        await anext(process.output())
        result = await sandbox.exec("id -u; echo x > file && cat file; touch /usr/x || echo no")
        print(result.stdout.split(), flush=True)

asyncio.run(main())
"""
SAYS = "[b'1000', b'x', b'no']\n"


def running(marker):
    """How many processes have this word in their arguments."""
    count = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        count += words[0].endswith(b"sleep") and marker.encode() in words
    return count


def a_marker():
    """Seconds that nobody else sleeps for."""
    return str(random.SystemRandom().randrange(10**8, 10**9))


def until_gone(marker):
    end = time.monotonic() + 20
    while running(marker):
        assert time.monotonic() < end, "processes live on"
        time.sleep(0.02)


def test_no_privileges_are_needed():
    """A user without any rights has the same sandboxes, where there are user namespaces."""
    if os.geteuid() != 0:
        pytest.skip("every other test here runs without privileges, then")
    marker = a_marker()
    unprivileged = [shutil.which("unshare"), "--user", "--map-user=4321", "--map-group=4321"]
    line = [*unprivileged, sys.executable, "-c", OWNER, marker]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, SAYS), ran.stderr
    until_gone(marker)


def counted(owner):
    """What this process has of what a sandbox takes: open files, tasks, control groups."""
    return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), len(owner.sandboxes())


async def test_nothing_grows_when_sandboxes_come_and_go():
    """Files, tasks, groups, children are as many afterwards, whatever was cancelled at whatever moment."""
    marker, rng = a_marker(), random.Random(5)

    async def visit(provider):
        sandbox = await provider.create(SandboxSpec())
        await sandbox.start(command(f"sleep {marker}"))
        await sandbox.exec(f"(setsid sleep {marker} &)")
        await sandbox.delete()

    async with LocalProvider() as provider:
        await visit(provider)
        owner = provider._confiner.owner
        before = counted(owner)
        for _ in range(6):
            tasks = [asyncio.create_task(visit(provider)) for _ in range(4)]
            for task in tasks[1:]:
                await asyncio.sleep(rng.uniform(0, 0.02))
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(one.delete() for one in list(provider._sandboxes.values())))
        assert counted(owner) == before
        assert running(marker) == 0
        children = Path(f"/proc/{provider._spawner.process.pid}/task/{provider._spawner.process.pid}/children")
        assert children.read_text().split() == []
        state = provider._state
    assert not state.exists()
    assert owner.sandboxes() == []


async def test_an_agent_that_does_not_answer_is_ended(local_provider, sandbox, monkeypatch):
    """The host keeps the deadline, too: whatever holds the agent up, its sandbox is dead then, and gone."""
    monkeypatch.setattr("verifiers.sandboxes.host.process.GRACE_S", 0.1)
    bubblewrap = sandbox.life.child.pid
    os.kill(int(Path(f"/proc/{bubblewrap}/task/{bubblewrap}/children").read_text()), signal.SIGSTOP)
    with pytest.raises(SandboxDiedError):
        await sandbox.exec("true", timeout=0.1)
    await sandbox.delete()
    assert not os.path.exists(f"/proc/{bubblewrap}")
    assert await local_provider.list() == []


async def test_the_loss_of_the_spawner_costs_no_more_than_its_sandboxes(local_provider, sandbox):
    """They are dead, and say so; the next one has a new spawner."""
    marker = a_marker()
    await sandbox.start(command(f"sleep {marker}"))
    local_provider._spawner.process.kill()
    with pytest.raises(SandboxDiedError):
        await sandbox.exec("sleep 1000", timeout=None)
    await sandbox.delete()
    until_gone(marker)
    assert (await (await local_provider.create(SandboxSpec())).exec("echo on")).stdout == b"on\n"
