"""Members that failed leave the loss and the baseline."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from tests.train.losses.groups import advantages_of, group_of, member
from verifiers.train.advantages import make_algorithm
from verifiers.train.config import AdvantageConfig
from verifiers.train.groups import GroupMember
from verifiers.types import Outcome

KINDS: list[dict[str, Any]] = [{}, {"std": True}, {"kind": "leave_one_out"}, {"kind": "max_rl"}, {"kind": "rae"}]


def test_the_baseline_of_one_two_three_and_a_failure_is_two() -> None:
    """1, 2, 3, error → −1, 0, 1: not −0.5, 0.5, 1.5, and not a fourth member with −1.5."""
    found = advantages_of(make_algorithm(AdvantageConfig())(group_of([1.0, 2.0, 3.0, None])))
    assert found == {"rollout-0": -1.0, "rollout-1": 0.0, "rollout-2": 1.0}


@pytest.mark.parametrize("settings", KINDS, ids=lambda settings: "-".join(map(str, settings.values())) or "mean")
@settings(max_examples=40)
@given(rewards=st.lists(st.floats(0, 5), min_size=2, max_size=5), places=st.lists(st.integers(0, 5), max_size=4))
def test_failures_change_nothing(settings: dict[str, Any], rewards: list[float], places: list[int]) -> None:
    """Wherever they stand: the others' advantages are those of the group without them."""
    config = AdvantageConfig(**settings)
    alone = advantages_of(make_algorithm(config)(group_of(rewards)))
    group = group_of(rewards)
    for number, place in enumerate(places):
        group.members.insert(place, member(100 + number, None))
    assert advantages_of(make_algorithm(config)(group)) == alone


def test_a_scored_member_without_evidence_is_out_too() -> None:
    """Its reward would move a baseline that its tokens are not trained against."""
    group = group_of([1.0, 3.0])
    group.members.append(GroupMember("unseen", Outcome.OK, 100.0, [], error_kind="evidence"))
    assert advantages_of(make_algorithm(AdvantageConfig())(group)) == {"rollout-0": -1.0, "rollout-1": 1.0}
