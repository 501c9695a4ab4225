"""Workers on a Ray cluster: real actors on a real cluster of this machine; they play, die and leave nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tests.rollouts.workers.test_process import play, rows_of, until
from tests.rollouts.workers.workers_support import ECHO, alive, eventually, load_of, write_environment
from tests.support.mock_openai import MockOpenAI
from verifiers.errors import (
    ClusterError,
    ConfigError,
    EnvironmentLoadError,
    MissingExtraError,
    MissingKeyError,
    WorkerDiedError,
)
from verifiers.rollouts.workers.cluster import RayOptions, connected
from verifiers.rollouts.workers.messages import Done, LogLevel, Sealed

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

PIDS = """
(Path(os.environ["VF_TEST_PIDS"]) / str(os.getpid())).write_text(str(os.getppid()))
"""
"""An environment's own code tells which process plays it, and of which actor."""


@pytest.fixture
def endpoint():
    with MockOpenAI(lambda request: request.json["messages"][-1]["content"]) as server:
        yield server


@pytest.fixture
def pids(tmp_path, monkeypatch):
    """The processes of workers and their actors, as `(worker, actor)`."""
    folder = tmp_path / "pids"
    folder.mkdir()
    monkeypatch.setenv("VF_TEST_PIDS", str(folder))
    return lambda: [(int(path.name), int(path.read_text())) for path in folder.iterdir()]


def options_of(cluster, folder, **fields):
    """The cluster, with what the environments of these tests need on its machines."""
    return RayOptions(cluster.address, folder=folder, pass_env=("VF_TEST_PIDS",), **fields)


async def test_a_worker_behind_an_actor_loads_gives_its_rows_plays_and_ends(tmp_path, endpoint, ray_cluster, pids):
    """One whole life of a worker, whose environment is only in a folder here."""
    load = load_of(tmp_path, write_environment(tmp_path, "toy", PIDS + ECHO), endpoint.base_url)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    async with connected(options_of(ray_cluster, tmp_path), load) as cluster:
        link = cluster.link(1)
        ready = await link.start()
        assert ready.facts["env_id"] == "toy" and link.host
        messages = link.messages()
        rows = await rows_of(link, messages)
        await link.send(play(2, rows, 2))
        seen = await until(messages, Done)
        assert sorted(one.record["reward"] for one in seen if isinstance(one, Sealed)) == [1.0] * 8
        await link.stop(20)
        with pytest.raises(WorkerDiedError, match="exit code 0"):
            await anext(messages)
        ((worker, actor),) = pids()
        await eventually(lambda: not alive(worker) and not alive(actor))
    assert signal.getsignal(signal.SIGTERM) is on_sigterm


async def test_a_worker_is_reached_through_the_client_port(tmp_path, endpoint, ray_cluster, pids):
    """From a machine that is none of the cluster's: it plays, and its death is told."""
    load = load_of(tmp_path, write_environment(tmp_path, "toy", PIDS + ECHO), endpoint.base_url)
    options = dataclasses.replace(options_of(ray_cluster, tmp_path), address=ray_cluster.client_address)
    async with connected(options, load) as cluster:
        link = cluster.link(1)
        await link.start()
        messages = link.messages()
        await link.send(play(2, await rows_of(link, messages)))
        assert len([one for one in await until(messages, Done) if isinstance(one, Sealed)]) == 4
        ((worker, actor),) = pids()
        os.kill(actor, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="is gone"):
            await anext(messages)
        await link.kill()
        await eventually(lambda: not alive(worker))


async def test_a_program_that_is_connected_stays_so(tmp_path, endpoint, ray_cluster, pids):
    """Its connection is used, with what its own runtime_env sends."""
    ray = pytest.importorskip("ray")
    load = load_of(tmp_path, write_environment(tmp_path, "toy", PIDS + ECHO), endpoint.base_url)
    on_sigterm = signal.getsignal(signal.SIGTERM)
    ray.init(ray_cluster.address, log_to_driver=False, runtime_env={"working_dir": str(tmp_path)})
    try:
        async with connected(RayOptions(pass_env=("VF_TEST_PIDS",)), load) as cluster:
            link = cluster.link(1)
            assert (await link.start()).facts["env_id"] == "toy"
            await link.stop(20)
        assert ray.is_initialized()
    finally:
        ray.shutdown()
        signal.signal(signal.SIGTERM, on_sigterm)


async def test_a_dead_worker_a_dead_actor_and_their_ends_are_told_apart(tmp_path, endpoint, ray_cluster, pids):
    """A crash of the environment is told with how and its last words; a lost actor as that."""
    source = "print('last words', file=sys.stderr, flush=True)\n" + PIDS + ECHO
    load = load_of(tmp_path, write_environment(tmp_path, "toy", source), endpoint.base_url)
    async with connected(options_of(ray_cluster, tmp_path), load) as cluster:
        first, second = cluster.link(1), cluster.link(2)
        await first.start()
        ((worker, actor),) = pids()
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match=r"worker 1 \(Ray, on .*SIGKILL") as caught:
            await anext(first.messages())
        assert caught.value.said == "last words"
        await first.kill()
        await eventually(lambda: not alive(actor))

        await second.start()
        ((worker, actor),) = [pair for pair in pids() if alive(pair[0])]
        os.kill(actor, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="is gone: ActorDiedError"):
            await anext(second.messages())
        await eventually(lambda: not alive(worker))
        await second.send(LogLevel(logging.INFO))  # to nobody
        await second.stop(20)


async def test_a_lost_machine_ends_its_worker_and_another_is_found(tmp_path, endpoint, ray_cluster, pids):
    """The link tells the death; a new one goes where there is room, also while Ray still counts on the lost machine."""
    load = load_of(tmp_path, write_environment(tmp_path, "toy", PIDS + ECHO), endpoint.base_url)
    machine = ray_cluster.add_node(num_cpus=1, resources={"spare": 1})
    async with connected(options_of(ray_cluster, tmp_path, resources={"spare": 0.5}), load) as cluster:
        assert cluster.machines == 2 and cluster.workers == 2
        link = cluster.link(1)
        await link.start()
        ((worker, _),) = pids()
        ray_cluster.remove_node(machine, allow_graceful=False)
        with pytest.raises(WorkerDiedError, match="is gone: Actor"):
            await anext(link.messages())
        await link.kill()
        await eventually(lambda: not alive(worker))
        again = cluster.link(1)
        starting = asyncio.create_task(again.start())
        await asyncio.sleep(0)
        machine = ray_cluster.add_node(num_cpus=1, resources={"spare": 1})
        await starting
        await again.stop(20)
    ray_cluster.remove_node(machine)


async def test_errors_of_loading_and_logs_come_back(tmp_path, ray_cluster, caplog, monkeypatch):
    """The typed error of the environment, its log and what it printed."""
    monkeypatch.setenv("VF_TEST_PIDS", "none")
    source = "import logging\nlogging.getLogger('verifiers.toy').warning('look here')\nprint('printed', flush=True)\n"
    load = load_of(tmp_path, write_environment(tmp_path, "broken", source + "raise RuntimeError('broken here')"))
    with caplog.at_level(logging.INFO, logger="verifiers"):
        async with connected(options_of(ray_cluster, tmp_path), load) as cluster:
            with pytest.raises(EnvironmentLoadError, match="broken here"):
                await cluster.link(7).start()
    assert "look here" in caplog.text


async def test_a_large_record_comes_whole(tmp_path, ray_cluster, pids):
    """An answer of 20 MB is no problem of the link."""
    with MockOpenAI("x" * 20_000_000) as server:
        load = load_of(tmp_path, write_environment(tmp_path, "toy", PIDS + ECHO), server.base_url)
        async with connected(options_of(ray_cluster, tmp_path), load) as cluster:
            link = cluster.link(1)
            await link.start()
            messages = link.messages()
            await link.send(play(2, (await rows_of(link, messages))[:1]))
            sealed = (await until(messages, Sealed))[-1]
            assert len(sealed.record["completion"][0]["content"]) == 20_000_000
            await link.stop(20)


async def test_no_room_and_no_such_packages_are_told_at_once_or_in_time(tmp_path, ray_cluster, pids):
    """Both name what was wanted."""
    load = load_of(tmp_path, write_environment(tmp_path, "toy", ECHO))
    async with connected(options_of(ray_cluster, tmp_path, num_cpus=64), load) as cluster:
        cluster.place_seconds = 2
        with pytest.raises(ClusterError, match=r"no place for worker 1 .* num_cpus=64; .* of 2 CPU free"):
            await cluster.link(1).start()
    broken = {"py_modules": ["gcs://_ray_pkg_that_nobody_sent.zip"]}
    async with connected(options_of(ray_cluster, tmp_path, runtime_env=broken), load) as cluster:
        cluster.place_seconds = 60
        with pytest.raises(ClusterError, match="can not be started"):
            await cluster.link(1).start()


DRIVER = """
import asyncio, sys
sys.path[:] = {path!r}
from pathlib import Path
from tests.rollouts.workers.workers_support import load_of
from verifiers.rollouts.workers.cluster import RayOptions, connected

async def main():
    folder = Path({folder!r})
    brings = {{"env_vars": {{"VF_TEST_BROUGHT": "1"}}}}
    options = RayOptions({address!r}, workers=1, folder=folder, pass_env=("VF_TEST_PIDS",), runtime_env=brings)
    async with connected(options, load_of(folder, "toy")) as cluster:
        await cluster.link(1).start()
        print("ready", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def processes_with(text):
    """The processes whose command line holds a text, such as those of a cluster its folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found += [entry.name] if text in (entry / "cmdline").read_text(errors="replace") else []
    return found


@pytest.mark.parametrize("where", ["the running cluster", "local"])
async def test_a_killed_driver_leaves_no_actor_and_no_worker(tmp_path, ray_cluster, pids, where):
    """SIGKILL of this end is enough, for a cluster of its own too; a runtime_env is there, with the folder."""
    write_environment(tmp_path, "toy", "assert os.environ['VF_TEST_BROUGHT'] == '1'\n" + PIDS + ECHO)
    address = ray_cluster.address if where != "local" else where
    script = DRIVER.format(path=sys.path, folder=str(tmp_path), address=address)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        assert await asyncio.to_thread(driver.stdout.readline) == "ready\n"
        ((worker, actor),) = pids()
        assert alive(worker) and alive(actor)
        driver.kill()
    await eventually(lambda: not alive(worker) and not alive(actor))
    for folder in Path(tempfile.gettempdir()).glob(f"vf-ray-{driver.pid}-*"):
        await eventually(lambda folder=folder: not processes_with(str(folder)))
        shutil.rmtree(folder)


# --- without a cluster ----------------------------------------------------------------------------------------


async def test_what_is_missing_is_told_before_anything_starts(tmp_path, monkeypatch):
    """The extra, a variable, a cluster, an option."""
    load = load_of(tmp_path, "toy")
    with pytest.raises(ConfigError, match="num_cpu'") as caught:
        RayOptions.read("auto", {"num_cpu": 1})
    assert "num_cpus" in caught.value.hint
    with pytest.raises(MissingKeyError, match="ABSENT_KEY"):
        async with connected(RayOptions("auto", pass_env=("ABSENT_KEY",)), load):
            pass
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9"):
        with pytest.raises(ClusterError, match=r"nothing answers at 127\.0\.0\.1:9"):
            async with connected(RayOptions(address), load):
                pass
    with pytest.raises(ClusterError, match="no Ray cluster at 'nonsense'"):
        async with connected(RayOptions("nonsense"), load):
            pass
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError) as missing:
        async with connected(RayOptions("auto"), load):
            pass
    assert missing.value.hint == "Install it: pip install 'verifiers[ray]>=1'"


async def test_an_endpoint_of_this_machine_is_refused_on_a_cluster_with_others(tmp_path, ray_cluster, monkeypatch):
    """Workers elsewhere would each ask their own machine."""
    ray = pytest.importorskip("ray")
    nodes = ray.nodes

    def one_is_elsewhere():
        return [*nodes(), {"Alive": True, "NodeManagerAddress": "198.51.100.7"}]

    monkeypatch.setattr(ray, "nodes", one_is_elsewhere)
    with pytest.raises(ConfigError, match="this machine only, and the cluster has others"):
        async with connected(RayOptions(ray_cluster.address), load_of(tmp_path, "toy")):
            pass
    assert not ray.is_initialized() and threading.current_thread() is threading.main_thread()
