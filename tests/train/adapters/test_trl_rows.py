"""What TRL is given of a group says which tokens were sampled, and makes no reward up."""

from dataclasses import replace
from typing import Any

import pytest

from verifiers.errors import ConfigError
from verifiers.train.adapters.trl_rows import REWARD, Batch, only_untrained
from verifiers.train.groups import Group, GroupMember
from verifiers.train.rows import Row
from verifiers.types import Outcome

TWO_TURNS = Row(
    tokens=[9, 1, 2, 8, 3, 4],
    mask=[False, True, True, False, True, False],
    logprobs=[0.0, -0.1, -0.2, 0.0, -0.3, 0.0],
    versions=[4] * 6,
    reward=0.5,
    metrics={"exact": 1.0},
)


def member(*rows: Row, outcome: Outcome = Outcome.OK, reward: float | None = 0.5, **more: Any) -> GroupMember:
    """One rollout."""
    return GroupMember("r1", outcome, reward, list(rows), **more)


def columns(*members: GroupMember, **options: Any) -> tuple[dict[str, Any], Batch]:
    """The columns of a group."""
    batch = Batch()
    batch.add(
        Group("g", "t", list(members)),
        **{"filler": 7, "forks": "most", "mask_truncated": False, **options},
    )
    return batch.columns(), batch


def test_turns_are_told_apart_and_the_end_is_a_sampled_token() -> None:
    """The prompt ends where sampling began; what the environment said is masked, and cut off at the end."""
    given, batch = columns(member(TWO_TURNS))
    assert given["prompt_ids"] == [[9]] and given["completion_ids"] == [[1, 2, 8, 3]]
    assert given["env_mask"] == [[1, 1, 0, 1]] and given["logprobs"] == [[-0.1, -0.2, 0.0, -0.3]]
    assert given[REWARD] == [0.5] and batch.figures() == {"environment/exact": 1.0}


@pytest.mark.parametrize(
    ("lost", "counted"),
    [
        (member(outcome=Outcome.FAILED, reward=None), "failed"),
        (member(outcome=Outcome.CANCELLED, reward=None), "cancelled"),
        (member(TWO_TURNS, outcome=Outcome.UNSCORED, reward=None), "unscored"),
        (member(outcome=Outcome.OK, reward=1.0), "no_evidence"),
    ],
    ids=["failed", "cancelled", "unscored", "no evidence"],
)
def test_what_can_not_be_trained_has_a_place_and_no_reward(lost: GroupMember, counted: str) -> None:
    """A row of one masked token with None, never 0, for its reward; it is counted by why."""
    given, batch = columns(lost, member(TWO_TURNS))
    assert given[REWARD] == [None, 0.5] and given["env_mask"][0] == [0]
    assert given["completion_ids"][0] == [7] and given["logprobs"][0] == [0.0]
    assert batch.counts == {"rollouts": 2, counted: 1} and batch.figures()[f"environment/{counted}"] == 0.5
    assert only_untrained([Group("g", "t", [lost])]) and not only_untrained([Group("g", "t", [member(TWO_TURNS)])])


def test_of_a_forked_rollout_one_row_is_trained_and_the_others_are_counted() -> None:
    """The one with the most sampled tokens; or the rollout is refused."""
    short = replace(TWO_TURNS, tokens=[9, 1], mask=[False, True], logprobs=[0.0, -1.0], versions=[4, 4])
    given, batch = columns(member(short, TWO_TURNS))
    assert given["completion_ids"] == [[1, 2, 8, 3]]
    assert batch.counts == {"rollouts": 1, "forked": 1, "rows_left_out": 1, "tokens_left_out": 1}
    with pytest.raises(ConfigError, match="gave 2 rows"):
        columns(member(short, TWO_TURNS), forks="refuse")


@pytest.mark.parametrize("mask_truncated", [True, False])
def test_truncation_is_the_records_word(mask_truncated: bool) -> None:
    """A truncated rollout keeps its reward for the baseline; its tokens leave the loss if that is asked for."""
    given, batch = columns(member(replace(TWO_TURNS, truncated=True)), mask_truncated=mask_truncated)
    assert given["env_mask"] == [[0, 0, 0, 0] if mask_truncated else [1, 1, 0, 1]]
    assert given[REWARD] == [0.5] and batch.counts["truncated"] == 1
