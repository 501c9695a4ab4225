"""GSPO: one ratio a row, the geometric mean of its tokens'."""

import numpy as np
import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import run, tokens_of  # noqa: E402


def test_equal_ratios_give_the_token_version() -> None:
    """Where all tokens of a row have one ratio there is no difference to PPO at the same bounds."""
    row = [0, 0, 0, 1, 1]
    log_r = np.array([2e-4, 2e-4, 2e-4, -1e-4, -1e-4])
    tokens = tokens_of(log_r - 2, np.full(5, -2.0), [1.0, 1.0, 1.0, -1.0, -1.0], row)
    gspo = run(tokens, kind="gspo")
    ppo = run(tokens, kind="ppo", clip_low=3e-4, clip_high=4e-4)
    np.testing.assert_allclose(gspo.value, ppo.value, atol=1e-14)
    np.testing.assert_allclose(gspo.gradient, ppo.gradient, atol=1e-14)
    assert gspo.gradient.all()


@pytest.mark.parametrize("bounds", [(3e-4, 4e-4), (0.2, 0.3), (0.9, 5.0)])
def test_gradients_are_those_of_the_sequence_objective(bounds: tuple[float, float]) -> None:
    """Central differences of Σ over rows of T·min(sA, clip(s)A), the paper's objective times the row's length."""
    low, high = bounds
    tokens = oracles.random_tokens(6, lengths=(4, 2, 7), spread=0.4)

    def objective(t: oracles.Tokens) -> oracles.Array:
        return oracles.gspo(t, low, high)[0]

    result = run(tokens, kind="gspo", gspo_low=low, gspo_high=high)
    np.testing.assert_allclose(result.value, objective(tokens), atol=1e-12)
    np.testing.assert_allclose(result.gradient, oracles.numeric(objective, tokens), atol=1e-7)


def test_rows_are_clipped_as_a_whole() -> None:
    """A row at a mean ratio of 1.5 and A > 0 loses all its tokens, however near to 1 some are."""
    tokens = tokens_of(np.log([1.0, 2.25, 1.0]) - 2, np.full(3, -2.0), 1.0, [0, 0, 1])
    result = run(tokens, kind="gspo", gspo_high=0.2)
    np.testing.assert_allclose(result.gradient, [0, 0, -1])
    assert result.figures["loss/clipped_high"] == pytest.approx(2 / 3)


def test_turns_keep_their_own_advantages() -> None:
    """GSPO-token: with advantages that differ within a row each token has s times its own."""
    tokens = tokens_of(np.log([1.1, 1.2]) - 2, np.full(2, -2.0), [1.0, 3.0], [0, 0])
    result = run(tokens, kind="gspo", gspo_high=1.0)
    s = np.sqrt(1.1 * 1.2)
    np.testing.assert_allclose(result.gradient, [-s, -3 * s])
