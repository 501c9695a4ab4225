"""What every loss keeps: a masked token has exactly no gradient; packing, padding and order do not matter."""

import ast
import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.train.losses import oracles  # noqa: E402
from tests.train.losses.groups import row_of  # noqa: E402
from tests.train.losses.helpers import batch_of, run  # noqa: E402
from verifiers.train import losses  # noqa: E402
from verifiers.train.config import LossConfig  # noqa: E402
from verifiers.train.losses.loss import make_loss  # noqa: E402
from verifiers.train.losses.normalise import denominator  # noqa: E402
from verifiers.train.losses.tokens import TokenBatch  # noqa: E402

MASKS: dict[str, dict[str, Any]] = {
    "dppo": {"kind": "dppo"},
    "icepop": {"kind": "icepop", "icepop_low": 0.9, "icepop_high": 1.1},
    "geometric": {"kind": "gspo", "gspo_high": 2.0, "gspo_low": 0.9, "sequence_mask": "geometric"},
    "product": {"kind": "cispo", "sequence_mask": "product", "product_cap": 1.1},
    "off_policy": {"kind": "reinforce", "off_policy_delta": 0.01},
}


@pytest.mark.parametrize("mask", sorted(MASKS))
@settings(max_examples=40)
@given(seed=st.integers(0, 10_000))
def test_a_masked_token_has_exactly_no_gradient(mask: str, seed: int) -> None:
    """0.0, not almost: the share that is told is the share of tokens without gradient."""
    tokens = oracles.random_tokens(seed, lengths=(3, 2, 4), spread=1.0)
    result = run(tokens, **MASKS[mask])
    assert result.figures["loss/masked"] == pytest.approx((result.gradient == 0.0).mean())


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_the_order_of_tokens_and_the_numbers_of_rows_mean_nothing(seed: int, data: st.DataObject) -> None:
    """Tokens of rows may be interleaved; each keeps its value and gradient."""
    tokens = oracles.random_tokens(seed)
    options = {"kind": "gspo", "gspo_high": 0.3, "sequence_mask": "geometric", "geometric_low": 0.5, "kl": 0.1}
    straight = run(tokens, **options)
    order = np.array(data.draw(st.permutations(range(len(tokens.lp)))))
    names = np.array(data.draw(st.permutations(range(4))))
    moved = oracles.Tokens(
        row=names[tokens.row[order]],
        **{name: getattr(tokens, name)[order] for name in ("lp", "mu", "a", "w", "old", "ref", "ent")},
    )
    other = run(moved, **options)
    np.testing.assert_allclose(other.value, straight.value[order], atol=1e-12)
    np.testing.assert_allclose(other.gradient, straight.gradient[order], atol=1e-12)


def test_a_mean_a_rank_would_be_another_gradient() -> None:
    """The anti-pattern: each rank divides by its own tokens. Ours divides by all, and is the single process's."""
    tokens = oracles.random_tokens(1, lengths=(8, 1))
    config = LossConfig(kind="reinforce", drift=0.0)
    below = denominator([row_of("a", 0.0, 8), row_of("b", 0.0, 1)], config)
    ours, theirs = [], []
    for row in (0, 1):
        part = tokens.row == row
        of_rank = oracles.Tokens(tokens.lp[part], tokens.mu[part], tokens.a[part], tokens.row[part] * 0)
        batch = batch_of(of_rank)
        (make_loss(config)(batch).total / below).backward()
        ours.append(batch.logprobs.grad.numpy())
        theirs.append(-tokens.a[part] / part.sum() / 2)
    np.testing.assert_allclose(np.concatenate(ours), -tokens.a / 9)
    assert not np.allclose(np.concatenate(theirs), np.concatenate(ours), rtol=0.3)


def test_a_loss_cannot_see_padding() -> None:
    """A batch is flat tokens that were sampled: it has no ids and no mask that something could be inferred from."""
    assert set(inspect.signature(TokenBatch).parameters) == {
        *("logprobs", "sampler_logprobs", "advantages", "sequence", "weights"),
        *("old_logprobs", "ref_logprobs", "entropy"),
    }


def test_no_failure_becomes_a_number() -> None:
    """No `except` anywhere between rewards and loss: what is wrong stops the step, or never reached it."""
    folder = Path(losses.__file__).parent
    files = [*folder.glob("*.py"), folder.parent / "advantages.py", folder.parent / "tally.py"]
    assert len(files) > 10
    for file in files:
        assert not [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Try)], file
