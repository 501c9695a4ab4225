"""What goes wrong between us and a container engine: nothing runs twice, nothing stays, each error says what to do."""

import asyncio
import json
import os
import sys

import pytest

from tests.support.fake_docker import DROP_AFTER, DROP_BEFORE, HALF, Container, FakeEngine, unusable
from tests.support.sandbox_providers import until
from verifiers.errors import (
    ConfigError,
    SandboxBusyError,
    SandboxCreationError,
    SandboxDiedError,
    SandboxError,
    SandboxUnreachableError,
    SandboxUnsupportedError,
)
from verifiers.sandboxes.docker import engine as engines
from verifiers.sandboxes.docker.container import OWNER_LABEL
from verifiers.sandboxes.docker.provider import DockerProvider
from verifiers.sandboxes.host import sandbox as host_sandbox
from verifiers.sandboxes.spec import Mount, SandboxSpec, Secret, command


@pytest.fixture
async def engine(tmp_path, monkeypatch):
    """A fake engine; tries again at once."""
    if missing := unusable():
        pytest.skip(missing)
    monkeypatch.setattr(engines, "PAUSE_S", 0.0)
    async with FakeEngine(tmp_path / "engine.sock", kind="docker") as engine:
        yield engine


@pytest.fixture
async def provider(engine):
    async with DockerProvider(engine.address) as provider:
        yield provider


async def test_broken_connections_start_one_container(engine, provider):
    """Wherever the connection breaks, each sandbox is one container that was started once."""
    for fault in (DROP_BEFORE, DROP_AFTER, HALF):
        engine.faults = [("POST", "/containers/create", fault), ("POST", "/start", fault), ("DELETE", "/vf-", fault)]
        sandbox = await provider.create(SandboxSpec())
        assert (engine.starts, len(engine.containers)) == (1, 1), fault
        assert (await sandbox.exec("echo on")).stdout == b"on\n"
        await sandbox.delete()
        assert not engine.faults
        assert not engine.containers
        engine.starts = 0


async def test_a_container_that_was_made_without_our_hearing_is_removed(engine, provider):
    """When all answers to a creation are lost the error says so, and no container stays."""
    engine.faults = [("POST", "/containers/create", DROP_AFTER)] * 3
    with pytest.raises(SandboxUnreachableError):
        await provider.create(SandboxSpec())
    assert ("DELETE", engine.requests[-1][1]) == engine.requests[-1]
    assert (engine.starts, engine.containers) == (0, {})


async def test_a_busy_engine_is_asked_again_and_then_named(engine, provider):
    """429 and 503 are waited for; an engine that stays busy is `SandboxBusyError`, and nothing is left."""
    engine.faults = [("POST", "/containers/create", 429), ("POST", "/start", 503)]
    await (await provider.create(SandboxSpec())).delete()
    engine.faults = [("POST", "/containers/create", 429)] * 3
    with pytest.raises(SandboxBusyError):
        await provider.create(SandboxSpec())
    assert not engine.containers


@pytest.mark.parametrize(
    ("at", "status"), [("/containers/create", 500), ("/containers/create", 409), ("/start", 500), ("/start", 404)]
)
async def test_a_refusal_is_a_failed_creation_and_leaves_nothing(engine, provider, at, status):
    """What the engine refuses is a creation error with its words; no container stays, and the next one works."""
    engine.faults = [("POST", at, status)]
    with pytest.raises(SandboxCreationError, match=r"a fault|No such container"):
        await provider.create(SandboxSpec())
    assert not engine.containers
    assert (await (await provider.create(SandboxSpec())).exec("true")).ok


async def test_images(engine, provider):
    """A missing image is fetched once; one that is nowhere, or without a Python that is new enough, is named."""
    first, second = await asyncio.gather(*(provider.create(SandboxSpec(image="fetched:1")) for _ in range(2)))
    assert engine.requests.count(("POST", "/images/create")) == 1
    assert {first.spec.image, second.spec.image} == {"fetched:1"}
    with pytest.raises(SandboxCreationError, match=r"nowhere:2.*manifest unknown"):
        await provider.create(SandboxSpec(image="nowhere:2"))
    with pytest.raises(SandboxUnsupportedError, match=r"no-python:1.*no python3") as refused:
        await provider.create(SandboxSpec(image="no-python:1"))
    assert "Python 3.9" in refused.value.hint
    with pytest.raises(SandboxUnsupportedError, match=r"old-python:1.*3\.8\.0"):
        await provider.create(SandboxSpec(image="old-python:1"))
    assert {one.body["Image"] for one in engine.containers.values()} == {"fetched:1"}
    async with DockerProvider(engine.address, pull=False) as careful:
        with pytest.raises(SandboxCreationError, match="nowhere") as missing:
            await careful.create(SandboxSpec(image="nowhere:2"))
    assert missing.value.hint == "docker pull nowhere:2"


async def test_a_container_that_dies_is_a_dead_sandbox(engine, provider):
    """When a container ends, what waits for it gets `SandboxDiedError`, and it is no longer listed."""
    sandbox = await provider.create(SandboxSpec())
    process = await sandbox.start(_endless())
    call = asyncio.create_task(sandbox.exec("sleep 1000", timeout=None))
    await anext(process.output())
    engine.kill(sandbox.id)
    for waiting in (call, process.wait()):
        with pytest.raises(SandboxDiedError):
            await waiting
    assert not await sandbox.alive()

    async def gone():
        return await provider.list() == [] and not engine.containers

    await until(gone)


async def test_a_container_ends_with_its_connection(engine, provider):
    """When nobody holds its streams any more, as after the end of this process, a container ends by itself."""
    sandbox = await provider.create(SandboxSpec())
    process = await sandbox.start(_endless())
    await anext(process.output())
    engine.faults = [("DELETE", "/vf-", 500)]  # whoever dies does not say good-bye
    sandbox.channel._transport.abort()

    async def gone():
        return not engine.containers

    await until(gone)
    assert not engine.faults


async def test_a_connection_that_freezes_is_noticed_without_a_deadline(engine, provider, monkeypatch):
    """A command that may run for ever is not waited for over a connection that says nothing any more."""
    monkeypatch.setattr(DockerProvider, "ping_s", 0.05)
    sandbox = await provider.create(SandboxSpec())
    process = await sandbox.start(_endless())
    await anext(process.output())
    assert await sandbox.alive()
    monkeypatch.setattr(host_sandbox, "ANSWER_S", 0.1)
    engine.containers[sandbox.id].frozen = True
    with pytest.raises(SandboxDiedError, match="does not answer"):
        await process.wait()
    await sandbox.delete()
    assert not engine.containers


OWNER = """
import asyncio, sys
from verifiers.sandboxes.docker.provider import DockerProvider
from verifiers.sandboxes.spec import SandboxSpec, command

async def main():
    provider = DockerProvider(sys.argv[1])
    sandbox = await provider.create(SandboxSpec())
    await sandbox.start(command("setsid sleep 7901 & sleep 7901", timeout=None))
    print("made", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


async def test_a_killed_process_leaves_no_container(engine):
    """After SIGKILL of the process that has it a container ends with all that runs in it, by itself."""
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, engine.address, stdout=-1)
    assert await owner.stdout.readline() == b"made\n"
    assert len(engine.containers) == 1
    owner.kill()
    await owner.wait()

    async def gone():
        return not engine.containers

    await until(gone)
    assert not any(method == "DELETE" for method, _ in engine.requests)


async def test_containers_of_owners_that_are_gone_are_reaped(engine, provider):
    """Those of a process that is gone are removed; ours, other programs' and those that cannot be judged stay."""
    mine = await provider.create(SandboxSpec())
    ours = engine.containers[mine.id].body["Labels"][OWNER_LABEL]
    pid, start, world = ours.split(" ", 2)
    labels = {
        "dead": {OWNER_LABEL: f"{pid} {int(start) + 1} {world}"},
        "elsewhere": {OWNER_LABEL: "7 7 another boot"},
        "other": {"com.example": "1"},
    }
    for name, label in labels.items():
        engine.containers[name] = Container(name, {"Labels": label, "HostConfig": {}}, None)
    assert await provider.reap_orphans() == 1
    assert set(engine.containers) == {mine.id, "elsewhere", "other"}
    engine.containers["elsewhere"].created -= 7200  # it never ran, and is old
    assert await provider.reap_orphans() == 1
    assert set(engine.containers) == {mine.id, "other"}
    assert (await mine.exec("true")).ok


async def test_an_engine_that_is_not_there_says_how_to_start_it(tmp_path, monkeypatch):
    """No socket, a socket without a listener and no address are errors of the user's, with what to do."""
    (tmp_path / "dead.sock").touch()
    for name in ("none.sock", "dead.sock"):
        provider = DockerProvider(f"unix://{tmp_path}/{name}")
        with pytest.raises(SandboxUnsupportedError, match=name) as absent:
            await provider.create(SandboxSpec())
        assert "systemctl start docker" in absent.value.hint
        await provider.close()
    with pytest.raises(ConfigError, match="nonsense"):
        DockerProvider("nonsense")
    assert engines.find("docker", {}) == "unix:///var/run/docker.sock"
    assert engines.find("docker", {"DOCKER_HOST": "tcp://h:1"}) == "tcp://h:1"
    assert engines.find("podman", {"XDG_RUNTIME_DIR": str(tmp_path)}) == "unix:///run/podman/podman.sock"


async def test_an_engine_that_goes_is_unreachable(engine, provider):
    """When the engine stops answering in between, that is said; a sandbox that could not be removed is told."""
    sandbox = await provider.create(SandboxSpec())
    engine.faults = [("GET", "/stats", DROP_BEFORE)] * 20
    with pytest.raises(SandboxUnreachableError, match="engine"):
        await sandbox.usage()
    engine.faults = [("DELETE", "/vf-", 500)]
    with pytest.raises(SandboxError, match="a fault"):
        await sandbox.delete()
    await sandbox.delete()
    assert not engine.containers


async def test_what_a_container_is_made_of(engine, provider, tmp_path):
    """A container has no rights and no network, its limits, its owner's label, and no secret."""
    spec = SandboxSpec(
        memory=100, cpu=0.5, pids=9, disk=7, inodes=300, labels={"run": "r"}, secrets={"TOKEN": Secret("s3cret")},
        mounts=(Mount(str(tmp_path), "/data"),),
    )  # fmt: skip
    sandbox = await provider.create(spec)
    body = engine.containers[sandbox.id].body
    host = body["HostConfig"]
    assert (host["NetworkMode"], host["CapDrop"], host["SecurityOpt"]) == ("none", ["ALL"], ["no-new-privileges"])
    assert (host["NanoCpus"], host["ReadonlyRootfs"], host["AutoRemove"]) == (500_000_000, True, True)
    assert host["Memory"] == host["MemorySwap"] >= 100 << 20
    assert host["PidsLimit"] >= 9
    assert set(host["Tmpfs"]) == {"/tmp", "/var/tmp", "/home/sandbox", "/workspace"}
    assert "size=7340032" in host["Tmpfs"]["/workspace"]
    assert "nr_inodes=300" in host["Tmpfs"]["/workspace"]
    assert host["Mounts"][0]["ReadOnly"] is True
    assert body["Labels"]["verifiers.label.run"] == "r"
    assert body["Labels"][OWNER_LABEL].startswith(f"{os.getpid()} ")
    assert "s3cret" not in json.dumps(body)
    assert (await sandbox.exec("echo $TOKEN $IMAGE_SAYS")).stdout == b"s3cret hello\n"
    with pytest.raises(SandboxUnsupportedError, match="directory"):
        await provider.create(SandboxSpec(image="/some/folder"))


def _endless():
    return command("echo x; sleep 1000", timeout=None)
