"""Advantages: values against plain numpy, and laws of every kind."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.train.losses.groups import advantages_of, group_of
from verifiers.errors import ConfigError
from verifiers.train.advantages import check_advantages, has_signal, make_algorithm, tally_group
from verifiers.train.config import AdvantageConfig

KINDS: dict[str, dict[str, Any]] = {
    "mean": {},
    "std": {"std": True},
    "leave_one_out": {"kind": "leave_one_out"},
    "max_rl": {"kind": "max_rl"},
}
REWARDS = st.lists(st.floats(0, 10, allow_subnormal=False), min_size=2, max_size=8)


def values(rewards: list[Any], **settings: Any) -> list[float]:
    """The advantages of a group with these rewards, failed members left out."""
    return list(advantages_of(make_algorithm(AdvantageConfig(**settings))(group_of(rewards))).values())


@pytest.mark.parametrize("rewards", [[0.0, 1.0], [1.0, 2.0, 3.0], [0.0, 0.0, 0.0, 1.0], [0.25, 0.5, 0.1, 0.9, 1.0]])
def test_values_are_those_of_numpy(rewards: list[float]) -> None:
    """Each formula, written again."""
    r = np.array(rewards)
    assert values(rewards) == pytest.approx(list(r - r.mean()))
    assert values(rewards, std=True) == pytest.approx(list((r - r.mean()) / (r.std(ddof=1) + 1e-4)))
    assert values(rewards, kind="max_rl") == pytest.approx(list((r - r.mean()) / r.mean()))
    others = [np.delete(r, index).mean() for index in range(len(r))]
    assert values(rewards, kind="leave_one_out") == pytest.approx([a - b for a, b in zip(r, others, strict=True)])


def test_rae_moves_a_baseline_for_each_environment() -> None:
    """A = R − b with the baseline from before; b ← 0.95·b + 0.05·mean, once a member; a checkpoint keeps it."""
    algorithm = make_algorithm(AdvantageConfig(kind="rae"))
    baseline, expected = 0.0, []
    for rewards in ([1.0, 0.0], [1.0, 1.0]):
        expected += [reward - baseline for reward in rewards]
        for _ in rewards:
            baseline = 0.95 * baseline + 0.05 * sum(rewards) / 2
    first = advantages_of(algorithm(group_of([1.0, 0.0])))
    algorithm(group_of([5.0, 5.0], env_id="other"))
    second = advantages_of(rows := algorithm(group_of([1.0, 1.0])))
    assert [*first.values(), *second.values()] == pytest.approx(expected) and has_signal(rows)
    assert algorithm.baselines["toy"] == pytest.approx(baseline) and len(algorithm.baselines) == 2


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=40)
@given(rewards=REWARDS)
def test_they_sum_to_zero(kind: str, rewards: list[float]) -> None:
    """Nothing is gained by a whole group."""
    scale = 1 + max(map(abs, values(rewards, **KINDS[kind])))
    assert math.fsum(values(rewards, **KINDS[kind])) == pytest.approx(0, abs=1e-9 * scale)


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=40)
@given(data=st.data(), rewards=REWARDS)
def test_they_follow_a_permutation(kind: str, data: st.DataObject, rewards: list[float]) -> None:
    """The order of members means nothing."""
    order = data.draw(st.permutations(range(len(rewards))))
    straight = values(rewards, **KINDS[kind])
    assert values([rewards[index] for index in order], **KINDS[kind]) == [straight[index] for index in order]


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=40)
@given(reward=st.floats(0, 1e6), count=st.integers(2, 9))
def test_equal_rewards_give_exactly_nothing(kind: str, reward: float, count: int) -> None:
    """0.0, not the noise of a mean, and no division by a standard deviation of 0."""
    group = group_of([reward] * count)
    rows = make_algorithm(AdvantageConfig(**KINDS[kind]))(group)
    assert set(advantages_of(rows).values()) == {0.0} and not has_signal(rows)


@pytest.mark.parametrize("rewards", [[], [1.0], [None, None], [1.0, None, None]])
@pytest.mark.parametrize("kind", [*sorted(KINDS), "rae"])
def test_fewer_than_two_valid_members_give_none(kind: str, rewards: list[Any]) -> None:
    """A group of one has nothing to be compared with."""
    assert make_algorithm(AdvantageConfig(**KINDS.get(kind, {"kind": "rae"})))(group_of(rewards)) == []


def test_the_group_stays_as_it_was() -> None:
    """Rows are copied: the same group can be looked at by two algorithms."""
    group = group_of([0.0, 1.0])
    rows = make_algorithm(AdvantageConfig())(group)
    assert all(row.advantages is None for each in group.members for row in each.rows)
    assert rows[0].tokens is group.members[0].rows[0].tokens


def test_max_rl_refuses_what_would_turn_its_sign() -> None:
    """A mean below 0 would reward the worst."""
    with pytest.raises(ConfigError, match="a reward is -1"):
        values([-1.0, 0.5], kind="max_rl")
    assert values([0.0, 0.0], kind="max_rl") == [0.0, 0.0]


def test_figures_of_groups_add_up() -> None:
    """Shares are over groups or members, means over what there was; a group without advantages counts too."""
    algorithm = make_algorithm(AdvantageConfig())
    tally = tally_group(first := group_of([1.0, 3.0, None]), algorithm(first))
    for group in (group_of([2.0, 2.0]), group_of([5.0, None])):
        other = tally_group(group, algorithm(group))
        tally.add(other)
    figures = tally.figures()
    assert figures["groups/few"] == pytest.approx(1 / 3) and figures["groups/signal"] == pytest.approx(1 / 3)
    assert figures["groups/zero_std"] == 0.5 and figures["rollouts/valid"] == pytest.approx(5 / 7)
    assert figures["reward/mean"] == pytest.approx(13 / 5) and figures["rollouts/truncated"] == 0.0
    assert figures["reward/std"] == pytest.approx(math.sqrt(2) / 2)
    assert figures["advantage/mean"] == 0.0 and figures["advantage/abs"] == 0.5
    assert figures["advantage/abs/max"] == 1.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"std": True, "kind": "max_rl"}, "advantage.std has no effect with"),
        ({"rae_decay": 0.5}, "advantage.rae_decay has no effect with"),
        ({"step_discount": 0.5}, "advantage.step_discount has no effect without"),
        ({"std_eps": 0.5}, "advantage.std_eps has no effect without"),
        ({"step_rewards": True, "kind": "rae"}, "does not go with advantage.kind = 'rae'"),
        ({"step_rewards": True, "length_penalty": 0.1}, "advantage.length_penalty changes the reward of a rollout"),
        ({"overlong_soft_tokens": 5}, "no token limit is known"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    """What, and what to do."""
    with pytest.raises(ConfigError, match=said) as caught:
        make_algorithm(AdvantageConfig(**settings))
    assert caught.value.hint and caught.value.hint != ConfigError.hint


def test_the_soft_zone_needs_a_limit_above_it() -> None:
    """Known only with the sampling settings."""
    check_advantages(AdvantageConfig(overlong_soft_tokens=5), 5)
    with pytest.raises(ConfigError, match="the limit is 4 tokens"):
        check_advantages(AdvantageConfig(overlong_soft_tokens=5), 4)
