"""From create to delete: all or nothing, found by id and label, gone for good, and never mistaken for a result."""

import asyncio
import random

import pytest

from tests.support.sandbox_providers import until
from verifiers.errors import (
    ConfigError,
    SandboxCreationError,
    SandboxDiedError,
    SandboxError,
    SandboxUnsupportedError,
)
from verifiers.sandboxes.spec import Mount, Secret, command


async def test_labels_find_and_delete(provider, spec):
    """A sandbox is listed with its labels and age; deleting by labels takes those that have them all."""
    made = await asyncio.gather(*(provider.create(spec(labels={"run": "r", "n": str(n % 2)})) for n in range(4)))
    other = await provider.create(spec(labels={"n": "0"}))
    listed = await provider.list({"run": "r", "n": "0"})
    assert {info.id for info in listed} == {made[0].id, made[2].id}
    assert all(info.labels["run"] == "r" and info.age >= 0 and info.isolation for info in listed)
    assert len({one.id for one in [*made, other]}) == len(await provider.list()) == 5
    assert await provider.delete_many({"run": "r", "n": "1"}) == 2
    assert {info.id for info in await provider.list()} == {made[0].id, made[2].id, other.id}
    assert not await made[1].alive()
    assert (await other.exec("echo on")).ok
    assert await provider.delete_many({"run": "r", "n": "1"}) == 0


async def test_a_deleted_sandbox_is_gone_for_everybody(provider, sandbox):
    """Deleting works once, twice and five times at once; afterwards every use is `SandboxDiedError`, never a result."""
    found = await provider.get(sandbox.id)
    assert (found.id, await found.alive()) == (sandbox.id, True)
    process = await sandbox.start(command("echo x; sleep 1000", timeout=None))
    call = asyncio.create_task(sandbox.exec("sleep 1000", timeout=None))
    await anext(process.output())
    await asyncio.gather(*(one.delete() for one in (sandbox, found, sandbox, found, sandbox)))
    await sandbox.delete()
    with pytest.raises(SandboxDiedError):
        await call
    for use in (process.wait, lambda: sandbox.exec("true"), lambda: found.read("x"), lambda: sandbox.write("x", b""),
                lambda: sandbox.stat("/"), lambda: sandbox.list("/"), sandbox.usage):  # fmt: skip
        with pytest.raises(SandboxDiedError):
            await use()
    assert not await sandbox.alive()
    with pytest.raises(KeyError):
        await provider.get(sandbox.id)
    assert await provider.list() == []


async def test_a_cancelled_create_leaves_nothing(provider, spec):
    """Giving up on a create at any moment leaves no sandbox behind."""
    rng = random.Random(7)
    for _ in range(8):
        creating = asyncio.create_task(provider.create(spec()))
        await asyncio.wait({creating}, timeout=rng.uniform(0, 0.03))
        creating.cancel()
        done = await asyncio.gather(creating, return_exceptions=True)
        if not isinstance(done[0], BaseException):  # it was quicker
            await done[0].delete()

    async def nothing():
        return await provider.list() == []

    await until(nothing)
    assert await provider.list() == []


async def test_closing_takes_what_is_still_being_made(provider, spec):
    """A provider that is closed while sandboxes are made ends them all; none is handed out that is not dead."""
    creating = [asyncio.create_task(provider.create(spec())) for _ in range(4)]
    await asyncio.sleep(0.005)
    await provider.close()
    for outcome in await asyncio.gather(*creating, return_exceptions=True):
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, SandboxError), outcome
        else:
            assert not await outcome.alive()
    with pytest.raises(SandboxError):
        await provider.create(spec())


async def test_a_repeated_create_gives_the_same_sandbox(provider, spec):
    """One idempotency key is one sandbox, also when asked twice at once; after its end the key is free."""
    first, second = await asyncio.gather(*(provider.create(spec(idempotency_key="k")) for _ in range(2)))
    assert first.id == second.id == (await provider.create(spec(idempotency_key="k"))).id
    other = await provider.create(spec(idempotency_key="l"))
    assert other.id != first.id
    await first.delete()
    assert (await provider.create(spec(idempotency_key="k"))).id != first.id


async def test_what_can_not_be_given_is_refused_at_create(provider, capabilities, spec, tmp_path):
    """An image, a network or a mount that the provider cannot give fails at create, naming it; nothing is left."""
    asked = [spec(image="no-such-image:at-all"), spec(mounts=(Mount(str(tmp_path / "nowhere"), "/data"),))]
    if "hosts" not in capabilities.network:
        asked.append(spec(network=("example.com",)))
    if "open" not in capabilities.network:
        asked.append(spec(network="open"))
    for one in asked:
        with pytest.raises((SandboxCreationError, ConfigError)):
            await provider.create(one)
    if "hosts" not in capabilities.network:
        with pytest.raises(SandboxUnsupportedError):
            await provider.create(spec(network=("example.com",)))
    assert await provider.list() == []


async def test_mounts_are_seen_read_only(provider, spec, needs, tmp_path):
    """A folder of the host is seen where it was asked for, and not written to."""
    needs("mounts")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("from the host")
    tmp_path.chmod(0o755)
    sandbox = await provider.create(spec(mounts=(Mount(str(tmp_path / "data"), "/data"),)))
    assert await sandbox.read("/data/file") == b"from the host"
    assert not (await sandbox.exec("echo x > /data/file")).ok
    assert (tmp_path / "data" / "file").read_text() == "from the host"


async def test_a_claim_gives_an_idle_sandbox_its_secrets(provider, spec):
    """Secrets and labels enter at the claim: before it the sandbox has none, afterwards its commands have them."""
    idle = await provider.create(spec())
    claimed = await provider.claim(idle, spec(secrets={"TOKEN": Secret("s3cret")}, labels={"rollout": "7"}))
    assert (await claimed.exec("echo $TOKEN")).stdout == b"s3cret\n"
    assert [info.id for info in await provider.list({"rollout": "7"})] == [claimed.id]


async def test_sandboxes_do_not_see_each_other(provider, spec, needs):
    """Files and processes of one sandbox are not another's, and no signal gets across."""
    needs("namespace")
    one, two = await asyncio.gather(provider.create(spec()), provider.create(spec()))
    await one.write("/tmp/mine", b"1")
    process = await one.start(command("echo x; exec sleep 7701", timeout=None))
    await anext(process.output())
    seen = await two.exec("ls /tmp; cat /proc/[0-9]*/cmdline; kill -9 -1")
    assert b"mine" not in seen.stdout
    assert b"7701" not in seen.stdout
    assert (await one.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout_text.count("7701") == 1
    usage = await one.usage()
    assert usage.pids is None or usage.pids >= 1


async def test_what_a_command_destroys_is_never_a_quiet_result(provider, sandbox):
    """After deleting all it can, a command is answered rightly or the sandbox is dead: no "not found" in between."""
    await sandbox.exec("rm -rf /bin /lib* /etc /dev /home /tmp /var /workspace 2>/dev/null; kill -9 -1")
    try:
        assert (await sandbox.exec("echo on")).stdout == b"on\n"
    except SandboxDiedError:
        assert not await sandbox.alive()
    else:
        assert await sandbox.alive()
    await sandbox.delete()


async def test_a_lifetime_ends(provider, spec):
    """A sandbox is deleted at the end of its lifetime, also while it works, and after its idle time."""
    working = await provider.create(spec(lifetime=0.6))
    idle = await provider.create(spec(idle_lifetime=0.3))
    with pytest.raises(SandboxDiedError):
        await working.exec("sleep 1000", timeout=20)

    async def gone():
        return await provider.list() == []

    await until(gone)
    assert not await idle.alive()


async def test_an_idle_lifetime_does_not_end_what_works(provider, spec):
    """A sandbox whose command runs is not idle, however long that takes."""
    sandbox = await provider.create(spec(idle_lifetime=1.5))
    assert (await sandbox.exec("sleep 2.2; echo on")).stdout == b"on\n"
