"""What holds for every schedule: no row is trained too late, and no group is lost or counted twice."""

from __future__ import annotations

import asyncio
import random
import re

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.training import Setup, play
from tests.support.virtual_time import run_virtual
from verifiers.errors import TrainingError

TIMES = st.sampled_from([0.0, 0.3, 1.0, 4.0])


@st.composite
def schedules(draw):
    """Everything that decides when things happen and how they end."""
    seed = draw(st.integers(0, 2**16))
    spread, train = draw(TIMES), draw(TIMES)
    trainer = random.Random(seed)
    ends = random.Random(seed + 1)
    max_lag = draw(st.integers(0, 4))
    failing = draw(st.sampled_from([0.0, 0.3]))
    shares = [("failed", failing), ("cancelled", 0.05), ("truncated", 0.1), ("unscored", 0.05)]

    def outcome(_):
        chance = ends.random()
        for name, share in shares:
            if (chance := chance - share) < 0:
                return name
        return "ok"

    return {
        "loop": {
            "steps": draw(st.integers(1, 6)),
            "groups_per_batch": draw(st.integers(1, 4)),
            "group_size": draw(st.integers(2, 5)),
            "max_lag": max_lag,
            "oversample": draw(st.sampled_from([1.0, 1.5, 3.0])) if max_lag else 1.0,
            "filter_zero_advantage": draw(st.booleans()),
            "max_empty_batches": 50,
        },
        "limits": {
            "max_rollouts": draw(st.sampled_from([1, 7, 100])),
            "straggler_seconds": draw(st.sampled_from([None, 9.0])),
            "max_lag": draw(st.sampled_from([None, 2])),
        },
        "token_seconds": draw(st.sampled_from([0.0, 0.2])),
        "seconds": lambda own: spread * own.lognormvariate(0, 1),
        "train_seconds": lambda: train * trainer.random(),
        "outcome": outcome,
        "reward": lambda task, index, seed: float(seed % 3),
    }


def oldest(row):
    return min(version for version, sampled in zip(row.versions, row.mask, strict=True) if sampled)


def check(made: Setup) -> None:
    """The laws, of a run that has ended."""
    buffer, config = made.loop.flow.buffer, made.config
    trained = [(version, row) for version, rows in made.learner.steps for row in rows]
    assert all(version - oldest(row) <= config.max_lag for version, row in trained)
    assert buffer.asked == buffer.fates.total() + len(buffer.in_flight) + len(buffer.ready)
    rollouts = [(row.group_id, row.rollout_id) for _, row in trained]
    assert len(set(rollouts)) == len(rollouts)
    batches = [{row.group_id for row in rows} for _, rows in made.learner.steps]
    assert all(len(batch) <= config.groups_per_batch for batch in batches)
    assert len(set().union(*batches)) == sum(map(len, batches)) == buffer.fates["trained"]
    ended = sum(report.figures.get("groups/ended", 0) for report in made.steps)
    assert ended <= buffer.fates.total() + len(buffer.ready)


@settings(max_examples=60)
@given(schedules())
def test_no_row_is_too_old_and_every_group_is_accounted_for(schedule):
    """Whatever takes how long, fails, is cut off, or has no signal."""
    made = play(**schedule)
    check(made)
    assert made.result.step == made.config.steps


@settings(max_examples=40)
@given(schedules(), st.floats(0, 8))
def test_a_run_cancelled_at_any_moment_is_in_order(schedule, moment):
    """The step that runs ends, what the learner saw is what the buffer counts, and nothing is left over."""

    async def main():
        made = Setup(**schedule)
        running = asyncio.create_task(made.run())
        await asyncio.wait({running}, timeout=moment)
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled() or running.result().step == made.config.steps
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return made

    made = run_virtual(main())
    assert made.loop.step == len(made.learner.steps) == made.loop.version
    check(made)


def test_a_run_in_which_everything_fails_ends_with_the_reason():
    """Ten batches' worth of groups, and what kept them from being trained."""
    with pytest.raises(TrainingError, match=re.escape("20 failed; errors of their rollouts: model (80)")):
        play(outcome=lambda _: "failed")
