"""Isolation levels of the local provider: each is what it says, or is refused; nothing weaker takes its place."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from verifiers.errors import SandboxDiedError, SandboxUnsupportedError
from verifiers.sandboxes.local import identity, probe
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.sandbox import Sandbox
from verifiers.sandboxes.spec import Mount, SandboxSpec

LOWER = [
    pytest.param("landlock", marks=pytest.mark.skipif(bool(probe.failed("landlock")), reason="doctor: no landlock")),
    "none",
]
NETWORK = {"landlock": "none", "none": "open"}


@pytest.fixture(params=LOWER)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[Sandbox]:
    async with LocalProvider(level=request.param) as provider:
        assert (await provider.capabilities()).isolation == request.param
        yield await provider.create(SandboxSpec(isolation=request.param, network=NETWORK[request.param]))


def _processes(word: str) -> list[int]:
    """Processes with a word in their command line."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and word.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


async def test_files_and_commands_meet_in_its_own_directory(sandbox: Sandbox) -> None:
    """What is written below the workdir is where commands start; temporary files and home are its own, too."""
    await sandbox.write("/workspace/a/b", b"there")
    assert (await sandbox.exec("cat a/b")).stdout == b"there"
    assert (await sandbox.exec("cat b", cwd="/workspace/a")).stdout == b"there"
    assert (await sandbox.exec("echo x > $TMPDIR/t; echo y > ~/h; cd; pwd")).ok
    assert (await sandbox.read("/tmp/t"), await sandbox.read("/home/sandbox/h")) == (b"x\n", b"y\n")
    assert [entry.path.rpartition("/")[2] for entry in await sandbox.list("/workspace")] == ["a"]


async def test_what_leaves_its_session_ends_with_the_command_or_the_sandbox(sandbox: Sandbox) -> None:
    """Without a PID namespace, too: descendants of a command at its deadline, everything at the end."""
    word = f"79{os.getpid()}"
    result = await sandbox.exec(f"setsid sleep {word}1 & (trap '' TERM; sleep {word}2)", timeout=0.2)
    assert result.timed_out
    assert _processes(word) == []
    await sandbox.exec(f"(setsid sleep {word}3 &)")
    assert len(_processes(word)) == 1
    await sandbox.delete()
    assert _processes(word) == []


@pytest.mark.skipif(not identity.blocks_here()[1], reason="this process may not become other users")
async def test_killing_everything_within_reach_ends_the_sandbox_alone(sandbox: Sandbox) -> None:
    """A signal to all of its user: the sandbox has died, its provider and a neighbour have not."""
    with pytest.raises(SandboxDiedError):
        await sandbox.exec("kill -9 -1")
    assert not await sandbox.alive()
    await sandbox.delete()


REDUCED = """
import asyncio
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.spec import SandboxSpec

async def main():
    async with LocalProvider() as provider:
        sandbox = await provider.create(SandboxSpec())
        line = "id -u; grep -E '^(CapEff|CapBnd|Seccomp):' /proc/self/status | tr -d '\\n'; ls /etc/ssl/private"
        print((await sandbox.exec(line)).stdout.decode().split())

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to give up")
@pytest.mark.parametrize("missing", ["sys_admin", "setuid"])
def test_root_with_less_than_all_rights_keeps_nothing_inside(missing: str) -> None:
    """Root in a container, say: without ids to give out or mounts of its own, a sandbox still has no rights at all."""
    if probe.failed("namespace"):
        pytest.skip("doctor: no namespaces here")
    line = ["setpriv", f"--bounding-set=-{missing}", sys.executable, "-c", REDUCED]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    none = "0" * 16
    assert done.stdout.strip() == str(["1000", "CapEff:", f"{none}CapBnd:", f"{none}Seccomp:", "2"]), done.stderr


async def test_a_level_above_the_providers_is_refused() -> None:
    """Whoever asks for namespaces does not get less."""
    async with LocalProvider(level="none") as provider:
        with pytest.raises(SandboxUnsupportedError, match="'namespace' was asked for"):
            await provider.create(SandboxSpec())
        with pytest.raises(SandboxUnsupportedError, match="network"):
            await provider.create(SandboxSpec(isolation="none"))
        mount = Mount(source="/usr", target="/there")
        with pytest.raises(SandboxUnsupportedError, match="mounts"):
            await provider.create(SandboxSpec(isolation="none", network="open", mounts=(mount,)))


async def test_a_level_that_the_machine_refuses_is_no_lower_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider fails closed with the finding, before anything runs."""
    refused = probe.Check("user namespaces", False, "switched off", fix="Switch them on.")
    found = {one.name: one for one in probe.checks()} | {refused.name: refused}
    monkeypatch.setattr(probe, "check", found.__getitem__)
    provider = LocalProvider()
    with pytest.raises(SandboxUnsupportedError, match="switched off") as raised:
        await provider.create(SandboxSpec(isolation="none"))
    assert "Switch them on." in str(raised.value.hint)
    with pytest.raises(SandboxUnsupportedError):
        await provider.capabilities()
    await provider.close()
