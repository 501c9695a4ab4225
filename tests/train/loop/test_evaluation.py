"""Evaluation while training: of one version, complete, and counted apart from what is trained."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.training import Setup, SimulatedPlayer, play, simulated_source
from tests.support.virtual_time import run_virtual
from verifiers.train.checkpoint import Checkpoints
from verifiers.train.evaluation import EvaluatedEnvironment, Evaluation


def evaluation(players=None, *, tasks=5, every=2, at_start=True, seconds=2.5, **options):
    """Of `tasks` tasks that take `seconds`, with the sampler of training."""

    def make(setup):
        player = SimulatedPlayer(setup.sampler, seconds=lambda _: seconds, **options)
        if players is not None:
            players.append(player)
        source = simulated_source(player, tasks, "e")
        return Evaluation([EvaluatedEnvironment("held-out", source, source.task_ids)], every=every, at_start=at_start)

    return make


def evaluated(made):
    return [report for report in made.reports if "eval/version" in report.figures]


def test_the_base_model_is_evaluated_first_and_the_last_one_too():
    """At step 0, at every second step, and at the end; nothing of it is trained."""
    made = play(evaluation=evaluation(every=4))
    assert [(one.step, one.figures["eval/version"]) for one in evaluated(made)] == [(0, 0), (4, 4), (6, 6)]
    for report in evaluated(made):
        assert report.figures["eval/held-out/scored"] == 5 and not report.trained
        assert 0 < report.figures["eval/held-out/reward"] < 1
    trained = {row.task_id for _, rows in made.learner.steps for row in rows}
    assert trained <= set(made.source.task_ids)


def test_an_evaluation_is_of_one_version(monkeypatch):
    """Weights are held back while it runs; training goes on as far as lag lets it, and never further."""
    seen = []

    def reward(task_id, index, seed):
        seen.append(setup[0].sampler.version)
        return 1.0

    setup = []
    make = evaluation(seconds=7.0, reward=reward, every=3)

    def keep(made):
        setup.append(made)
        return make(made)

    made = play(evaluation=keep, seconds=lambda _: 1.0, train_seconds=1.0, loop={"max_lag": 2, "steps": 9})
    versions = [report.figures["eval/version"] for report in evaluated(made)]
    assert seen == [version for version in versions for _ in range(5)]
    assert max(report.figures["lag/max"] for report in made.steps) == 2
    assert made.sampler.updates[-1] == 9 and len(made.sampler.updates) < 9


def test_an_evaluation_that_was_cut_off_is_made_when_the_run_goes_on(tmp_path):
    """The last one, too, when all steps were trained before the run was cancelled."""
    kept = Checkpoints(tmp_path, every=1)

    async def main():
        made = Setup(evaluation=evaluation(seconds=50.0, at_start=False, every=100), checkpoints=kept)
        running = asyncio.create_task(made.run())
        await asyncio.wait({running}, timeout=20.0)
        running.cancel()
        await asyncio.wait({running})
        return made

    first = run_virtual(main())
    assert first.loop.step == 6 and evaluated(first) == []
    rest = play(evaluation=evaluation(at_start=False, every=100), checkpoints=kept, resume=True)
    assert [(one.step, one.figures["eval/version"]) for one in evaluated(rest)] == [(6, 6)] and not rest.steps


def test_without_lag_training_waits_for_the_evaluation():
    """max_lag=0: nothing is trained on rows of an older version."""
    made = play(evaluation=evaluation(every=2), seconds=lambda _: 1.0, train_seconds=1.0, loop={"max_lag": 0})
    assert {report.figures["lag/max"] for report in made.steps} == {0}
    assert [one.figures["eval/version"] for one in evaluated(made)] == [0, 2, 4, 6]


def test_failures_are_counted_and_not_in_the_mean():
    """Four of five tasks fail: the reward is that of the fifth."""
    failing = iter(["failed"] * 4 + ["ok"] + ["failed"] * 15)
    made = play(evaluation=evaluation(every=6, outcome=lambda _: next(failing), reward=lambda *_: 1.0))
    first, last = evaluated(made)
    assert first.figures["eval/held-out/reward"] == 1.0
    assert first.figures["eval/held-out/failed"] == 4 and first.figures["eval/held-out/outcomes/failed"] == 4
    assert "eval/held-out/reward" not in last.figures and last.figures["eval/held-out/failed"] == 5


def test_two_evaluations_differ_by_their_policies_alone():
    """The same rollouts with the same seeds."""
    players = []
    play(evaluation=evaluation(players, every=3))
    played = players[0].played
    assert len(played) == 15 and played[:5] == played[5:10] == played[10:]


def test_evaluations_that_are_overtaken_are_counted():
    """They take longer than the steps between them: the policies in between are never with the sampler."""
    made = play(
        evaluation=evaluation(every=1, seconds=50.0, at_start=False),
        seconds=lambda _: 1.0,
        train_seconds=1.0,
        loop={"max_lag": 4},
    )
    skipped = sum(report.figures.get("eval/skipped", 0) for report in made.steps)
    assert len(evaluated(made)) + skipped == pytest.approx(6)
    assert evaluated(made)[-1].step == 6
