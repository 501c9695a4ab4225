"""The account of groups stays right when a run ends in the middle of it: what ended has one fate, the rest is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.train.losses.groups import group_of
from verifiers.errors import NothingToTrainError, TrainingError
from verifiers.train.advantages import make_algorithm
from verifiers.train.buffer import Buffer
from verifiers.train.config import AdvantageConfig
from verifiers.train.curriculum import Ask
from verifiers.types import Outcome


def filled(count, algorithm=None, **limits):
    """A buffer, and groups that it was asked for."""
    options = {"groups_per_batch": 2, "max_lag": 1, **limits}
    buffer = Buffer(algorithm or make_algorithm(AdvantageConfig()), **options)
    asks = [Ask(number, "toy", "task", 1, 0) for number in range(count)]
    for ask in asks:
        buffer.ask(ask)
    return buffer, [replace(group_of([0.0, 1.0]), group_id=ask.group_id) for ask in asks]


def accounted(buffer):
    return buffer.asked == buffer.fates.total() + buffer.under_way


def test_a_group_whose_advantages_can_not_be_computed_is_played_again():
    """The algorithm raises, the run ends, and the group is still in flight for whoever goes on."""

    def broken(group):
        raise ZeroDivisionError(group.group_id)

    buffer, groups = filled(2, broken)
    with pytest.raises(ZeroDivisionError, match="g000001"):
        buffer.arrived(groups[1])
    assert accounted(buffer) and [ask.number for ask in buffer.snapshot().in_flight] == [0, 1]


def test_groups_that_end_a_run_by_their_age_are_counted_once():
    """Those that were too old are stale, and not ready as well."""
    buffer, groups = filled(3, max_empty=3)
    for group in groups:
        buffer.arrived(group)
    with pytest.raises(TrainingError, match="3 groups in a row were more than 1 versions old"):
        buffer.cut(5)
    assert accounted(buffer) and dict(buffer.fates) == {"stale": 3} and buffer.ready == []


@pytest.mark.parametrize("overlong", ["mask", "drop"])
def test_groups_of_nothing_but_cut_off_replies_say_which_settings_leave_them_out(overlong):
    """They are scored and played well: neither the environment nor the sampler is to blame."""
    algorithm = make_algorithm(AdvantageConfig(overlong=overlong), 8)
    buffer, groups = filled(3, algorithm, max_empty=3)
    cut = [[replace(one, outcome=Outcome.TRUNCATED) for one in group.members] for group in groups]
    for group, members in zip(groups[:2], cut, strict=False):
        buffer.arrived(replace(group, members=members))
    with pytest.raises(TrainingError, match="3 groups in a row gave nothing to train on: 3 no_rows") as raised:
        buffer.arrived(replace(groups[2], members=cut[2]))
    assert "sampling.max_tokens" in raised.value.hint and "advantage.overlong=keep" in raised.value.hint


SOLVED = [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("before", "groups", "mastered"),
    [
        ([0.0, 1.0], [SOLVED] * 3, True),
        ([0.0, 1.0], [SOLVED, SOLVED, [1.0, 1.0, None]], True),
        ([0.0, 0.3 + 0.3 + 0.3 + 0.1], [[0.3 + 0.3 + 0.3 + 0.1] * 3] * 3, True),
        ([0.0, 1.2], [[1.2] * 3] * 3, True),
        ([0.0, 1.2], [SOLVED] * 3, False),
        ([0.0, 1.0], [SOLVED, SOLVED, [2.0] * 3], False),
        ([0.0, 1.0], [SOLVED, SOLVED, [0.0, 0.0, 0.0]], False),
        ([0.0, 1.0], [[0.5, 0.5, 0.5]] * 3, False),
        ([0.0, 1.0], [SOLVED, SOLVED, [None] * 3], False),
        ([0.0, 1.0], [SOLVED, SOLVED, [1.0, 1.0, None, None, None]], False),
        (None, [SOLVED] * 3, False),
    ],
    ids=["solved", "one-failed", "rounded", "above-1", "below-best", "better-later", "one-at-0", "half",
         "a-group-failed", "most-failed", "never-trained"],
)  # fmt: skip
def test_a_streak_of_solved_groups_is_the_end_and_any_other_an_error(before, groups, mastered):
    """Only if a batch was trained, and every group was solved by all that were scored, which have to be most."""
    buffer, asked = filled(5, max_empty=3)
    if before is not None:
        for group in asked[:2]:
            buffer.arrived(replace(group_of(before), group_id=group.group_id))
        assert buffer.cut(0) is not None
    made = [replace(group_of(rewards), group_id=one.group_id) for rewards, one in zip(groups, asked[2:], strict=True)]
    for group in made[:2]:
        buffer.arrived(group)
    assert not buffer.mastered
    if mastered:
        buffer.arrived(made[2])
        assert buffer.mastered.startswith("in 3 groups in a row every rollout solved its task")
    else:
        with pytest.raises(NothingToTrainError, match="3 groups in a row gave nothing to train on") as raised:
            buffer.arrived(made[2])
        assert raised.value.hint and not buffer.mastered
    assert accounted(buffer)


def test_a_run_is_not_mastered_while_an_environment_has_not_been_heard():
    """Quick rollouts of one that is solved do not end a run before the slow ones of another have come in."""
    buffer, asked = filled(7, max_empty=3)
    for group in asked[:2]:
        buffer.arrived(group)
    assert buffer.cut(0) is not None
    slow = Ask(7, "slow", "task", 1, 0)
    buffer.ask(slow)
    for group in asked[2:6]:
        buffer.arrived(replace(group_of(SOLVED), group_id=group.group_id))
    assert not buffer.mastered
    buffer.arrived(replace(group_of(SOLVED), group_id=slow.group_id, env_id="slow"))
    assert buffer.mastered.startswith("in 5 groups in a row") and accounted(buffer)


def test_an_environment_without_a_fit_task_is_not_waited_for():
    """It is asked no more, and what the others have learned is the end."""
    buffer, asked = filled(5, max_empty=3)
    unfit = Ask(5, "unfit", "task", 1, 0)
    buffer.ask(unfit)
    members = [replace(one, outcome=Outcome.INVALID_TASK) for one in asked[0].members]
    buffer.arrived(replace(asked[0], group_id=unfit.group_id, env_id="unfit", members=members))
    for group in asked[:2]:
        buffer.arrived(group)
    assert buffer.cut(0) is not None
    for group in asked[2:]:
        buffer.arrived(replace(group_of(SOLVED), group_id=group.group_id))
    assert buffer.mastered
