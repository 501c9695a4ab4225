"""DPPO: the trust region is of probabilities (binary total variation), on the side the advantage points to."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import run, tokens_of  # noqa: E402

PROBABILITY = st.floats(1e-6, 1 - 1e-6)


def test_rare_tokens_may_grow_and_common_ones_may_not() -> None:
    """0.01 → 0.05 has the ratio 5 and is kept, 0.5 → 0.75 the ratio 1.5 and is dropped; the bound itself is kept."""
    before, now = np.array([0.01, 0.5, 0.5, 0.25]), np.array([0.05, 0.75, 0.699, 0.25])
    result = run(tokens_of(np.log(now), np.log(before), 1.0), kind="dppo")
    np.testing.assert_allclose(result.gradient, [-5, 0, -0.699 / 0.5, -1], atol=1e-12)
    assert result.gradient[1] == 0.0 and result.figures["loss/masked/dppo"] == 0.25


@pytest.mark.parametrize(("now", "kept"), [(0.5, True), (0.5001, False), (0.4999, True)])
def test_the_bound_is_sharp(now: float, kept: bool) -> None:
    """From 0.25 by exactly 0.25 is kept, by a little more dropped; and the same downwards from 0.5."""
    up = tokens_of(np.log([now]), np.log([0.25]), 1.0)
    down = tokens_of(np.log([0.75 - now]), np.log([0.5]), -1.0)
    for tokens in (up, down):
        assert bool(run(tokens, kind="dppo", dppo_delta=0.25).gradient[0]) == kept


def test_four_quadrants() -> None:
    """A rise is dropped only for A > 0, a fall only for A < 0; what moves back to the sampler is always kept."""
    before, now = np.log([0.5, 0.5, 0.8, 0.8]), np.log([0.8, 0.8, 0.5, 0.5])
    result = run(tokens_of(now, before, [1.0, -1.0, 1.0, -1.0]), kind="dppo")
    assert [value == 0.0 for value in result.gradient] == [True, False, False, True]
    assert result.figures["loss/masked_positive"] == 0.5 and result.figures["loss/masked_negative"] == 0.5


@settings(max_examples=40)
@given(before=PROBABILITY, now=PROBABILITY, advantage=st.floats(0.1, 3))
def test_signs_are_symmetric(before: float, now: float, advantage: float) -> None:
    """A token is dropped for A at before → now exactly if it is for −A at the mirrored 1−before → 1−now."""
    straight = oracles.dppo_kept(tokens_of([np.log(now)], [np.log(before)], advantage), 0.2)[0]
    result = run(tokens_of([np.log(now)], [np.log(before)], advantage), kind="dppo")
    mirrored = run(tokens_of([np.log1p(-now)], [np.log1p(-before)], -advantage), kind="dppo")
    edge = abs(abs(now - before) - 0.2) < 1e-9
    assert edge or (result.gradient[0] != 0.0) == straight == (mirrored.gradient[0] != 0.0)


def test_the_ratio_has_no_upper_bound_of_its_own() -> None:
    """What is kept is −A·r with the gradient of r, as large as it is."""
    tokens = tokens_of(np.log([0.1]), np.log([0.001]), 2.0)
    result = run(tokens, kind="dppo")
    assert result.value[0] == pytest.approx(-200) and result.gradient[0] == pytest.approx(-200)


@pytest.mark.parametrize("delta", [0.05, 0.5])
def test_other_bounds(delta: float) -> None:
    """Against numpy."""
    tokens = oracles.random_tokens(2, lengths=(9, 7, 5), spread=1.5)
    value, gradient = oracles.dppo(tokens, delta)
    result = run(tokens, kind="dppo", dppo_delta=delta)
    np.testing.assert_allclose(result.value, value, atol=1e-12)
    np.testing.assert_allclose(result.gradient, gradient, atol=1e-12)
