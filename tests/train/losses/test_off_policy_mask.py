"""DeepSeek-V3.2's mask: rows of negative advantage that the policy has left."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import run, tokens_of  # noqa: E402


def test_only_negative_rows_beyond_the_bound_are_dropped() -> None:
    """Mean log μ − log π of 0.5 and 0.2 at δ = 0.3, of both signs; single tokens may be beyond it."""
    row = [0, 0, 1, 1, 2, 2, 3, 3]
    gap = np.array([0.9, 0.1, 0.9, 0.1, 0.4, 0.0, -2.0, -2.0])
    tokens = tokens_of(-3 - gap, np.full(8, -3.0), [-1, -1, 1, 1, -1, -1, -1, -1], row)
    result = run(tokens, kind="reinforce", off_policy_delta=0.3)
    assert list(result.gradient) == [0, 0, -1, -1, 1, 1, 1, 1]
    assert result.figures["loss/masked/off_policy"] == 0.25 and result.figures["loss/masked_positive"] == 0.0


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), delta=st.floats(0.01, 1))
def test_a_positive_row_is_never_dropped(seed: int, delta: float) -> None:
    """Whatever the policy has become; and the rest is numpy's."""
    tokens = oracles.random_tokens(seed, spread=2.0)
    result = run(tokens, kind="reinforce", off_policy_delta=delta)
    assert (result.gradient[tokens.a > 0] == -tokens.a[tokens.a > 0]).all()
    np.testing.assert_allclose(result.gradient, np.where(oracles.off_policy_kept(tokens, delta), -tokens.a, 0))


def test_turns_of_a_row_have_signs_of_their_own() -> None:
    """With rewards turn by turn the tokens of negative advantage are dropped, the positive ones of the row are not."""
    tokens = tokens_of(np.full(4, -4.0), np.full(4, -3.0), [1, 1, -1, -1], [0, 0, 0, 0])
    assert list(run(tokens, kind="reinforce", off_policy_delta=0.5).gradient) == [-1, -1, 0, 0]
