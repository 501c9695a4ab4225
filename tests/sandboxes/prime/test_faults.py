"""What goes wrong between us and Prime's service: nothing runs twice, nothing stays, each error says what to do."""

import asyncio

import pytest

from tests.support.fake_docker import unusable
from tests.support.fake_prime import DROP_AFTER, DROP_BEFORE, HALF, HASTY, KEY, FakePrime, Machine
from tests.support.sandbox_providers import until
from verifiers.errors import (
    SandboxBusyError,
    SandboxCreationError,
    SandboxDiedError,
    SandboxError,
    SandboxUnreachableError,
    SandboxUnsupportedError,
)
from verifiers.sandboxes.prime.provider import PrimeProvider
from verifiers.sandboxes.spec import Mount, SandboxSpec, Secret, command


@pytest.fixture
async def service():
    if missing := unusable():
        pytest.skip(missing)
    async with FakePrime() as service:
        yield service


@pytest.fixture
async def provider(service):
    async with PrimeProvider(KEY, url=service.url, patience=HASTY) as provider:
        yield provider


async def test_broken_connections_make_one_machine_and_one_agent(service, provider):
    """Wherever the connection breaks before its agent runs, each sandbox is one machine with one agent."""
    for count, fault in enumerate((DROP_BEFORE, DROP_AFTER, HALF, 502, 409), 1):
        service.faults = [
            ("POST", "/api/v1/sandbox", fault), ("GET", "/api/v1/sandbox/", fault), ("POST", "/auth", fault),
            ("DELETE", "/sandbox/", fault),
        ]  # fmt: skip
        sandbox = await provider.create(SandboxSpec())
        assert (service.creations, service.starts, len(service.machines)) == (count, count, 1), fault
        assert (await sandbox.exec("echo on")).stdout == b"on\n"
        await sandbox.delete()
        assert not service.faults
        assert not service.machines


async def test_input_arrives_once_over_connections_that_break(service, provider):
    """A piece of input whose call breaks is sent again, and one that had arrived is not taken twice."""
    sandbox = await provider.create(SandboxSpec())
    for fault in (DROP_BEFORE, DROP_AFTER, HALF, 502):
        service.faults = [("POST", "/SendInput", fault)] * 2
        result = await sandbox.exec("echo ran >> log; wc -c", stdin=bytes(600_000))
        assert result.stdout.split() == [b"600000"], fault
        assert not service.faults
    assert await sandbox.read("log") == b"ran\n" * 4


async def test_an_agent_is_not_started_twice(service, provider):
    """A start that broke after it was sent is a failed creation, and the machine is deleted."""
    service.faults = [("STARTED", "/Start", DROP_AFTER)]
    with pytest.raises(SandboxCreationError):
        await provider.create(SandboxSpec())
    assert (service.creations, service.starts) == (1, 1)
    assert not service.machines
    service.faults = [("POST", "/Start", 503)] * 3  # it was not started: the gateway does not reach the machine yet
    sandbox = await provider.create(SandboxSpec())
    assert (await sandbox.exec("true")).ok
    assert service.starts == 2


async def test_a_service_that_is_busy_or_broken_is_named(service, provider):
    """429 is `SandboxBusyError` after several attempts, 500 an error; what was made without our hearing is deleted."""
    service.faults = [("POST", "/api/v1/sandbox", 429)] * HASTY.attempts
    with pytest.raises(SandboxBusyError):
        await provider.create(SandboxSpec())
    service.faults = [("POST", "/api/v1/sandbox", DROP_AFTER)] * HASTY.attempts
    with pytest.raises(SandboxUnreachableError):
        await provider.create(SandboxSpec())
    assert service.creations == 1
    assert not service.machines
    service.faults = [("DELETE", "/sandbox/", 500)] * HASTY.attempts
    sandbox = await provider.create(SandboxSpec())
    with pytest.raises(SandboxError, match="a fault"):
        await sandbox.delete()
    assert len(service.machines) == 1
    await sandbox.delete()
    assert not service.machines


async def test_a_machine_that_the_service_ends_is_a_dead_sandbox(service, provider):
    """What waits for it is told why the service has ended it."""
    sandbox = await provider.create(SandboxSpec())
    process = await sandbox.start(command("echo x; sleep 1000", timeout=None))
    await anext(process.output())
    await service.end(sandbox.id, "OOM_KILLED", "out of memory")
    with pytest.raises(SandboxDiedError, match="OOM_KILLED out of memory"):
        await process.wait()
    assert not await sandbox.alive()

    async def gone():
        return await provider.list() == [] and not service.machines

    await until(gone)


async def test_a_connection_that_is_lost_is_told_from_a_dead_machine(service, provider):
    """When input cannot be brought to a machine that runs, the error says that; the machine is deleted."""
    sandbox = await provider.create(SandboxSpec())
    service.faults = [("POST", "/SendInput", 502)] * HASTY.attempts
    with pytest.raises(SandboxUnreachableError, match="broke"):
        await sandbox.exec("true")

    async def gone():
        return not service.machines

    await until(gone)


async def test_a_token_is_renewed(service, provider):
    """A token that is nearly over is not used; one that the gateway refuses is fetched anew."""
    service.token_seconds = 1
    sandbox = await provider.create(SandboxSpec())
    assert (await sandbox.exec("true")).ok
    service.token_seconds = 3600
    assert (await sandbox.exec("true")).ok
    service.tokens.clear()
    assert (await sandbox.exec("echo on")).stdout == b"on\n"


async def test_machines_are_deleted_together_and_orphans_found(service, provider):
    """Closing deletes all in one request; machines of a process that is gone are reaped, others' are left."""
    await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(3)))
    mine = next(iter(service.machines.values())).body["labels"]
    owner = next(label for label in mine if label.startswith("verifiers-owner="))
    pid, start, world = owner.removeprefix("verifiers-owner=").split("-")
    for name, other in {"dead": f"{pid}-{int(start) + 1}-{world}", "elsewhere": f"{pid}-1-another"}.items():
        service.machines[name] = Machine(name, {"name": name, "docker_image": "x",
                                                "labels": ["verifiers", f"verifiers-owner={other}"]})  # fmt: skip
    assert await provider.reap_orphans() == 1
    assert len(service.machines) == 4
    service.requests.clear()
    await provider.close()
    assert set(service.machines) == {"elsewhere"}
    assert [one for one in service.requests if one[0] == "DELETE"] == [("DELETE", "/api/v1/sandbox")]


async def test_what_is_asked_for_and_what_is_refused(service, provider, tmp_path):
    """Limits, network and labels are the request's; secrets are not in it; what cannot be given fails at create."""
    spec = SandboxSpec(cpu=0.5, memory=512, disk=2048, lifetime=90, network=("pypi.org",), labels={"run": "r"},
                       secrets={"TOKEN": Secret("s3cret")})  # fmt: skip
    sandbox = await provider.create(spec)
    body = next(iter(service.machines.values())).body
    assert (body["cpu_cores"], body["memory_gb"], body["disk_size_gb"], body["timeout_minutes"]) == (0.5, 0.5, 2.0, 2)
    assert (body["network_allowlist"], body["docker_image"], body["vm"]) == (["pypi.org"], "python:3.11-slim", True)
    assert "run=r" in body["labels"]
    assert "s3cret" not in str(body)
    assert (await sandbox.exec("echo $TOKEN")).stdout == b"s3cret\n"
    refused = {
        "mounts": SandboxSpec(mounts=(Mount(str(tmp_path), "/data"),)),
        "24 hours": SandboxSpec(lifetime=90_000),
        "256": SandboxSpec(network=tuple(f"h{n}.org" for n in range(257))),
        "directory": SandboxSpec(image="/some/folder"),
        "nowhere:1": SandboxSpec(image="nowhere:1"),
        "no-python:1": SandboxSpec(image="no-python:1"),
    }
    for words, one in refused.items():
        with pytest.raises(SandboxUnsupportedError, match=words):
            await provider.create(one)
    assert len(service.machines) == 1


async def test_a_key_is_needed(service, monkeypatch):
    """Without a key, and with a wrong one, the error says where to get one; the key is in no message."""
    monkeypatch.delenv("PRIME_API_KEY", raising=False)
    async with PrimeProvider(url=service.url) as provider:
        with pytest.raises(SandboxUnsupportedError, match="no key") as missing:
            await provider.create(SandboxSpec())
    assert "PRIME_API_KEY" in missing.value.hint
    async with PrimeProvider("pit_wrong", url=service.url, patience=HASTY) as provider:
        with pytest.raises(SandboxUnsupportedError, match="401") as wrong:
            await provider.create(SandboxSpec())
    assert "PRIME_API_KEY" in wrong.value.hint
    assert "pit_wrong" not in f"{wrong.value}{wrong.value.hint}"
