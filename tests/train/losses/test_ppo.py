"""PPO, clip-higher and dual clip: the four quadrants."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import run, tokens_of  # noqa: E402


@pytest.mark.parametrize(
    ("r", "advantage", "value", "gradient"),
    [
        (2.0, 1.0, -1.28, 0.0),  # good and already likelier: clipped
        (0.5, 1.0, -0.5, -0.5),  # good and less likely: pulled up
        (2.0, -1.0, 2.0, 2.0),  # bad and likelier: pushed down
        (0.5, -1.0, 0.8, 0.0),  # bad and already less likely: clipped
        (1.25, 1.0, -1.25, -1.25),  # within clip-higher
        (1.0, 1.0, -1.0, -1.0),
        (1.0, -1.0, 1.0, 1.0),
    ],
)
def test_four_quadrants(r: float, advantage: float, value: float, gradient: float) -> None:
    """−min(rA, clip(r, 0.8, 1.28)·A) and its gradient with respect to log π."""
    result = run(tokens_of([np.log(r)], [0.0], advantage), kind="ppo")
    assert result.value[0] == pytest.approx(value) and result.gradient[0] == pytest.approx(gradient)


def test_dual_clip_bounds_what_a_bad_token_can_do() -> None:
    """For A < 0 and r = 100 the loss is δ·|A| without gradient; for A > 0 nothing changes."""
    tokens = tokens_of(np.log([100.0, 100.0, 3.9, 0.5]), np.zeros(4), [-1.0, 1.0, -1.0, -1.0])
    plain, dual = run(tokens, kind="ppo"), run(tokens, kind="ppo", dual_clip=4.0)
    np.testing.assert_allclose(plain.value, [100, -1.28, 3.9, 0.8])
    np.testing.assert_allclose(dual.value, [4, -1.28, 3.9, 0.8])
    np.testing.assert_allclose(dual.gradient, [0, 0, 3.9, 0], atol=1e-12)
    assert dual.figures["loss/clipped_dual"] == 0.25


def test_what_was_clipped_is_counted_by_side() -> None:
    """Only tokens whose gradient the bound took: r beyond it with the other sign is not clipped."""
    r, a = np.array([2.0, 2.0, 0.5, 0.5, 1.0]), np.array([1.0, -1.0, 1.0, -1.0, 1.0])
    result = run(tokens_of(np.log(r), np.zeros(5), a), kind="ppo")
    assert result.figures["loss/clipped_high"] == 0.2 and result.figures["loss/clipped_low"] == 0.2
    assert [value == 0.0 for value in result.gradient] == [True, False, False, True, False]


@settings(max_examples=40)
@given(
    log_r=st.floats(-3, 3),
    advantage=st.floats(-3, 3).filter(lambda a: abs(a) > 1e-3),
    low=st.floats(0.01, 0.9),
    high=st.floats(0.01, 2),
    extra=st.none() | st.floats(0.5, 3),
)
def test_against_numpy(log_r: float, advantage: float, low: float, high: float, extra: float | None) -> None:
    """Any bounds, away from the kinks."""
    dual = None if extra is None else 1 + high + extra
    bounds = [1 - low, 1 + high, *([] if dual is None else [dual])]
    if min(abs(np.exp(log_r) - bound) for bound in bounds) < 1e-6:
        return
    tokens = tokens_of([log_r - 4], [-4.0], advantage)
    value, gradient = oracles.ppo(tokens, low, high, dual)
    result = run(tokens, kind="ppo", clip_low=low, clip_high=high, dual_clip=dual)
    np.testing.assert_allclose([*result.value, *result.gradient], [*value, *gradient], atol=1e-10)


def test_the_clip_is_around_the_sampler_or_around_the_old_policy() -> None:
    """Without tis_cap r = π/μ; with it r = π/π_old, times the truncated π_old/μ."""
    tokens = oracles.random_tokens(4)
    assert tokens.old is not None
    value, gradient = oracles.ppo(tokens, 0.2, 0.28)
    result = run(tokens, kind="ppo")
    np.testing.assert_allclose([result.value, result.gradient], [value, gradient], atol=1e-12)
    value, gradient = oracles.ppo(tokens, 0.2, 0.28, before=tokens.old)
    weight = np.minimum(np.exp(tokens.old - tokens.mu), 2.0)
    result = run(tokens, kind="ppo", tis_cap=2.0)
    np.testing.assert_allclose([result.value, result.gradient], [weight * value, weight * gradient], atol=1e-12)
