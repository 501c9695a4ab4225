"""The pool on a Ray cluster: the records of the engine, and no rollout lost or doubled when actors and machines go."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.rollouts.workers.test_pool import HOOK
from tests.rollouts.workers.test_ray import PIDS, options_of, pids
from tests.rollouts.workers.test_same_records import by_id, model
from tests.rollouts.workers.workers_support import alive, eventually, load_of, write_environment
from tests.support.mock_openai import MockOpenAI, tool_turn
from tests.support.namespaces import need_namespaces
from verifiers.clients.client import as_client
from verifiers.envs.load import load_environment
from verifiers.rollouts.engine import Engine, EngineOptions
from verifiers.rollouts.plan import plan_rollouts
from verifiers.rollouts.source import GroupSource, RolloutRequest
from verifiers.rollouts.workers.cluster import connected
from verifiers.rollouts.workers.messages import Load
from verifiers.rollouts.workers.pool import PoolOptions, WorkerPool
from verifiers.types import ClientConfig

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

__all__ = ["pids"]  # a fixture

ROOT = Path(__file__).parents[3]
SLOW = PIDS + HOOK.replace("HOOK", "await asyncio.sleep(0.2)")


@pytest.fixture
def endpoint():
    with MockOpenAI(lambda request: request.json["messages"][-1]["content"]) as server:
        yield server


async def play(cluster, max_concurrent=4, repeats=2, on_sealed=lambda records: None, ping=0.5):
    """Play every task of the cluster's environment; the records, each rollout once."""
    options = PoolOptions(max_concurrent=max_concurrent, ping=ping, backoff=0.05, stop=20)
    pool = WorkerPool(cluster.link, cluster.workers, options)
    records = []

    def sealed(record, state):
        records.append(record)
        on_sealed(records)

    try:
        await pool.start()
        rows = await pool.rows()
        plan = plan_rollouts(rows, repeats)
        await pool.play(rows, plan, sealed)
    finally:
        await pool.close()
    assert Counter(record["rollout_id"] for record in records) == {one.rollout_id: 1 for one in plan}
    return records


@pytest.mark.parametrize("env_id", ["price-desk", "wordle", "era-e-bundle"])
async def test_the_records_are_those_of_the_engine(env_id, ray_cluster, monkeypatch, tmp_path, pids):
    """Tools, several turns, rewards of whole groups, environments in one: the same ids, the same records."""
    era = env_id.startswith("era")
    folder = ROOT / "tests/conformance/environments" if era else ROOT / "environments" / env_id.replace("-", "_")
    monkeypatch.syspath_prepend(str(folder))
    args = {"count": 2} if env_id == "era-e-bundle" else {}
    options = {"max_concurrent": 4, "seed": 7, "state_columns": ("advantage",)}
    with MockOpenAI(model) as server:
        config = ClientConfig(api_base_url=server.base_url)
        env = load_environment(env_id, **args)
        rows = env.get_eval_dataset(3, 1)
        plan = plan_rollouts(rows, 2, 7)
        ours, theirs = [], []
        client = as_client(config)
        await Engine(env, client, "m", {}, EngineOptions(**options)).play(rows, plan, lambda one, _: ours.append(one))
        await client.close()
        chosen = {"num_examples": 3, "shuffle_seed": 1}
        load = Load(env_id, args, client=config.model_dump(), model="m", options=options, **chosen)
        async with connected(options_of(ray_cluster, folder, workers=2), load) as cluster:
            pool = WorkerPool(cluster.link, cluster.workers, PoolOptions(max_concurrent=4))
            try:
                await pool.start()
                await pool.play(await pool.rows(), plan, lambda one, _: theirs.append(one))
            finally:
                await pool.close()
    assert by_id(theirs) == by_id(ours) and len(ours) == len(plan)
    assert any(one["outcome"] == "ok" for one in ours)


async def test_rollouts_of_actors_have_sandboxes(ray_cluster, monkeypatch, pids):
    """Each in one of its own, on the machine that plays it."""
    need_namespaces()
    folder = ROOT / "environments/shell_tasks"
    monkeypatch.syspath_prepend(str(folder))
    shell_tasks = importlib.import_module("shell_tasks")
    made = shell_tasks.make_tasks(4, 0)
    solve = {task["question"]: shell_tasks.puzzle_of(task["info"]).solve for task in made}

    def reply(request):
        messages = request.json["messages"]
        if messages[-1]["role"] == "tool":
            return "Done."
        return tool_turn("bash", json.dumps({"command": solve[messages[-1]["content"]]}))

    with MockOpenAI(reply) as server:
        load = load_of(folder, "shell-tasks", server.base_url, env_args={"num_eval": 4, "num_train": 1})
        async with connected(options_of(ray_cluster, folder, workers=2), load) as cluster:
            records = await play(cluster)
    assert [record["reward"] for record in records] == [1.0] * 8, records[0]["error"]


@pytest.mark.parametrize("group", [False, True])
async def test_a_killed_actor_in_the_middle_loses_and_doubles_nothing(tmp_path, endpoint, ray_cluster, pids, group):
    """Its rollouts are played by others, groups as a whole; Ray itself starts nothing again."""
    name = write_environment(tmp_path, "toy", SLOW)
    load = load_of(tmp_path, name, endpoint.base_url, env_args={"tasks": 16, "group": group})
    killed = []

    def kill(records):
        if len(records) >= 8 and not killed:
            killed.append(next(actor for worker, actor in pids() if alive(worker)))
            os.kill(killed[0], signal.SIGKILL)

    async with connected(options_of(ray_cluster, tmp_path, workers=2), load) as cluster:
        records = await play(cluster, on_sealed=kill)
    assert Counter(record["outcome"] for record in records) == {"ok": 32}
    assert len({actor for _, actor in pids()}) == 3
    assert sorted(record["reward"] for record in records) == ([0.0] * 16 + [1.0] * 16 if group else [1.0] * 32)
    await eventually(lambda: not any(alive(pid) for pair in pids() for pid in pair))


async def test_a_lost_machine_of_two_in_the_middle_loses_and_doubles_nothing(tmp_path, endpoint, ray_cluster, pids):
    """Workers are spread over both; what the lost one played, the other plays."""
    load = load_of(tmp_path, write_environment(tmp_path, "toy", SLOW), endpoint.base_url, env_args={"tasks": 16})
    machine = ray_cluster.add_node(num_cpus=2)
    lost = []

    def lose(records):
        if len(records) >= 8 and not lost:
            lost.append(machine)
            ray_cluster.remove_node(machine, allow_graceful=False)

    async with connected(options_of(ray_cluster, tmp_path), load) as cluster:
        assert cluster.workers == 2
        records = await play(cluster, on_sealed=lose)
    assert Counter(record["outcome"] for record in records) == {"ok": 32} and lost
    await eventually(lambda: not any(alive(pid) for pair in pids() for pid in pair))


async def test_cancelling_cleans_up_in_every_worker(tmp_path, endpoint, ray_cluster, pids):
    """Cleanup handlers run on the machines, and nothing is left there."""
    source = HOOK.replace("HOOK", "(HERE / f'began_{n}').touch(); await asyncio.sleep(600)").replace(
        "def load_environment",
        "    @vf.cleanup\n    async def release(self, state):\n"
        "        (Path(os.environ['VF_TEST_PIDS']) / f'released_{state[\"info\"][\"n\"]}').touch()\n\n\n"
        "def load_environment",
    )
    source = source.replace("HERE /", "Path(os.environ['VF_TEST_PIDS']) /")
    load = load_of(tmp_path, write_environment(tmp_path, "held", source), endpoint.base_url)
    seen = Path(os.environ["VF_TEST_PIDS"])
    async with connected(options_of(ray_cluster, tmp_path, workers=2), load) as cluster:
        playing = asyncio.create_task(play(cluster, repeats=1))
        await eventually(lambda: len(list(seen.glob("began_*"))) == 4)
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
        assert len(list(seen.glob("released_*"))) == 4
    assert "ray" in sys.modules


async def test_groups_of_a_trainer_are_reported_once_though_an_actor_dies(tmp_path, endpoint, ray_cluster, pids):
    """A source over the pool over the cluster."""
    load = load_of(tmp_path, write_environment(tmp_path, "toy", SLOW), endpoint.base_url, env_args={"tasks": 8})
    options = PoolOptions(max_concurrent=4, backoff=0.05, stop=20, lasting=True)
    async with connected(options_of(ray_cluster, tmp_path, workers=2), load) as cluster:
        pool = WorkerPool(cluster.link, cluster.workers, options)
        try:
            await pool.start()
            async with GroupSource(await pool.rows(), lambda request: pool) as source:
                for number, task_id in enumerate(source.task_ids):
                    await source.submit(RolloutRequest(task_id, f"g{number}", n=2))
                results = [await anext(source.results())]
                os.kill(next(actor for worker, actor in pids() if alive(worker)), signal.SIGKILL)
                while len(results) < 8:
                    results.append(await anext(source.results()))
        finally:
            await pool.close()
    assert sorted(result.request.group_id for result in results) == [f"g{number}" for number in range(8)]
    assert all([member.record["reward"] for member in result.valid] == [1.0, 1.0] for result in results)
