"""Truncated rollouts: in the baseline or not, in the loss or not; and the soft zone below the limit."""

import pytest

from tests.train.losses.groups import advantages_of, group_of, member, row_of
from verifiers.errors import EvidenceError
from verifiers.train.advantages import make_algorithm, soft_overlong
from verifiers.train.config import AdvantageConfig
from verifiers.train.groups import Group
from verifiers.types import Outcome


def mixed() -> Group:
    """Rewards 1, 2 and, truncated, 6."""
    group = group_of([1.0, 2.0])
    group.members.append(member(2, 6.0, Outcome.TRUNCATED))
    return group


@pytest.mark.parametrize(
    ("overlong", "expected"),
    [
        ("mask", {"rollout-0": -2.0, "rollout-1": -1.0}),
        ("keep", {"rollout-0": -2.0, "rollout-1": -1.0, "rollout-2": 3.0}),
        ("drop", {"rollout-0": -0.5, "rollout-1": 0.5}),
    ],
)
def test_three_ways(overlong: str, expected: dict[str, float]) -> None:
    """mask: out of the loss, in the baseline. keep: as any other. drop: out of both."""
    assert advantages_of(make_algorithm(AdvantageConfig(overlong=overlong))(mixed())) == expected


def test_masked_is_the_default() -> None:
    """Its reward still says how hard the task is."""
    assert AdvantageConfig().overlong == "mask"


def test_the_records_flags_decide_and_never_the_last_token() -> None:
    """A row that ends in the environment's words is not truncated, one that ends in a stop token can be."""
    group = group_of([0.0, 1.0, 2.0])
    group.members[0].rows = [row_of("rollout-0", 0.0, mask=[False, True, False], replies=[[0, 1, 2]])]
    group.members[2].rows = [row_of("rollout-2", 2.0, truncated=True)]
    kept = advantages_of(make_algorithm(AdvantageConfig())(group))
    assert kept == {"rollout-0": -1.0, "rollout-1": 0.0}


def test_one_truncated_row_takes_its_rollout_along() -> None:
    """The reward is of the rollout, so all its rows are in the loss, or none."""
    group = group_of([0.0, 2.0])
    group.members[0].rows = [row_of("rollout-0", 0.0, weight=0.5), row_of("rollout-0", 0.0, weight=0.5, truncated=True)]
    rows = make_algorithm(AdvantageConfig())(group)
    assert advantages_of(rows) == {"rollout-1": 1.0}


def test_dropping_can_leave_too_few() -> None:
    """Of two valid members one is truncated: one alone has no baseline."""
    group = group_of([0.0])
    group.members.append(member(1, 1.0, Outcome.TRUNCATED))
    assert make_algorithm(AdvantageConfig(overlong="drop"))(group) == []
    assert len(make_algorithm(AdvantageConfig(overlong="keep"))(group)) == 2


@pytest.mark.parametrize(("tokens", "loss"), [(1, 0), (80, 0), (81, 0.05), (90, 0.5), (100, 1), (130, 1)])
def test_the_soft_zone(tokens: int, loss: float) -> None:
    """Limit 100, zone 20: nothing up to 80 tokens, then 1/20 a token, at most 1 (DAPO, section 3.4)."""
    assert soft_overlong(tokens, 100, 20) == pytest.approx(loss)


def test_the_soft_zone_looks_at_the_longest_reply() -> None:
    """The limit is one of replies: two replies of 8 tokens are not one of 16."""
    group = group_of([1.0, 1.0])
    long = [False] + [True] * 8 + [False] + [True] * 8
    replies = [[0, 1, 9], [1, 10, 18]]
    group.members[0].rows = [row_of("rollout-0", 1.0, 17, mask=long, replies=replies)]
    algorithm = make_algorithm(AdvantageConfig(overlong_soft_tokens=4), max_tokens=10)
    assert advantages_of(algorithm(group)) == {"rollout-0": -0.25, "rollout-1": 0.25}  # 0.5 for 8 of 6..10
    group.members[0].rows[0].replies = []
    with pytest.raises(EvidenceError, match="does not say where its replies are"):
        algorithm(group)


def test_the_length_penalty_is_a_share_of_the_mean_reward() -> None:
    """The longest loses `share` of it, others in proportion to their tokens, over all rows of a rollout."""
    group = group_of([1.0, 2.0])
    group.members[0].rows = [row_of("rollout-0", 1.0, 6), row_of("rollout-0", 1.0, 2)]
    shaped = [1.0 - 0.2 * 1.5, 2.0 - 0.2 * 1.5 * 2 / 8]
    mean = sum(shaped) / 2
    found = advantages_of(make_algorithm(AdvantageConfig(length_penalty=0.2))(group))
    assert found == pytest.approx({"rollout-0": shaped[0] - mean, "rollout-1": shaped[1] - mean})


def test_length_is_no_reward_where_the_mean_is_negative() -> None:
    """A share of a negative mean would pay for tokens."""
    group = group_of([-1.0, -1.0])
    group.members[0].rows = [row_of("rollout-0", -1.0, 50)]
    assert set(advantages_of(make_algorithm(AdvantageConfig(length_penalty=0.2))(group)).values()) == {0.0}
