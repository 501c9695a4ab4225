"""The same against a container engine of this machine, where one answers: `make test-docker`."""

import pytest

from verifiers.errors import SandboxError
from verifiers.sandboxes.docker.provider import DockerProvider
from verifiers.sandboxes.spec import SandboxSpec

pytestmark = pytest.mark.docker


@pytest.fixture(params=["docker", "podman"])
async def provider(request):
    """Each engine that answers."""
    provider = DockerProvider(engine=request.param)
    try:
        await provider.capabilities()
    except SandboxError as error:
        await provider.close()
        pytest.skip(f"{error} {error.hint}")
    async with provider:
        yield provider


async def test_commands_limits_and_files_of_a_real_container(provider):
    """A container runs commands, keeps its limits, kills at a deadline, has files, and is gone afterwards."""
    sandbox = await provider.create(SandboxSpec(memory=128, pids=32, disk=16))
    assert (await sandbox.exec("cat; pwd; exit 3", stdin=b"in\n")).stdout == b"in\n/workspace\n"
    late = await sandbox.exec("setsid sleep 7801 & echo x; sleep 7801", timeout=0.5)
    assert (late.reason, late.stdout) == ("timeout", b"x\n")
    seen = await sandbox.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "sleep 7801" not in seen.stdout_text
    await sandbox.write("deep/file", b"x" * 3_000_000)
    assert await sandbox.read("deep/file", offset=2_999_998) == b"xx"
    assert "No space" in (await sandbox.exec("head -c 40000000 /dev/zero > big")).stderr_text
    reach = "import socket; socket.create_connection(('192.0.2.1', 80), 2)"
    assert "unreachable" in (await sandbox.exec(["python3", "-c", reach])).stderr_text
    hog = await sandbox.exec(["/bin/sh", "-c", 'python3 -c "x = bytearray(1 << 30)" 2>/dev/null; exit 0'])
    assert hog.oom_killed
    usage = await sandbox.usage()
    assert usage.memory
    async with await sandbox.interpreter() as python:
        assert (await python.run("1 + 1")).value == "2"
    await sandbox.delete()
    assert not await sandbox.alive()
    assert await provider.reap_orphans() == 0
