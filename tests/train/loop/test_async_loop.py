"""The loop on a virtual clock: what overlaps, what is paced, what happens to rollouts when weights change."""

from __future__ import annotations

import asyncio
import re
from collections import Counter

import pytest

from tests.support.training import (
    RecordingLearner,
    Setup,
    SimulatedPlayer,
    VirtualBlocking,
    play,
    simulated_source,
)
from tests.support.virtual_time import run_virtual
from verifiers.errors import ConfigError, NothingToTrainError, TrainingError
from verifiers.train.advantages import make_algorithm
from verifiers.train.config import AdvantageConfig
from verifiers.train.evaluation import Evaluation
from verifiers.train.flow import EnvironmentSource
from verifiers.train.loop import AsyncLoop
from verifiers.train.rows import EnvRef


def lags(made: Setup) -> list[int]:
    """Of every row that was trained: the learner's version minus the row's oldest."""
    return [
        version - min(v for v, sampled in zip(row.versions, row.mask, strict=True) if sampled)
        for version, rows in made.learner.steps
        for row in rows
    ]


def test_a_run_trains_its_steps_and_tells_each():
    """Batches of the configured size, versions that count up, rows with advantages, one report a step."""
    made = play()
    assert made.result.step == 6 and made.result.version == 6 and not made.result.stopped
    assert [version for version, _ in made.learner.steps] == list(range(6))
    assert [report.step for report in made.reports] == [1, 2, 3, 4, 5, 6]
    for (_, rows), report in zip(made.learner.steps, made.reports, strict=True):
        assert len({row.group_id for row in rows}) == 2 and len(rows) == 8
        assert all(row.advantages is not None for row in rows)
        assert report.figures["batch/rows"] == 8 and report.figures["groups/trained"] == 2
        assert report.figures["tokens/trained"] == sum(row.trainable for row in rows)
    assert made.sampler.version == 6


def test_nothing_is_sampled_that_no_step_would_train():
    """The last steps ask for fewer groups: all that were asked for are trained."""
    made = play(seconds=lambda random: random.lognormvariate(0, 1), train_seconds=0.5, loop={"max_lag": 8})
    assert made.loop.flow.buffer.asked == 12 and made.loop.flow.buffer.fates == {"trained": 12}
    assert len(made.player.played) == 12 * 4


@pytest.mark.parametrize("seed", range(16))
def test_a_batch_that_is_about_to_be_trained_is_owed_no_more(seed):
    """Groups that arrive in any turn of the event loop, also between the cut of a batch and the beginning of its step,
    ask for what the steps after it need."""
    made = play(
        seconds=lambda random: random.choice([0.0, 0.0, 0.0, 1.0]),
        turns=lambda random: random.randrange(12),
        loop={"seed": seed, "steps": 8, "max_lag": 8, "filter_zero_advantage": False},
        tasks=30,
    )
    assert made.loop.flow.buffer.asked == 16 == made.loop.flow.buffer.fates["trained"]


def test_without_lag_sampling_and_training_take_turns():
    """max_lag=0: every token is of the version that is trained, and the times add up."""
    made = play(loop={"max_lag": 0}, seconds=lambda _: 1.0, train_seconds=1.0)
    assert set(lags(made)) == {0}
    assert made.seconds == pytest.approx(12.0)
    assert {report.figures["lag/max"] for report in made.reports} == {0}


def test_with_lag_sampling_and_training_overlap():
    """The same costs take hardly more than half of the time: 6 steps and the first batch."""
    made = play(loop={"max_lag": 1}, seconds=lambda _: 1.0, train_seconds=1.0)
    assert made.seconds == pytest.approx(7.0)
    assert max(lags(made)) == 1


def test_overlapping_nearly_halves_the_time_of_equal_costs():
    """At least 1.9 times as many steps a second as in turn, over 40 steps."""
    turns, overlapping = (
        play(loop={"max_lag": lag, "steps": 40}, seconds=lambda _: 1.0, train_seconds=1.0, tasks=100).seconds
        for lag in (0, 8)
    )
    assert turns == pytest.approx(80) and turns / overlapping >= 1.9


def test_slow_tailed_rollouts_keep_the_trainer_waiting_for_little():
    """Log-normal times (σ = 1) of the same mean as a step: at most 5 % of the time, once the lead has been found."""
    made = play(
        loop={"max_lag": 8, "steps": 120, "groups_per_batch": 4, "group_size": 4},
        seconds=lambda random: random.lognormvariate(-0.5, 1),
        train_seconds=1.0,
        tasks=400,
    )
    steady = made.steps[30:100]
    waited = sum(report.figures.get("wait/trainer_s", 0) for report in steady)
    assert waited / sum(report.seconds for report in steady) <= 0.05


def test_rollouts_go_on_under_new_weights():
    """Weights change in the middle of replies: their tokens have several versions, and none is lost."""
    made = play(table=lambda seed: [1 + seed % 9] * 12, token_seconds=0.25, train_seconds=1.0, loop={"max_lag": 4})
    mixed = [row for _, rows in made.learner.steps for row in rows if len(set(row.versions)) > 1]
    assert mixed and all(row.trainable == 12 for row in mixed)
    assert made.sampler.updates == [1, 2, 3, 4, 5, 6]
    assert Counter(lags(made)) == Counter(
        lag for report in made.reports for lag, count in _histogram(report).items() for _ in range(count)
    )


def _histogram(report) -> dict[int, int]:
    return {
        int(name.removeprefix("lag/rows/")): int(count)
        for name, count in report.figures.items()
        if name.startswith("lag/rows/")
    }


def test_waits_of_both_sides_are_told():
    """In turn, each side waits half of the time."""
    made = play(loop={"max_lag": 0}, seconds=lambda _: 1.0, train_seconds=1.0)
    for report in made.reports[1:]:
        assert report.seconds == pytest.approx(2.0)
        assert report.figures["wait/trainer_share"] == pytest.approx(0.5)
        assert report.figures["wait/sampler_share"] == pytest.approx(0.5)


def test_groups_without_a_difference_are_replaced():
    """One task of two earns the same in all its rollouts: counted, not trained, others are asked for instead."""

    def reward(task_id, index, seed):
        return float(index % 2) if int(task_id[:4], 16) % 2 else 1.0

    made = play(reward=reward)
    fates = made.loop.flow.buffer.fates
    assert fates["trained"] == 12 and fates["no_signal"] > 0
    assert sum(report.figures.get("groups/no_signal", 0) for report in made.reports) == fates["no_signal"]


def test_a_run_without_any_signal_ends_with_the_reason():
    """After ten batches' worth of groups."""
    told = r"20 groups in a row gave nothing to train on: 20 no_signal \(mean reward 1\.000\)"
    with pytest.raises(TrainingError, match=told):
        play(reward=lambda *_: 1.0)


def solves_from(version: int, otherwise: float = 0.0):
    """Half of the rollouts solve their tasks until the policy is that version; from then on all earn the same."""

    def reward(task_id, index, seed):
        return float(index % 2) if made[0].sampler.version < version else 1.0 - otherwise

    made = []
    return reward, made.append


@pytest.mark.parametrize("max_lag", [0, 4])
def test_a_run_that_has_nothing_left_to_learn_ends_in_order(max_lag):
    """All groups are solved from version 3 on: no error, the last policy is sampled from and evaluated, once."""
    reward, told = solves_from(3)
    evaluated = []

    class Noting(Evaluation):
        async def run(self, version):
            evaluated.append(version)
            return {}

    async def main():
        options = {"steps": 50, "max_lag": max_lag, "max_empty_batches": 3}
        made = Setup(reward=reward, loop=options, train_seconds=1.0, evaluation=lambda _: Noting([], at_start=False))
        told(made)
        return made, await made.run()

    made, result = run_virtual(main())
    assert re.fullmatch(r"in \d+ groups in a row every rollout solved its task \(mean reward 1\.000\)", result.mastered)
    assert 3 <= result.step < 50 and not result.stopped and result.step == len(made.reports) - 1
    assert made.sampler.version == result.version and evaluated == [result.version]


def test_a_run_that_has_forgotten_everything_is_an_error():
    """All rollouts earn nothing: that is no end of a run, whatever was trained before."""
    reward, told = solves_from(3, otherwise=1.0)

    async def main():
        made = Setup(reward=reward, loop={"steps": 50})
        told(made)
        await made.run()

    with pytest.raises(NothingToTrainError, match=r"20 no_signal \(mean reward 0\.000\)"):
        run_virtual(main())


def test_a_stopped_run_ends_after_its_step():
    """In order: the sampler has the last weights, and the result says where it stopped."""

    async def main():
        made = Setup(train_seconds=1.0)
        made.loop._observers.append(lambda report: made.loop.stop() if report.step == 3 else None)
        return made, await made.run()

    made, result = run_virtual(main())
    assert result.stopped and result.step == 3 and made.sampler.version == 3


def test_a_sampler_that_keeps_its_old_weights_ends_the_run():
    """It says that it took them, and its tokens say otherwise: nothing would ever be young enough."""

    async def main():
        made = Setup()

        async def forgets(source, version):
            pass

        made.sampler.update_weights = forgets
        await made.run()

    with pytest.raises(TrainingError, match="trainer is at version 3, and their tokens are of version 0"):
        run_virtual(main())


def test_batches_without_a_token_to_train_on_are_told_and_end_the_run():
    """The learner masks everything: no new version, `trained` is False, and after ten in a row the reason."""

    class Masking(RecordingLearner):
        def step(self, rows):
            return {"loss/masked": 1.0}

    reports = []

    async def main():
        made = Setup(learner=Masking(), loop={"steps": 50})
        made.loop._observers.append(reports.append)
        await made.run()

    with pytest.raises(TrainingError, match="10 batches in a row had no token to train on"):
        run_virtual(main())
    assert [report.trained for report in reports] == [False] * 10
    assert {report.version for report in reports} == {0}


def test_an_observer_that_raises_is_counted_and_ends_nothing():
    """The others are told as ever."""

    async def main():
        made = Setup()

        def broken(report):
            raise RuntimeError("no space")

        made.loop._observers.insert(0, broken)
        await made.run()
        return made

    made = run_virtual(main())
    assert len(made.reports) == 6 and [r.figures.get("observers/failed") for r in made.reports] == [None, *[1.0] * 5]


def test_a_source_that_is_closed_ends_the_run():
    """Nothing would ever arrive again."""

    async def main():
        made = Setup(seconds=lambda _: 1.0, loop={"steps": 50})
        running = asyncio.create_task(made.run())
        await asyncio.sleep(3.5)
        await made.source.close()
        await running

    with pytest.raises(ConfigError, match=r"closed"):
        run_virtual(main())


def test_environments_share_the_groups_by_their_ratios():
    """Two thirds of what is trained is of one, a third of the other, each with its own mean reward."""

    async def main():
        made = Setup()
        other = simulated_source(SimulatedPlayer(made.sampler, reward=lambda task, index, seed: index * 2.0), 9, "o")
        loop = AsyncLoop(
            [
                EnvironmentSource("toy", made.source, made.source.task_ids, ratio=2.0),
                EnvironmentSource("other", other, other.task_ids, ref=EnvRef("me/other", "1.2.0", "sha256:0")),
            ],
            made.sampler,
            made.learner,
            make_algorithm(AdvantageConfig()),
            made.config,
            observers=[made.reports.append],
            blocking=VirtualBlocking(),
        )
        async with made.source, other:
            await loop.run()
        return made

    made = run_virtual(main())
    rows = [row for _, rows in made.learner.steps for row in rows]
    assert Counter(row.env.name for row in rows) == {"": 32, "me/other": 16}
    assert {report.figures.get("reward/other", 3.0) for report in made.reports} == {3.0}
    assert {report.figures.get("reward/toy", 0.5) for report in made.reports} == {0.5}
