"""How much may be under way: what is expected to be trained in time, and no more than keeps the trainer busy."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tests.support.training import play
from verifiers.train.pacing import PATIENCE, Pace


@given(st.integers(1, 9), st.integers(0, 6), st.integers(0, 8), st.integers(0, 60))
def test_whatever_is_asked_for_is_expected_in_time(groups, max_lag, behind, under_way):
    """The last of them waits for those before it, and is trained at most `max_lag` versions late."""
    pace = Pace(groups, max_lag)
    for _ in range(max_lag):
        pace.adapt(starved=True, ready=0)
    room = pace.room(under_way=under_way, behind=behind, owed=10_000)
    if room:
        assert behind + (under_way + room - 1) // groups <= max_lag
    else:
        assert behind + under_way // groups > max_lag or behind > max_lag


def test_without_lag_nothing_is_asked_for_while_a_batch_is_trained():
    """And one batch as soon as its weights are published."""
    pace = Pace(4, 0)
    assert pace.room(under_way=0, behind=1, owed=100) == 0
    assert pace.room(under_way=0, behind=0, owed=100) == 4


def test_the_lead_grows_when_the_trainer_starves_and_falls_slowly():
    """Within 1 and `max_lag`."""
    pace = Pace(4, 3)
    for _ in range(5):
        pace.adapt(starved=True, ready=0)
    assert pace.lead == 3
    for _ in range(3 * PATIENCE):
        pace.adapt(starved=False, ready=4)
    assert pace.lead == 2
    pace.adapt(starved=False, ready=3)
    for _ in range(2 * PATIENCE - 1):
        pace.adapt(starved=False, ready=4)
    assert pace.lead == 2
    for _ in range(100):
        pace.adapt(starved=False, ready=9)
    assert pace.lead == 1


def test_a_slow_trainer_gets_fresh_rows():
    """Sampling is ten times as fast: nothing is gained by rows that are eight versions old, so none are."""
    made = play(loop={"max_lag": 8, "steps": 20}, seconds=lambda _: 0.1, train_seconds=1.0)
    assert max(report.figures["lag/max"] for report in made.steps[3:]) <= 2
    assert sum(report.figures.get("wait/trainer_s", 0) for report in made.steps[1:]) == pytest.approx(0)


def test_a_slow_sampler_is_kept_busy():
    """Training is ten times as fast: the sampler never waits between its start and its end."""
    made = play(loop={"max_lag": 4, "steps": 20}, seconds=lambda _: 1.0, concurrent=8, train_seconds=0.1)
    assert sum(report.figures.get("wait/sampler_s", 0) for report in made.steps[1:-1]) == pytest.approx(0)
    assert made.seconds == pytest.approx(20, abs=1.5)


def test_oversampling_pays_for_stragglers():
    """With half as many groups again, batches wait less for the slowest."""
    tail = {"seconds": lambda random: random.lognormvariate(0, 1), "loop": {"max_lag": 1, "steps": 30}}
    plain = play(**tail)
    tail["loop"]["oversample"] = 1.5
    assert play(**tail).seconds < 0.8 * plain.seconds
