"""The pool of sandboxes and the lease of a rollout: who gets what, and that nothing is left."""

import asyncio
import contextlib
import random

import pytest

from tests.support.faulty_provider import FaultyProvider
from tests.support.virtual_time import run_virtual
from verifiers.errors import (
    SandboxBusyError,
    SandboxCreationError,
    SandboxError,
    SandboxNotReadyError,
    SandboxUnreachableError,
)
from verifiers.sandboxes.lease import Lease
from verifiers.sandboxes.pool import SandboxPool
from verifiers.sandboxes.spec import SandboxSpec, Secret

SPECS = [SandboxSpec(memory=size) for size in (64, 128, 256)]
FAULTS = {"slow": 0.01, "stubborn": 0.5, "busy": 0.05, "refused": 0.1, "bug": 0.02, "undeleted": 0.1, "dies": 0.3}


def tasks_left():
    return asyncio.all_tasks() - {asyncio.current_task()}


@pytest.mark.parametrize("seed", range(12))
def test_under_faults_the_pool_keeps_its_limits_and_gives_nobody_a_dead_or_used_sandbox(seed):
    """Whatever fails or is cancelled: caps hold, each sandbox has one user and answers, and all are deleted."""

    async def main():
        chance = random.Random(seed)
        provider = FaultyProvider(seed, **FAULTS)
        max_alive, max_starting = chance.randint(2, 20), chance.randint(1, 6)
        pool = SandboxPool(provider, max_alive, max_starting, ready=chance.randint(0, 4), start_s=5, wait_s=300)
        got = 0

        async def rollout():
            nonlocal got
            await asyncio.sleep(chance.uniform(0, 5))
            spec = chance.choice(SPECS)
            with contextlib.suppress(SandboxError):
                sandbox = await pool.create(spec)
                try:
                    assert sandbox.inner.uses == 0
                    assert sandbox.inner.ping == "ok"
                    assert sandbox.inner.spec.memory == spec.memory
                    sandbox.inner.uses = 1
                    got += 1
                    await asyncio.sleep(chance.uniform(0, 0.5))
                finally:
                    await sandbox.delete()

        async with pool:
            rollouts = [asyncio.create_task(rollout()) for _ in range(150)]
            for task in chance.sample(rollouts, 50):
                asyncio.get_running_loop().call_later(chance.uniform(0, 6), task.cancel)
            outcomes = await asyncio.gather(*rollouts, return_exceptions=True)
            assert pool.stats().used == pool.stats().waiting == 0
        assert {type(outcome) for outcome in outcomes} <= {type(None), asyncio.CancelledError}
        assert got > 50
        assert provider.most_alive <= max_alive
        assert provider.most_starting <= max_starting
        assert not provider.there and provider.closed
        assert sum(provider.seen.values()) > 20
        assert pool.stats().alive == pool.stats().waiting == 0
        assert not tasks_left()

    run_virtual(main())


def test_a_second_claim_finds_an_idle_sandbox_and_gives_it_its_secrets_and_labels():
    """What is kept idle has neither; the claim brings them."""

    async def main():
        provider = FaultyProvider()
        async with SandboxPool(provider, ready=2) as pool:
            spec = SandboxSpec(secrets={"KEY": Secret("s")}, labels={"run": "r"})
            for hit in (False, False, True, True):
                sandbox = await pool.create(spec)
                assert sandbox.hit is hit and sandbox.spec == spec == sandbox.inner.spec
                others = [one for one in provider.there.values() if one is not sandbox.inner]
                assert not any(one.spec.secrets or one.spec.labels for one in others)
                assert [info.id for info in await pool.list({"run": "r"})] == [sandbox.id]
                assert await pool.get(sandbox.id) is sandbox
                assert await pool.delete_many({"run": "r"}) == 1
                await sandbox.delete()  # again: nothing happens
                await asyncio.sleep(1)
            assert (pool.stats().hits, pool.stats().misses, pool.stats().idle) == (2, 2, 2)

    run_virtual(main())


def test_who_asked_first_is_served_first_also_when_idle_ones_of_another_kind_fill_the_pool():
    """Idle sandboxes of another kind make room for who waits, and later askers do not overtake."""

    async def main():
        provider = FaultyProvider()
        async with SandboxPool(provider, 2, 1) as pool:
            pool.warm(SPECS[0], 2)
            await asyncio.sleep(1)
            assert pool.stats().idle == 2
            first = [await pool.create(SPECS[1]) for _ in range(2)]
            order = []

            async def ask(number, spec):
                sandbox = await pool.create(spec)
                order.append(number)
                await sandbox.delete()

            asking = []
            for number in range(6):
                asking.append(asyncio.create_task(ask(number, SPECS[1 + number % 2])))
                await asyncio.sleep(0.01)
            await asyncio.gather(*(sandbox.delete() for sandbox in first))
            await asyncio.gather(*asking)
            assert order == sorted(order)
            assert asyncio.get_running_loop().time() < 10  # they did not wait until the idle ones were too old

    run_virtual(main())


def test_who_is_cancelled_in_the_moment_its_sandbox_is_there_takes_nothing_along():
    """Cancelled, but not yet told, it gets none: the sandbox becomes idle."""

    async def main():
        provider = FaultyProvider()
        provider.takes = lambda: 0.02
        async with SandboxPool(provider) as pool:
            asking = asyncio.create_task(pool.create(SPECS[0]))
            for _ in range(3):
                await asyncio.sleep(0)
            assert provider.starting == 1
            asyncio.get_running_loop().call_later(0.02, asking.cancel)
            await asyncio.wait({asking})
            await asyncio.sleep(0)
            assert asking.cancelled()
            assert (pool.stats().used, pool.stats().idle, pool.stats().starting) == (0, 1, 0)
            assert (await pool.create(SPECS[0])).hit

    run_virtual(main())


@pytest.mark.parametrize(
    ("fault", "error", "creations"),
    [("refused", SandboxCreationError, 3), ("slow", SandboxNotReadyError, 3), ("bug", SandboxCreationError, 1)],
)
def test_a_start_that_goes_on_failing_is_a_platform_error_after_a_few_attempts(fault, error, creations):
    """Creation alone is repeated, so often and no more; the failure is typed."""

    async def main():
        provider = FaultyProvider(**{fault: 1.0})
        async with SandboxPool(provider, ready=5) as pool:
            with pytest.raises(error):
                await pool.create(SPECS[0])
            await asyncio.sleep(0.1)
            assert provider.creations == creations
            assert pool.stats().failed == 1

    run_virtual(main())


@pytest.mark.parametrize("after", [0, 1, 2])
def test_who_is_cancelled_while_its_idle_sandbox_is_asked_whether_it_lives_gives_it_back(after):
    """Nobody has used it, so it is idle again."""

    async def main():
        provider = FaultyProvider()
        async with SandboxPool(provider) as pool:
            pool.warm(SPECS[0], 1)
            await asyncio.sleep(1)
            asking = asyncio.create_task(pool.create(SPECS[0]))
            for _ in range(after):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait({asking})
            await asyncio.sleep(1)
            assert asking.cancelled() and not pool.stats().used
            assert pool.stats().idle == len(provider.there) >= 1

    run_virtual(main())


def test_who_comes_while_a_start_fails_gets_one_of_its_own():
    """The failure of a start is told to who has waited for it from its beginning, to nobody else."""

    async def main():
        provider = FaultyProvider()
        provider.fails = lambda kind: kind == "refused" and provider.creations <= 3
        async with SandboxPool(provider, ready=0) as pool:
            first = asyncio.create_task(pool.create(SPECS[0]))
            await asyncio.sleep(0.3)
            first.cancel()
            await pool.create(SPECS[0])
            assert (provider.creations, pool.stats().failed) == (4, 1)

    run_virtual(main())


def test_a_pool_that_is_closed_while_sandboxes_start_leaves_none():
    """Also where a start does not listen to its cancellation."""

    async def main():
        provider = FaultyProvider(stubborn=1.0)
        async with SandboxPool(provider) as pool:
            pool.warm(SPECS[0], 3)
            asking = asyncio.create_task(pool.create(SPECS[1]))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert provider.creations == 4 and not provider.there
        with pytest.raises(SandboxError, match="closed"):
            await asking

    run_virtual(main())


def test_a_busy_provider_is_waited_for_as_long_as_it_says():
    """Busy is no failed attempt, and it is asked again at the time it named."""

    async def main():
        provider = FaultyProvider(busy=1.0)
        async with SandboxPool(provider, wait_s=10) as pool:
            asyncio.get_running_loop().call_later(4.9, provider.faults.clear)
            began = asyncio.get_running_loop().time()
            await pool.create(SPECS[0])
            assert 4.9 < asyncio.get_running_loop().time() - began < 6
            assert 9 <= provider.seen["busy"] <= 10

    run_virtual(main())


def test_waiting_for_room_ends_with_a_busy_error():
    """Sandboxes that nobody deletes do not make others wait for ever."""

    async def main():
        async with SandboxPool(FaultyProvider(), 1, wait_s=30) as pool:
            await pool.create(SPECS[0])
            with pytest.raises(SandboxBusyError, match="used=1"):
                await pool.create(SPECS[0])
            assert pool.stats().waiting == 0

    run_virtual(main())


def test_a_repeated_creation_with_one_key_is_one_sandbox():
    """Parallel and later requests of an idempotency key get the same one; a cancelled one alone leaves none."""

    async def main():
        provider = FaultyProvider()
        async with SandboxPool(provider, ready=0) as pool:
            spec = SandboxSpec(idempotency_key="once")
            first, second = await asyncio.gather(pool.create(spec), pool.create(spec))
            assert first is second is await pool.create(spec)
            await first.delete()
            assert not provider.there
            alone = asyncio.create_task(pool.create(spec))
            await asyncio.sleep(0)
            alone.cancel()
            await asyncio.wait({alone})
            again = await pool.create(spec)
            assert await again.alive() and again is not first

    run_virtual(main())


@pytest.mark.parametrize("seed", range(12))
def test_a_key_is_one_sandbox_whoever_fails_gives_up_or_ends_beside(seed):
    """Who gets a sandbox of a key while another one has one has the same."""

    async def main():
        chance = random.Random(seed)
        users, deleted = {}, set()

        async def rollout(pool):
            await asyncio.sleep(chance.randrange(60) / 10)
            key = chance.choice("ab")
            for _ in range(5):
                with contextlib.suppress(SandboxError):
                    sandbox = await pool.create(SandboxSpec(idempotency_key=key))
                    break
            else:
                return
            assert users.setdefault(key, sandbox) is sandbox or sandbox in deleted
            await asyncio.sleep(chance.randrange(3) / 10)
            if users.get(key) is sandbox:
                del users[key]
            deleted.add(sandbox)
            await sandbox.delete()

        async with SandboxPool(FaultyProvider(seed, refused=0.5), ready=0) as pool:
            rollouts = [asyncio.create_task(rollout(pool)) for _ in range(300)]
            for task in chance.sample(rollouts, 150):
                asyncio.get_running_loop().call_later(chance.randrange(80) / 10, task.cancel)
            outcomes = await asyncio.gather(*rollouts, return_exceptions=True)
            assert [one for one in outcomes if one and not isinstance(one, asyncio.CancelledError)] == []

    run_virtual(main())


def test_idle_sandboxes_end_when_nobody_asks_any_more():
    """The pool shrinks to nothing, and its record of kinds too."""

    async def main():
        provider = FaultyProvider()
        async with SandboxPool(provider, ready=3, fresh_s=60) as pool:
            for _ in range(3):
                await (await pool.create(SPECS[0])).delete()
            await asyncio.sleep(1)
            assert pool.stats().idle == 3
            await asyncio.sleep(200)
            assert not provider.there and not pool._kinds

    run_virtual(main())


def test_a_sandbox_that_cannot_be_deleted_is_told_of_and_tried_again_at_the_close():
    """The failure is raised to who deletes, and nothing is left after the close."""

    async def main():
        provider = FaultyProvider()
        async with SandboxPool(provider, ready=0) as pool:
            sandbox = await pool.create(SPECS[0])
            sandbox.inner.deletions_to_fail = 4
            with pytest.raises(SandboxUnreachableError):
                await sandbox.delete()
            assert pool.stats().undeleted == 1 and pool.stats().alive == 0
        assert not provider.there

    run_virtual(main())


def test_a_lease_runs_beside_the_model_and_is_shared_by_parallel_calls():
    """One start for all who wait; what the rollout felt is counted once."""

    async def main():
        provider = FaultyProvider()
        prepared = []

        async def setup(sandbox):
            prepared.append(sandbox)
            await asyncio.sleep(1)

        async with SandboxPool(provider, ready=0) as pool:
            async with Lease(pool, SPECS[0], setup=setup) as lease:
                await asyncio.sleep(0.6)
                first, second = await asyncio.gather(lease.sandbox(), lease.sandbox())
                assert first is second is await lease and prepared == [first]
                assert lease.hit is False and 1 < lease.start_s < 1.06
                assert lease.waited_s == pytest.approx(lease.start_s - 0.6, abs=1e-6)
                lease_later = Lease(pool, SPECS[0])
                await asyncio.sleep(1)
                await lease_later
                assert lease_later.waited_s == 0
            assert len(provider.there) == 1
            with pytest.raises(SandboxError, match="has ended"):
                await lease

    run_virtual(main())


@pytest.mark.parametrize("after", [0.0, 0.0005, 0.02, 0.5])
def test_a_lease_released_while_it_starts_leaves_nothing(after):
    """At any point of the start, with a pool and without one, also when the release is cancelled."""

    async def main():
        for provider in (FaultyProvider(), SandboxPool(FaultyProvider(), ready=0)):

            async def setup(sandbox):
                await asyncio.sleep(0.2)

            async with provider:
                lease = Lease(provider, SPECS[0], setup=setup)
                await asyncio.sleep(after)
                waiting = asyncio.create_task(lease.sandbox())
                await asyncio.sleep(0)
                release = asyncio.create_task(lease.release())
                await asyncio.sleep(0)
                release.cancel()
                await asyncio.wait({release, waiting})
                with contextlib.suppress(SandboxError):
                    waiting.result()
                await lease.release()
                left = await provider.list()
                assert left == []
            assert not tasks_left()

    run_virtual(main())


def test_a_preparation_that_fails_ends_the_sandbox_and_the_lease():
    """Everybody who awaits the lease gets its error, and the sandbox is gone at once."""

    async def main():
        async def setup(sandbox):
            raise OSError("there is no such file")

        provider = FaultyProvider()
        async with provider, Lease(provider, SPECS[0], setup=setup) as lease:
            for _ in range(2):
                with pytest.raises(OSError, match="no such file"):
                    await lease
            assert not provider.there

    run_virtual(main())


def test_a_lease_whose_start_fails_raises_for_everybody():
    """Each tool call sees the platform's error; a start that nobody asked for fails in silence."""

    async def main():
        pool = SandboxPool(FaultyProvider(refused=1.0))
        async with pool, Lease(pool, SPECS[0]) as lease, Lease(pool, SPECS[0]):
            for _ in range(2):
                with pytest.raises(SandboxCreationError):
                    await lease
        assert not tasks_left()

    run_virtual(main())
