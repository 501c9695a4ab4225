"""Rewards turn by turn: each from its turn on, against all members at that turn."""

from typing import Any

import pytest

from tests.train.losses.groups import group_of, row_of
from verifiers.errors import ConfigError, EvidenceError
from verifiers.rollouts.source import GroupResult, Member, RolloutRequest
from verifiers.train.advantages import discounted, has_signal, make_algorithm
from verifiers.train.config import AdvantageConfig
from verifiers.train.groups import Group, group_of as grouped
from verifiers.train.rows import Row
from verifiers.types import Outcome


def played(*rewards: list[float] | None) -> Group:
    """A group of members with these rewards a turn; each turn has one token of context and two sampled ones."""
    group = group_of([sum(own or [0.0]) for own in rewards])
    for member, own in zip(group.members, rewards, strict=True):
        turns = len(own or [0.0])
        mask = [False, True, True] * turns
        replies = [[turn, 3 * turn + 1, 3 * turn + 3] for turn in range(turns)]
        member.rows = [row_of(member.rollout_id, member.reward, mask=mask, replies=replies)]
        member.step_rewards = own
    return group


def by_turn(row: Row) -> list[float]:
    """The advantage of each turn, context having none."""
    assert row.advantages is not None
    assert not any(row.advantages[0::3]) and row.advantages[1::3] == row.advantages[2::3]
    return row.advantages[1::3]


def test_returns_are_discounted_once_a_turn() -> None:
    """1, 0, 2 at 0.5: 1 + 0.5·(0 + 0.5·2) = 1.5, 1, 2."""
    assert discounted([1.0, 0.0, 2.0], 0.5) == [1.5, 1.0, 2.0]


def test_a_turn_is_worth_what_came_from_it_on() -> None:
    """Not what came before it. A member that had ended counts as 0 in later baselines, it does not leave them."""
    rows = make_algorithm(AdvantageConfig(step_rewards=True))(played([1.0, 3.0], [2.0]))
    # returns 4, 3 and 2; baselines 3 and (3 + 0) / 2
    assert by_turn(rows[0]) == [1.0, 1.5] and by_turn(rows[1]) == [-1.0]


def test_the_last_player_alive_still_has_a_signal() -> None:
    """Against a mean of those still playing it would be compared with itself: 0, however good its turn."""
    rows = make_algorithm(AdvantageConfig(step_rewards=True))(played([0.0, 0.0, 6.0], [0.0], [0.0]))
    assert by_turn(rows[0]) == [4.0, 4.0, 4.0] and has_signal(rows)


def test_leave_one_out_and_std_are_turn_by_turn() -> None:
    """Each turn's returns as if they were the rewards of a group."""
    rows = make_algorithm(AdvantageConfig(step_rewards=True, kind="leave_one_out"))(played([1.0, 3.0], [0.0]))
    assert by_turn(rows[0]) == [4.0, 3.0] and by_turn(rows[1]) == [-4.0]
    rows = make_algorithm(AdvantageConfig(step_rewards=True, std=True))(played([1.0, 3.0], [0.0]))
    assert by_turn(rows[0]) == pytest.approx([2 / (8**0.5 + 1e-4), 1.5 / (4.5**0.5 + 1e-4)])


def test_it_is_not_the_default() -> None:
    """Without it, a rollout's tokens share one advantage, of its reward."""
    rows = make_algorithm(AdvantageConfig())(played([1.0, 3.0], [0.0]))
    assert by_turn(rows[0]) == [2.0, 2.0]


def test_forked_rows_know_their_turns() -> None:
    """Turn 1 in a row of its own, turn 2 going on from turn 0: each token has its own turn's advantage."""
    group = played([1.0, 2.0, 4.0], [0.0, 0.0, 0.0])
    first = row_of("rollout-0", 7.0, mask=[False, True, False, True], replies=[[0, 1, 2], [2, 3, 4]], weight=2 / 3)
    group.members[0].rows = [first, row_of("rollout-0", 7.0, 1, replies=[[1, 1, 2]], weight=1 / 3)]
    rows = make_algorithm(AdvantageConfig(step_rewards=True))(group)
    assert rows[0].advantages == [0.0, 3.5, 0.0, 2.0] and rows[1].advantages == [0.0, 3.0]


def test_who_gives_none_is_told_or_left_out() -> None:
    """An environment without them is a mistake of the settings; a single member without them leaves the group."""
    algorithm = make_algorithm(AdvantageConfig(step_rewards=True))
    with pytest.raises(ConfigError, match="'toy' gives its turns no rewards"):
        algorithm(played(None, None))
    rows = algorithm(played([1.0], None, [3.0]))
    assert [row.rollout_id for row in rows] == ["rollout-0", "rollout-2"] and by_turn(rows[0]) == [-1.0]
    assert algorithm(played([1.0], None)) == []


def test_rows_that_do_not_know_their_turns_are_refused() -> None:
    """Never silently without advantages."""
    group = played([1.0], [2.0])
    group.members[0].rows[0].replies = []
    with pytest.raises(EvidenceError, match="does not say where its replies are"):
        make_algorithm(AdvantageConfig(step_rewards=True))(group)


def recorded(reward: float, *turns: tuple[list[int], list[int], float | None]) -> Any:
    """A member with a record of turns: prompt ids, completion ids, reward."""
    steps = [
        {
            "reward": own,
            "response": {"message": {"finish_reason": "stop"}},
            "tokens": {"prompt_ids": prompt, "completion_ids": reply, "completion_logprobs": [-0.5] * len(reply)},
        }
        for prompt, reply, own in turns
    ]
    return Member("r", 0, Outcome.OK, {"outcome": "ok", "reward": reward, "trajectory": steps})


def test_records_say_which_tokens_a_turn_sampled() -> None:
    """Merged or forked, with or without context between two replies."""
    member = recorded(
        6.0, ([1], [2, 3], 1.0), ([1, 2, 3], [4], 2.0), ([9, 9], [8], 3.0), ([1, 2, 3, 4, 5], [6, 7], 0.0)
    )
    (member,) = grouped(GroupResult(RolloutRequest("task", "group"), [member])).members
    assert [row.replies for row in member.rows] == [[[0, 1, 3], [1, 3, 4], [3, 5, 7]], [[2, 2, 3]]]
    assert member.step_rewards == [1.0, 2.0, 3.0, 0.0]


@pytest.mark.parametrize(
    ("reward", "turns", "expected"),
    [
        (2.0, (2.0, 2.0), None),  # scoring fills in the rollout's reward where there is none
        (2.0, (2.0, None), None),
        (2.0, (2.0,), [2.0]),
        (0.0, (0.0, 0.0), [0.0, 0.0]),
        (2.0, (0.0, 2.0), [0.0, 2.0]),
    ],
)
def test_a_rollouts_reward_on_every_turn_is_no_reward_turn_by_turn(reward: float, turns: Any, expected: Any) -> None:
    """Its return would be as many times the reward as there are turns."""
    member = recorded(reward, *(([1], [2], own) for own in turns))
    (member,) = grouped(GroupResult(RolloutRequest("task", "group"), [member])).members
    assert member.step_rewards == expected
