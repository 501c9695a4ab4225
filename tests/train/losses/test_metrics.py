"""The figures of a loss: equal to numpy's over all tokens, however they were split."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.helpers import run, tokens_of  # noqa: E402
from verifiers.train.tally import Tally  # noqa: E402


def share(flags: Any, among: Any = None) -> float:
    """Of these flags; `among` them only."""
    flags = np.asarray(flags)
    return float((flags if among is None else flags[among]).mean())


@pytest.mark.parametrize("seed", range(3))
def test_mismatch_is_numpys(seed: int) -> None:
    """r, k1 = −log r and k3 = r − 1 − log r: mean and max over all sampled tokens, masked or not."""
    tokens = oracles.random_tokens(seed, lengths=(9, 7, 5), spread=1.5)
    figures = run(tokens).figures
    log_r = tokens.lp - tokens.mu
    expected = {"ratio": np.exp(log_r), "mismatch_k1": -log_r, "mismatch_kl": np.exp(log_r) - 1 - log_r}
    for name, values in expected.items():
        assert figures[f"loss/{name}"] == pytest.approx(values.mean())
        assert figures[f"loss/{name}/max"] == pytest.approx(values.max())


@pytest.mark.parametrize("seed", range(3))
def test_masked_shares_are_numpys(seed: int) -> None:
    """By sign of the advantage, and by mask; a token that two masks drop counts for both, once in all."""
    tokens = oracles.random_tokens(seed, lengths=(9, 7, 5, 3, 4), spread=1.5)
    settings = {"kind": "icepop", "off_policy_delta": 0.05, "sequence_mask": "product", "product_cap": 1.1}
    figures = run(tokens, **settings).figures
    r = np.exp(tokens.lp - tokens.mu)
    dropped = {
        "icepop_low": r < 0.5,
        "icepop_high": r > 5.0,
        "off_policy": ~oracles.off_policy_kept(tokens, 0.05),
        "product": ~oracles.product_kept(tokens, 1.1),
    }
    together = np.logical_or.reduce(list(dropped.values()))
    for name, flags in dropped.items():
        assert figures[f"loss/masked/{name}"] == pytest.approx(share(flags))
    assert figures["loss/masked"] == pytest.approx(share(together))
    assert figures.get("loss/masked_positive") == pytest.approx(share(together, tokens.a > 0))
    assert figures.get("loss/masked_negative") == pytest.approx(share(together, tokens.a < 0))


def test_advantages_entropy_and_parts_of_the_loss() -> None:
    """Means a token; what no token had is left out rather than 0."""
    tokens = oracles.random_tokens(4)
    figures = run(tokens, kind="ppo", drift=0.5, kl=0.5).figures
    assert tokens.ent is not None
    expected = {
        "loss/advantage": tokens.a.mean(),
        "loss/advantage_abs": np.abs(tokens.a).mean(),
        "loss/advantage_abs/max": np.abs(tokens.a).max(),
        "loss/entropy": tokens.ent.mean(),
        "loss/policy": oracles.ppo(tokens, 0.2, 0.28)[0].mean(),
        "loss/drift": oracles.drift(tokens)[0].mean(),
        "loss/reference_kl": oracles.reference_kl(tokens)[0].mean(),
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected)
    assert "loss/masked_negative" not in run(tokens_of([-1.0], [-1.0], 1.0)).figures


def test_figures_have_no_gradient_and_are_summed_in_float64() -> None:
    """Whatever the tokens' own type: a million small numbers in float32 would lose digits."""
    output = run(oracles.random_tokens(0), torch.float32, kl=0.1, entropy=0.1, tis_cap=None).output
    for values in (output.sums, output.counts, output.maxima):
        assert all(value.dtype == torch.float64 and not value.requires_grad for value in values.values())


@settings(max_examples=40)
@given(parts=st.lists(st.lists(st.floats(-5, 5), max_size=4), min_size=1, max_size=5))
def test_tallies_add_up(parts: list[list[float]]) -> None:
    """Means and maxima of parts taken together are those of all values; of no values there are none."""
    tally, values = Tally(), [value for part in parts for value in part]
    for part in parts:
        tally.add(Tally({"x": sum(part)}, {"x": len(part)}, {"x": max(part, default=float("-inf"))}))
    expected = {"x": sum(values) / len(values), "x/max": max(values)} if values else {}
    assert tally.figures() == pytest.approx(expected)
