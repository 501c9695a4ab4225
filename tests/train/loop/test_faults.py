"""What breaks around a run, with real parts: each fault ends in a state that is counted and explained."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys

import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

import verifiers as vf  # noqa: E402
from tests.support.tiny_model import tiny_tokenizer  # noqa: E402
from tests.support.toy_tasks import TEMPLATE, single_turn  # noqa: E402
from tests.support.training_torch import SAMPLING, toy_engine, toy_learner, toy_loop, toy_source  # noqa: E402
from verifiers.clients.local import TokenizerRenderer  # noqa: E402
from verifiers.errors import EngineError, InvalidTaskError, TrainingDivergedError, TrainingError  # noqa: E402
from verifiers.rollouts.source import GroupSource  # noqa: E402
from verifiers.rollouts.workers.messages import Load  # noqa: E402
from verifiers.rollouts.workers.options import options_to_dict  # noqa: E402
from verifiers.rollouts.workers.pool import PoolOptions, WorkerPool  # noqa: E402
from verifiers.rollouts.workers.process import ProcessLink  # noqa: E402
from verifiers.train.checkpoint import Checkpoints  # noqa: E402
from verifiers.train.config import LoopConfig  # noqa: E402
from verifiers.train.engines.server import SamplerServer  # noqa: E402
from verifiers.train.players import options_of  # noqa: E402
from verifiers.types import ClientConfig  # noqa: E402


def config(**changes):
    return LoopConfig(**{"steps": 4, "groups_per_batch": 2, "group_size": 4, "max_lag": 2, **changes})


async def run(sources, engine, learner, settings, observers=(), **more):
    """A run with these parts, to its end: its loop, and its reports."""
    reports = []
    loop = toy_loop(sources, engine, learner, settings, observers=[reports.append, *observers], **more)
    try:
        await loop.run()
    finally:
        for source in sources.values():
            await source.close()
        await engine.close()
    return loop, reports


def total(reports, name):
    return sum(report.figures.get(name, 0) for report in reports)


async def test_a_dead_engine_ends_the_run_with_its_words_and_a_checkpoint(tmp_path):
    """Its next step raises as a GPU would: what was trained before is kept."""
    engine, learner = toy_engine(), toy_learner()

    def out_of_memory(*_, **__):
        raise RuntimeError("CUDA out of memory")

    def kill(report):
        if report.step == 2:
            engine._runner.forward = out_of_memory

    kept = Checkpoints(tmp_path, every=100)
    loop = toy_loop(
        {"toy": (source := toy_source(single_turn(), engine))},
        engine,
        learner,
        config(steps=50, max_empty_batches=3),
        checkpoints=kept,
        observers=[kill],
    )
    async with source:
        with pytest.raises((EngineError, TrainingError), match="CUDA out of memory"):
            await loop.run()
    assert loop.step >= 2 and kept.latest().name == f"step-{loop.step:06d}"
    fates = loop.flow.buffer.fates
    assert loop.flow.buffer.asked == fates.total() + loop.flow.buffer.under_way


ECHO = """
import os
import verifiers as vf


def load_environment(poison=False, **kwargs):
    def own(completion, answer):
        text = completion[-1]["content"] or ""
        if poison and answer == "q1":
            os._exit(9)
        return float(len(text) % 5)

    rows = [{"question": f"q{n}", "answer": f"q{n}"} for n in range(4)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[own]), **kwargs)
"""


class Workers:
    """An environment in a worker process, which reaches the engine over HTTP."""

    def __init__(self, folder, engine, **args):
        (folder / "worker_env.py").write_text(ECHO)
        self.server = SamplerServer(engine, TokenizerRenderer(tiny_tokenizer(TEMPLATE), 256))
        self.links = []

        def connect(number):
            client = ClientConfig(
                client_type="openai_chat_completions_token", api_base_url=f"{self.server.url}/v1", max_retries=0
            )
            load = Load(
                "worker_env",
                env_args=args,
                paths=[str(folder), *sys.path],
                client=client.model_dump(),
                model="policy",
                sampling_args=dict(SAMPLING),
                options=options_to_dict(options_of(0, 0)),
                split="train",
            )
            self.links.append(ProcessLink(load, number=number))
            return self.links[-1]

        self.pool = WorkerPool(connect, 1, PoolOptions(lasting=True, backoff=0.05, ping=0.5))

    async def source(self):
        await self.server.start()
        try:
            await self.pool.start()
        except BaseException:
            await self.close()
            raise
        return GroupSource(await self.pool.rows(), lambda request: self.pool)

    async def close(self):
        await self.pool.close()
        await self.server.stop()


async def test_a_worker_that_is_killed_costs_no_rollout(tmp_path):
    """`kill -9` of the environment's process in the middle: another one is started, and the run goes on to its end."""
    engine, learner = toy_engine(), toy_learner()
    workers = Workers(tmp_path, engine)
    source = await workers.source()

    def kill(report):
        if report.step == 1:
            os.killpg(workers.links[0].pid, signal.SIGKILL)

    try:
        loop, reports = await run({"toy": source}, engine, learner, config(), observers=[kill])
    finally:
        await workers.close()
    assert loop.step == 4 and len(workers.links) == 2
    assert total(reports, "outcomes/failed") == 0 and total(reports, "groups/trained") == 8


@pytest.mark.slow
async def test_a_task_that_kills_its_worker_fails_alone(tmp_path):
    """It is counted as failed by its kind; the other three are trained."""
    engine, learner = toy_engine(), toy_learner()
    workers = Workers(tmp_path, engine, poison=True)
    source = await workers.source()
    try:
        _, reports = await run({"toy": source}, engine, learner, config(steps=3, group_size=2))
    finally:
        await workers.close()
    assert total(reports, "groups/failed") >= 1 and total(reports, "errors/infrastructure") >= 2
    assert total(reports, "groups/trained") == 6


async def test_a_diverging_trainer_ends_the_run_and_keeps_its_last_sound_state(tmp_path):
    """Gradients are not finite from step 3 on: the weights stay, they are told as untrained, the fifth step ends it."""
    engine, learner = toy_engine(), toy_learner()
    kept = Checkpoints(tmp_path, every=1)
    reports = []

    def explode(report):
        reports.append(report)
        if report.step == 2:
            next(iter(learner.policy.trained.values())).register_hook(lambda gradient: gradient * float("nan"))

    source = toy_source(single_turn(), engine)
    with pytest.raises(TrainingDivergedError, match="not finite"):
        await run({"toy": source}, engine, learner, config(steps=20), observers=[explode], checkpoints=kept)
    assert [report.trained for report in reports] == [True, True, False, False]
    assert kept.latest().name == "step-000004" and kept.load(kept.latest(), toy_learner()).version == 2


async def test_a_full_disk_is_counted_and_the_checkpoint_before_is_whole(tmp_path):
    """The system refuses to write more than 100 kB into a file, once: the run goes on and can be resumed."""
    engine, learner = toy_engine(), toy_learner()
    kept, save = Checkpoints(tmp_path, every=1, keep=9), learner.save
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def cramped(folder):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000 if learner.version == 2 else limits[0], limits[1]))
        try:
            save(folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    learner.save = cramped
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        _, reports = await run({"toy": toy_source(single_turn(), engine)}, engine, learner, config(), checkpoints=kept)
    finally:
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"step-00000{step}" for step in (1, 3, 4)]
    assert total(reports, "checkpoints/failed") == 1
    other = toy_learner()
    assert kept.load(tmp_path / "step-000001", other).step == 1 and other.version == 1


class Hanging(vf.SingleTurnEnv):
    """One task never ends."""

    async def setup_state(self, state):
        if state["answer"] == "A":
            await asyncio.sleep(3600)
        return await super().setup_state(state)


async def test_a_slow_environment_delays_nobody():
    """Its groups are cut off and counted; its other tasks and the other environment are trained."""
    engine, learner = toy_engine(), toy_learner()
    slow = Hanging(dataset=single_turn().get_dataset(), rubric=single_turn().rubric)
    sources = {
        "slow": toy_source(slow, engine, straggler_seconds=0.5),
        "fast": toy_source(single_turn(), engine),
    }
    loop, reports = await run(sources, engine, learner, config(steps=6))
    assert loop.step == 6
    assert total(reports, "groups/cancelled") >= 1 and total(reports, "outcomes/cancelled") % 4 == 0
    assert {"reward/slow", "reward/fast"} <= {name for report in reports for name in report.figures}


async def test_poison_and_unfit_tasks_are_counted_and_left_out():
    """A reward function that raises leaves its task unscored; one that is declared unfit is asked for once."""

    def reward(completion, answer):
        if answer == "A":
            raise ValueError("no gold answer")
        if answer == "a":
            raise InvalidTaskError("its picture is missing")
        return float(len(completion[-1]["content"] or "") % 3)

    class Checking(vf.SingleTurnEnv):
        async def setup_state(self, state):
            if state["answer"] == "a":
                raise InvalidTaskError("its picture is missing")
            return await super().setup_state(state)

    engine, learner = toy_engine(), toy_learner()
    env = Checking(dataset=single_turn().get_dataset(), rubric=vf.Rubric([reward]))
    loop, reports = await run({"toy": toy_source(env, engine)}, engine, learner, config(steps=3))
    fates = loop.flow.buffer.fates
    assert fates["invalid_task"] == 1 and total(reports, "outcomes/invalid_task") == 4
    assert fates["unscored"] >= 1 and total(reports, "errors/reward") >= 4
    assert reports[-1].figures["tasks_dropped/toy"] == 1
    trained = {row_id for report in reports for row_id in report.figures if row_id.startswith("reward/")}
    assert trained >= {"reward/mean", "reward/toy"}


async def test_weights_change_in_the_middle_of_rollouts():
    """Replies of 24 tokens go on under new weights: tokens of both versions in one row, each with its own."""
    engine, learner = toy_engine(threaded=True, deterministic=False), toy_learner()
    seen, step = [], learner.step

    def watched(rows):
        seen.extend(rows)
        return step(rows)

    learner.step = watched

    def even(completion):
        """The share of even bytes, about which two long replies hardly ever agree."""
        text = completion[-1]["content"].encode()
        return sum(byte % 2 == 0 for byte in text) / max(1, len(text))

    env = vf.SingleTurnEnv(dataset=single_turn().get_dataset(), rubric=vf.Rubric([even]))
    long = {"temperature": 1.0, "max_tokens": 24, "ignore_eos": True}
    env.sampling_args = long
    source = toy_source(env, engine, sampling=long)
    _, reports = await run({"toy": source}, engine, learner, config(steps=4, max_lag=4))
    mixed = [row for row in seen if len({v for v, own in zip(row.versions, row.mask, strict=True) if own}) > 1]
    assert mixed and all(row.versions == sorted(row.versions) for row in mixed)
    assert all(row.trainable == 24 for row in seen)
    assert max(report.figures["lag/max"] for report in reports) <= 4


@pytest.mark.parametrize(("retries", "failed"), [(0, 1), (1, 0)], ids=["none", "one"])
async def test_a_rollout_that_failed_by_infrastructure_is_played_again_alone(retries, failed):
    """With a retry nothing is missing; without one its group is trained without it."""
    engine, learner = toy_engine(), toy_learner()
    generate, calls = engine.generate, []

    async def fails_once(token_ids, params):
        calls.append(params["seed"])
        if len(calls) == 2:
            raise EngineError("the connection was lost")
        return await generate(token_ids, params)

    engine.generate = fails_once
    source = toy_source(single_turn(), engine, max_retries=retries)
    _, reports = await run({"toy": source}, engine, learner, config(steps=1))
    assert total(reports, "outcomes/failed") == total(reports, "errors/infrastructure") == failed
    assert total(reports, "groups/trained") == 2
    assert calls.count(calls[1]) == 1 + retries and len(calls) - len(set(calls)) == retries
