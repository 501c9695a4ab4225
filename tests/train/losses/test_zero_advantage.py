"""Groups without a difference: told apart, counted, and harmless if they are trained on."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.train.losses.groups import group_of
from verifiers.train.advantages import has_signal, make_algorithm, tally_group
from verifiers.train.config import AdvantageConfig
from verifiers.train.tally import Tally


@settings(max_examples=40)
@given(rewards=st.lists(st.sampled_from([0.0, 0.1, 1.0, None]), min_size=0, max_size=6))
def test_a_signal_is_a_difference_between_valid_members(rewards: list[float | None]) -> None:
    """max − min of the rewards that there are; failures are no difference."""
    valid = [reward for reward in rewards if reward is not None]
    expected = len(valid) > 1 and max(valid) - min(valid) > 0
    assert has_signal(make_algorithm(AdvantageConfig())(group_of(rewards))) == expected


def test_they_are_counted() -> None:
    """Of four groups two have no difference, one has too few members."""
    tally, algorithm = Tally(), make_algorithm(AdvantageConfig())
    for rewards in ([0.0, 0.0], [1.0, 1.0, None], [0.0, 1.0], [1.0, None]):
        own = tally_group(group := group_of(rewards), algorithm(group))
        tally.add(own)
    figures = tally.figures()
    assert figures["groups/zero_std"] == pytest.approx(2 / 3) and figures["groups/few"] == 0.25
    assert figures["groups/signal"] == 0.25


@pytest.mark.train
@pytest.mark.parametrize("kind", ["dppo", "icepop", "ppo", "reinforce", "gspo", "cispo"])
def test_their_policy_gradient_is_exactly_zero(kind: str) -> None:
    """Advantages of 0 with any ratio: no NaN, no gradient; only the regularisers act."""
    pytest.importorskip("torch")
    from tests.train.losses.helpers import run, tokens_of

    result = run(tokens_of([-1.0, -9.0, -0.1], [-2.0, -0.1, -80.0], 0.0), kind=kind)
    assert not result.gradient.any() and not result.value.any()
    drifting = run(tokens_of([-1.0], [-2.0], 0.0), kind=kind, drift=0.5)
    np.testing.assert_allclose(drifting.gradient, [1.0])
