"""Limits of a local sandbox against code that wants more: what gives way is inside, and is named."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from verifiers.sandboxes.local import cgroups, identity, probe
from verifiers.sandboxes.local.cgroups import Cgroups
from verifiers.sandboxes.local.confinement import Confiner
from verifiers.sandboxes.local.identity import Identities
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.spec import SandboxSpec

pytestmark = pytest.mark.skipif(
    bool(probe.failed("namespace")), reason=f"doctor: {[check.found for check in probe.failed('namespace')]}"
)
FOUND = cgroups.find()
grouped = pytest.mark.skipif(bool(FOUND.findings), reason=f"doctor: cgroups: {FOUND.findings}")


@pytest.fixture
async def provider() -> AsyncIterator[LocalProvider]:
    async with LocalProvider() as provider:
        yield provider


ALLOCATE = """
import os, signal
for _ in range(9):
    if os.fork() == 0:
        held = bytearray(24 << 20)
        signal.pause()
print(os.WTERMSIG(os.wait()[1]))
"""


@grouped
async def test_many_small_allocators_meet_the_limit_together(provider: LocalProvider) -> None:
    """Memory is the sandbox's, not each process's; the agent outlives it, and only that command is said to be hit."""
    sandbox, neighbour = await asyncio.gather(*(provider.create(SandboxSpec(memory=64)) for _ in range(2)))
    result = await sandbox.exec(["python3", "-I", "-S", "-c", ALLOCATE], kill_leftovers=True)
    assert (result.exit_code, result.stdout, result.oom_killed, result.reason) == (0, b"9\n", True, "oom")
    assert (await sandbox.exec("echo on")).stdout == b"on\n"
    later = await sandbox.exec("true")
    assert (later.oom_killed, later.reason) == (False, "exited")
    assert not (await neighbour.exec("true")).oom_killed
    usage = await sandbox.usage()
    assert usage.peak_memory is None or usage.peak_memory <= (64 + 32) << 20


@grouped
async def test_files_that_fill_the_memory_end_as_a_full_disk(provider: LocalProvider) -> None:
    """Files lie in memory: with more disk than memory the command is told that the disk is full, and nothing dies."""
    sandbox = await provider.create(SandboxSpec(memory=48, disk=1024))
    result = await sandbox.exec("dd if=/dev/zero of=big bs=1M count=500 2>&1 | tail -c 300; dd if=/dev/zero of=/tmp/b")
    assert b"No space left" in result.stdout
    assert not result.oom_killed
    assert (await sandbox.read("big", size=4)) == b"\0\0\0\0"
    assert (await sandbox.exec("rm big && echo small > small && cat small")).stdout == b"small\n"


@grouped
async def test_fifty_spinners_get_the_share_they_were_given(provider: LocalProvider) -> None:
    """The kernel knows their share, the deadline ends all of them, and the sandbox goes on."""
    sandbox = await provider.create(SandboxSpec(cpu=0.5))
    spin = "i=0; while [ $i -lt 50 ]; do (while :; do :; done) & i=$((i + 1)); done; wait"
    result = await sandbox.exec(spin, timeout=1)
    assert result.timed_out
    assert (await sandbox.exec("echo on")).stdout == b"on\n"
    (tree,) = [tree for tree in FOUND.trees if "cpu" in tree.controllers]
    (path,) = Path(tree.base).glob(f"vf-*-{sandbox.id}")
    if tree.version == 1:
        share = [(path / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")]
    else:
        share = (path / "cpu.max").read_text().split()
    assert int(share[0]) / int(share[1]) == 0.5


@grouped
async def test_a_limit_of_none_is_none(provider: LocalProvider) -> None:
    """What was not limited is not: there may be more processes than by default."""
    sandbox = await provider.create(SandboxSpec(memory=None, pids=None, disk=None, inodes=None, cpu=None))
    many = "import os, signal\nfor _ in range(300):\n    if os.fork() == 0:\n        signal.pause()"
    result = await sandbox.exec(["python3", "-I", "-S", "-c", many], kill_leftovers=True)
    assert (result.exit_code, result.reason, result.killed_leftovers) == (0, "exited", 300), result.stderr


async def test_without_groups_the_limits_are_weaker_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each process and of the user: declared, and they hold."""
    monkeypatch.setattr(cgroups, "find", lambda: Cgroups((), {"memory": "refused"}))
    async with LocalProvider() as provider:
        found = await provider.capabilities()
        assert {"memory", "pids", "disk"} <= found.limits
        assert "cpu" not in found.limits
        assert "RLIMIT_DATA" in found.weak["memory"] and "RLIMIT_NPROC" in found.weak["pids"]
        sandbox = await provider.create(SandboxSpec(memory=128, pids=24))
        result = await sandbox.exec("python3 -I -S -c 'bytearray(500 << 20)'")
        assert (result.exit_code, b"MemoryError" in result.stderr, result.oom_killed) == (1, True, False)
        if identity.blocks_here()[1]:
            many = await sandbox.exec("for i in $(seq 60); do sleep 1000 & done; echo $!", kill_leftovers=True)
            assert b"fork" in many.stderr.lower()
        assert (await sandbox.exec("echo on")).stdout == b"on\n"


@pytest.mark.skipif(not identity.blocks_here()[1], reason="this process may not become other users")
async def test_each_sandbox_has_a_user_of_its_own(provider: LocalProvider, tmp_path: Path) -> None:
    """Two sandboxes of one provider, and of two, never share an id; none is this process's."""
    async with LocalProvider() as other:
        sandboxes = [await one.create(SandboxSpec()) for one in (provider, provider, other)]
        owners = {Path(f"/proc/{await _host_pid(sandbox.id)}").stat().st_uid for sandbox in sandboxes}
    assert len(owners) == 3
    assert min(owners) >= identity.blocks_here()[0]


async def _host_pid(sandbox_id: str) -> int:
    """The number on the host of a process of a sandbox."""
    (path,) = Path(FOUND.trees[0].base).glob(f"vf-*-{sandbox_id}")
    return int((path / "cgroup.procs").read_text().split()[-1])


def test_a_confiner_that_is_refused_a_limit_gives_the_id_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All or nothing: no group, no directory and no id is lost."""
    confiner = Confiner(tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Cgroups, "make", refuse)
    before = confiner.identities and len(confiner.identities._free)
    with pytest.raises(Exception, match="limits could not be set"):
        confiner.prepare("x", SandboxSpec())
    assert (confiner.identities and len(confiner.identities._free)) == before
    assert confiner.owner.sandboxes() == []
    confiner.close()


@grouped
def test_what_resists_at_the_end_is_left_to_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything of the owner's is removed; a group that cannot be keeps its record, without one the record goes."""
    confiner, tidy = Confiner(tmp_path), Confiner(tmp_path)
    confinement = confiner.prepare("x", SandboxSpec())
    tidy.prepare("y", SandboxSpec())
    tidy.close()
    assert not tidy.owner.record.exists() and tidy.owner.sandboxes() == []
    with monkeypatch.context() as patch:
        patch.setattr(cgroups.Group, "remove", lambda *_: False)
        confiner.close()
    assert confiner.owner.record.exists() and confiner.owner.sandboxes() == ["x"]
    assert confinement.group.remove()
    confiner.owner.leave()


REACH = """
import ctypes, fcntl, json, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(function, *arguments):
    ctypes.set_errno(0)
    return ctypes.get_errno() if function(*arguments) == -1 else 0
def tried(action):
    try:
        action()
    except OSError as error:
        return error.errno
    return 0
agent = os.pidfd_open(1)
print(json.dumps({
    "mem": tried(lambda: open("/proc/1/mem", "r+b")),
    "environ": tried(lambda: open("/proc/1/environ").read()),
    "fd": tried(lambda: os.listdir("/proc/1/fd")),
    "root": tried(lambda: os.listdir("/proc/1/root")),
    "ptrace": call(libc.ptrace, 16, 1, 0, 0),
    "read": call(libc.process_vm_readv, 1, None, 0, None, 0, 0),
    "getfd": call(libc.syscall, 438, agent, 3, 0),
    "unshare": call(libc.unshare, 0x10000000),
    "mount": call(libc.mount, b"tmpfs", b"/tmp", b"tmpfs", 0, None),
    "alg": tried(lambda: socket.socket(38, socket.SOCK_SEQPACKET)),
    "type into the terminal": tried(lambda: fcntl.ioctl(0, 0x5412, b"x")),
    "raw": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
}))
"""


async def test_the_agent_and_the_kernel_are_out_of_reach(provider: LocalProvider) -> None:
    """Nothing of the first process can be read, traced or taken, and rarely used calls are refused; it goes on."""
    sandbox = await provider.create(SandboxSpec())
    status = (await sandbox.exec("cat /proc/self/status /proc/1/status")).stdout.decode().split("\n")
    assert [line for line in status if line.startswith("Seccomp:")] == ["Seccomp:\t2"] * 2
    assert [line for line in status if line.startswith("CapEff:")] == ["CapEff:\t" + "0" * 16] * 2
    result = await sandbox.exec(["python3", "-c", REACH])
    answers = json.loads(result.stdout)
    assert 0 not in answers.values(), answers
    for number in (1, 2, 3, 9, 13, 15, 19, 20):
        await sandbox.exec(f"kill -{number} 1")
    assert (await sandbox.exec("echo on")).stdout == b"on\n"


async def test_ids_are_claimed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider without the right to other users shares its own, and says that processes are counted together."""
    monkeypatch.setattr(Identities, "claim", lambda: None)
    monkeypatch.setattr(cgroups, "find", lambda: Cgroups((), {"pids": "refused"}))
    async with LocalProvider() as provider:
        assert "all sandboxes share" in (await provider.capabilities()).weak["pids"]


async def test_a_debugger_works_where_its_call_is_allowed_and_that_is_told() -> None:
    """One name out of the denied is let through; the others are not, and the capabilities say so."""
    async with LocalProvider(allowed_calls=("ptrace",)) as provider:
        assert "ptrace" in (await provider.capabilities()).weak["seccomp"]
        sandbox = await provider.create(SandboxSpec())
        trace = "import ctypes; libc = ctypes.CDLL(None); print(libc.ptrace(0, 0, 0, 0), libc.unshare(0x10000000))"
        assert (await sandbox.exec(["python3", "-c", trace])).stdout == b"0 -1\n"
