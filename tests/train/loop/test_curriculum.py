"""The order of tasks: every one once an epoch, shares of environments, pools, and going on where it was."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from verifiers.errors import ConfigError, ResumeError, TrainingError
from verifiers.train.curriculum import Course, Curriculum, Pools

TASKS = [f"task{number}" for number in range(7)]


def taken(curriculum, count):
    return [curriculum.next() for _ in range(count)]


def test_every_task_comes_once_an_epoch_in_another_order_each():
    """And with a seed of the epoch."""
    asks = taken(Curriculum([Course("a", TASKS)]), 21)
    epochs = [[ask for ask in asks if ask.epoch == epoch] for epoch in range(3)]
    assert all(sorted(ask.task_id for ask in epoch) == TASKS for epoch in epochs)
    assert len({tuple(ask.task_id for ask in epoch) for epoch in epochs}) == 3
    assert [len({ask.seed for ask in epoch}) for epoch in epochs] == [1, 1, 1]
    assert len({ask.seed for ask in asks}) == 3 and [ask.number for ask in asks] == list(range(21))


def test_the_order_is_that_of_the_seed():
    """The same again for the same seed, another one for another."""
    first, again, other = (taken(Curriculum([Course("a", TASKS)], seed=seed), 20) for seed in (1, 1, 2))
    assert first == again and first != other
    assert {ask.seed for ask in first}.isdisjoint(ask.seed for ask in other)


@given(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=1, max_size=4), st.integers(1, 120))
def test_environments_have_their_shares_of_every_stretch(ratios, count):
    """After any number of groups each is less than one group away from its share for each environment there is."""
    courses = [Course(f"e{number}", TASKS, ratio) for number, ratio in enumerate(ratios)]
    counted = Counter(ask.env for ask in taken(Curriculum(courses), count))
    for course in courses:
        assert abs(counted[course.env] - count * course.ratio / sum(ratios)) < len(ratios)


def test_a_task_that_was_declared_unfit_does_not_come_again():
    """Others take its place, and if none is left the run ends."""
    curriculum = Curriculum([Course("a", TASKS)])
    first = curriculum.next()
    curriculum.drop(first)
    assert first.task_id not in {ask.task_id for ask in taken(curriculum, 30)}
    assert curriculum.figures()["tasks_dropped/a"] == 1
    for ask in taken(curriculum, 30):
        curriculum.drop(ask)
    with pytest.raises(TrainingError, match="every task was declared unfit"):
        curriculum.next()


def test_an_environment_without_a_task_left_leaves_its_share_to_the_others():
    """Here the only one of `a`."""
    curriculum = Curriculum([Course("a", ["one"]), Course("b", TASKS)])
    curriculum.drop(next(ask for ask in taken(curriculum, 4) if ask.env == "a"))
    assert {ask.env for ask in taken(curriculum, 10)} == {"b"}


def test_pools_prefer_tasks_of_middling_difficulty():
    """One in five epochs asks for a solved task, every epoch for the others; shares over 200 epochs."""
    curriculum = Curriculum([Course("a", TASKS, pools=Pools())])
    rewards = dict(zip(TASKS, (0.0, 0.25, 0.3, 0.5, 0.7, 0.75, 1.0), strict=True))
    counted: Counter[str] = Counter()
    while (ask := curriculum.next()).epoch < 200:
        curriculum.observe(ask, rewards[ask.task_id])
        curriculum.settle()
        counted[ask.task_id] += 1
    assert all(counted[task] == 200 for task in TASKS[2:5])
    assert all(20 < counted[task] < 65 for task in (*TASKS[:2], *TASKS[5:]))
    figures = curriculum.figures()
    assert figures["pools/hard/a"] == figures["pools/easy/a"] == 2


def test_pools_that_leave_nothing_over_are_passed_over_once():
    """All tasks are solved and weigh nothing: they are asked for all the same, one an epoch."""
    curriculum = Curriculum([Course("a", TASKS, pools=Pools(weight=0.0))])
    for ask in taken(curriculum, 7):
        curriculum.observe(ask, 1.0)
    curriculum.settle()
    assert len(taken(curriculum, 5)) == 5


def test_a_weight_above_one_prefers_the_others():
    """Hard and easy tasks then come every epoch, the middle one in four."""
    pools = Pools(weight=4.0)
    assert pools.chance(1.0) == pools.chance(0.0) == 1.0 and pools.chance(0.5) == pools.chance(None) == 0.25


def test_what_ended_first_does_not_matter_for_pools():
    """Observations count in the order of asking: the last group of a task decides."""
    early, late = (Curriculum([Course("a", TASKS, pools=Pools())]) for _ in range(2))
    asks = taken(early, 14)
    taken(late, 14)
    for curriculum, order in ((early, asks), (late, asks[::-1])):
        for ask in order:
            curriculum.observe(ask, ask.number % 3 / 2)
    assert early.state() == late.state() and taken(early, 20) == taken(late, 20)


@given(st.integers(0, 40), st.booleans())
def test_another_one_goes_on_where_it_was(count, pools):
    """From its state as JSON."""
    courses = [Course("a", TASKS, pools=Pools() if pools else None), Course("b", TASKS[:3], 0.5)]
    curriculum, other = Curriculum(courses, 3), Curriculum(courses, 3)
    for ask in taken(curriculum, count):
        curriculum.observe(ask, ask.number % 4 / 3)
        if ask.number % 9 == 8:
            curriculum.drop(ask)
    other.restore(json.loads(json.dumps(curriculum.state())))
    assert taken(other, 30) == taken(curriculum, 30)


def test_states_of_others_are_refused():
    """Other tasks, environments or seeds."""
    state = Curriculum([Course("a", TASKS)]).state()
    for course, seed in ((Course("a", TASKS[1:]), 0), (Course("b", TASKS), 0), (Course("a", TASKS), 1)):
        with pytest.raises(ResumeError):
            Curriculum([course], seed).restore(state)


def test_environments_need_tasks_and_names_of_their_own():
    """Otherwise figures would mix, or nothing be asked for."""
    with pytest.raises(ConfigError, match="one name: a, a"):
        Curriculum([Course("a", TASKS), Course("a", TASKS)])
    with pytest.raises(ConfigError, match="a has no tasks"):
        Curriculum([Course("a", [])])
