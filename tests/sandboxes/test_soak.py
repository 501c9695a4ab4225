"""Many sandboxes made and destroyed, however the rollouts end: nothing of them is left anywhere."""

import asyncio
import contextlib
import gc
import os
import random
import threading
from pathlib import Path

import pytest

from verifiers.errors import SandboxError, SandboxPathError
from verifiers.sandboxes.host.sandbox import GuestSandbox
from verifiers.sandboxes.lease import Lease
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.pool import SandboxPool
from verifiers.sandboxes.spec import SandboxSpec

AT_ONCE = 24


async def one_shot(sandbox, chance):
    """A command, with a process that it leaves."""
    await sandbox.exec("(sleep 1000 &) ; echo x > file; echo out")


async def stuck(sandbox, chance):
    """One that does not end, nor listens."""
    await sandbox.exec("trap '' TERM INT; while :; do sleep 1000; done", timeout=0.1)


async def suicide(sandbox, chance):
    """All that it can kill, where that is not more than it may."""
    if sandbox.isolation == "namespace":
        await sandbox.exec("kill -9 -1", timeout=5)


async def kept(sandbox, chance):
    """A session and an interpreter that nobody closes."""
    session, python = await asyncio.gather(sandbox.session(), sandbox.interpreter())
    await asyncio.gather(session.run("sleep 1000 & cd /tmp"), python.run("import threading"))


async def files(sandbox, chance):
    """In and out."""
    await sandbox.write("a/b", os.urandom(100_000))
    await sandbox.read("a/b")


async def unused(sandbox, chance):
    """Nothing at all."""


DEEDS = (one_shot, one_shot, stuck, suicide, kept, files, unused)


async def rollout(provider, spec, chance):
    """What a rollout does, and does not tidy up."""
    async with Lease(provider, spec) as lease:
        await asyncio.sleep(chance.choice((0, 0, 0.001, 0.02)))
        with contextlib.suppress(SandboxError, SandboxPathError):
            await chance.choice(DEEDS)(await lease, chance)


async def many(provider, spec, count, chance):
    """So many rollouts, half of them cancelled at some moment."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def limited():
        async with limit:
            task = asyncio.create_task(rollout(provider, spec, chance))
            await asyncio.wait({task}, timeout=chance.choice((None, None, None, None, 0.001, 0.01, 0.03, 0.1)))
            task.cancel()
            await asyncio.wait({task})
            assert task.cancelled() or task.exception() is None

    await asyncio.gather(*(limited() for _ in range(count)))


def traces(root):
    """What this process has on the machine, but for the threads that the loop starts as it needs them, and ends."""
    mine = f"{os.getpid()}-"
    groups = [path for path, folders, _ in os.walk("/sys/fs/cgroup") if mine in os.path.basename(path)]
    children = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = status.read_text().rpartition(")")[2].split()
            if int(words[1]) == os.getpid():
                children.append((status.parent.name, words[0]))
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": sorted(one.name for one in threading.enumerate() if not one.name.startswith("asyncio_")),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "children": children,
        "groups": groups,
        "files": [str(path) for path in root.rglob("*")],
        "tasks": len(asyncio.all_tasks()),
    }


def alive():
    """How many sandboxes this process has as objects; those of other tests, too, such as of a provider that is shared.

    By their types: other objects warn when they are asked for their class.
    """
    gc.collect()
    return sum(issubclass(type(one), GuestSandbox) for one in gc.get_objects())


@pytest.mark.parametrize(
    "count", [pytest.param(60, id="some"), pytest.param(2000, marks=(pytest.mark.slow, pytest.mark.long), id="2000")]
)
async def test_whatever_rollouts_do_their_sandboxes_leave_nothing(tmp_path, count):
    """Processes, threads, descriptors, tasks, mounts, control groups and files are as before; objects are freed."""
    async with LocalProvider(root=tmp_path) as provider:
        level = (await provider.capabilities()).isolation
        await (await provider.create(SandboxSpec(isolation=level))).delete()
    before, others = traces(tmp_path), alive()
    async with SandboxPool(LocalProvider(root=tmp_path), 32, 8, ready=4) as pool:
        await many(pool, SandboxSpec(isolation=level), count, random.Random(count))
        stats = pool.stats()
        assert stats.used == stats.ending == stats.waiting == stats.undeleted == 0
        assert stats.hits + stats.misses > count / 4
        assert alive() - others <= stats.idle + stats.starting + 8
    assert traces(tmp_path) == before
