"""What a step does to the weights, what it refuses, and what it leaves alone."""

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import tiny_model  # noqa: E402
from tests.train.trainer.rows_for_tests import eight_rows, make_row  # noqa: E402
from verifiers.errors import ConfigError, EvidenceError, TrainingDivergedError  # noqa: E402
from verifiers.train.config import LossConfig, ModelConfig, TrainerConfig  # noqa: E402
from verifiers.train.forward import SampledHead, on_device  # noqa: E402
from verifiers.train.losses.tokens import LossOutput, TokenBatch  # noqa: E402
from verifiers.train.models import policy_of  # noqa: E402
from verifiers.train.optim import lr_at  # noqa: E402
from verifiers.train.packing import pack  # noqa: E402
from verifiers.train.rows import Row  # noqa: E402
from verifiers.train.trainer import TorchLearner  # noqa: E402

pytestmark = pytest.mark.train


def learner(loss: Any = None, model: Any = None, **trainer: Any) -> TorchLearner:
    """A learner of the tiny model."""
    config = TrainerConfig(**{"lr": 1e-3, **trainer})
    return TorchLearner(policy_of(model or tiny_model(), ModelConfig()), config, loss)


def parameters(of: TorchLearner) -> dict[str, Any]:
    """A copy of the weights."""
    return {name: value.detach().clone() for name, value in of.policy.model.named_parameters()}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_step_makes_what_was_good_likelier() -> None:
    """Tokens of advantage 1 gain probability, those of -1 lose some; version and figures say what happened."""
    good = make_row(16, 8, 1, advantages=[0.0] * 8 + [1.0] * 8)
    bad = make_row(16, 8, 2, advantages=[0.0] * 8 + [-1.0] * 8)
    trained = learner(LossConfig(kind="reinforce"))
    before = [float(logprobs_of(trained, row).sum()) for row in (good, bad)]
    figures = trained.step([good, bad])
    after = [float(logprobs_of(trained, row).sum()) for row in (good, bad)]
    assert after[0] > before[0] and after[1] < before[1]
    assert trained.version == 1
    assert (figures["tokens/trained"], figures["tokens/total"], figures["rows/trained"]) == (16, 32, 2)
    assert figures["trainer/grad_norm"] > 0 and figures["trainer/lr"] == 1e-3
    assert all(math.isfinite(value) for value in figures.values())


def logprobs_of(of: TorchLearner, row: Row) -> Any:
    """[N] of a row's sampled tokens under the present weights."""
    (micro,) = pack([row], 4096).batches
    with torch.no_grad():
        return of._head.logprobs(on_device(micro, of.policy.device))[0]


def score(model: Any, row: Row, temperature: float) -> list[float]:
    """The logprobs of a row's sampled tokens from a plain forward pass over the stored ids."""
    with torch.no_grad():
        logits = model(torch.tensor([row.tokens])).logits[0]
    logprobs = (logits / temperature).log_softmax(-1)
    return [float(logprobs[at - 1, token]) for at, token in enumerate(row.tokens) if row.mask[at]]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.3])
def test_the_ratio_of_the_same_policy_is_one(temperature: float) -> None:
    """Logprobs from stored ids, packed among others, equal the sampler's at its temperature, and at no other."""
    model = tiny_model()
    rows = eight_rows()
    for row in rows:
        row.sampling = {"temperature": temperature}
        sampled = iter(score(model, row, temperature))
        row.logprobs = [next(sampled) if trained else 0.0 for trained in row.mask]
    right = learner(model=model, lr=1e-9).step(rows)
    assert right["loss/ratio"] == pytest.approx(1.0, abs=1e-5) and right["loss/mismatch_kl/max"] < 1e-5
    for row in rows:
        row.sampling = {"temperature": temperature + 0.2}
    assert learner(model=model).step(rows)["loss/mismatch_kl/max"] > 1e-3


def test_logits_are_computed_where_a_token_was_sampled() -> None:
    """The output layer sees one place a sampled token, not the whole sequence, and others see all of it."""
    model = tiny_model()
    head, seen = SampledHead(model), []
    model.lm_head.register_forward_hook(lambda _module, inputs, _output: seen.append(tuple(inputs[0].shape)))
    (micro,) = pack([make_row(50, 46)], 64).batches
    logprobs, entropy = head.logprobs(on_device(micro, "cpu"))
    assert seen == [(1, 4, 64)] and logprobs.shape == entropy.shape == (4,)
    model(torch.zeros(1, 7, dtype=torch.long))
    assert seen[1] == (1, 7, 64)


# --- nothing to train ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [make_row(10, 10)],
        [make_row(65, 4)],
        [make_row(10, 4, advantages=[0.0] * 10)],
    ],
    ids=["no rows", "no sampled token", "too long", "no advantage"],
)
def test_with_nothing_to_train_on_nothing_changes(rows: list[Row]) -> None:
    """No step of the optimiser, no version, no figure that is not a number."""
    trained = learner(LossConfig(kind="reinforce", drift=0.0), tokens_per_microbatch=64)
    before = parameters(trained)
    figures = trained.step(rows)
    assert trained.version == 0 and not trained._optimizer.state
    assert_same(before, parameters(trained))
    assert all(math.isfinite(value) for value in figures.values())
    assert "trainer/grad_norm" not in figures


def test_a_row_that_is_too_long_is_left_out_and_counted() -> None:
    """The others are trained as if it had not been there: it is in no denominator either."""
    rows = eight_rows()
    with_long, without = learner(tokens_per_microbatch=64), learner(tokens_per_microbatch=64)
    figures = with_long.step([*rows, make_row(65, 4)])
    assert figures["rows/too_long"] == 1 and figures["rows/trained"] == 8
    without.step(rows)
    assert_same(parameters(with_long), parameters(without))


# --- what cannot be trained on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"advantages": None}, "has no advantages"),
        ({"advantages": [math.nan] * 20}, "not finite"),
        ({"advantages": [-1e39] * 20}, "single precision"),
        ({"logprobs": [math.nan] * 20}, "not finite"),
        ({"sampling": {"temperature": 0}}, "temperature 0"),
    ],
)
def test_rows_that_would_train_nonsense_are_refused(changes: dict[str, Any], said: str) -> None:
    """An EvidenceError before anything is computed; the weights stay."""
    trained = learner()
    with pytest.raises(EvidenceError, match=said):
        trained.step([make_row(), make_row(20, 8, 1, **changes)])
    assert trained.version == 0


def test_a_gradient_that_is_not_finite_is_skipped_and_then_an_error() -> None:
    """Each skipped update is counted and changes nothing; the third in a row ends training."""
    trained = learner(LossConfig(kind="reinforce"))
    before = parameters(trained)
    rows = [make_row(advantages=[0.0] * 8 + [1e38] * 12)]
    for _ in range(2):
        figures = trained.step(rows)
        assert figures["trainer/skipped"] == 1 and "trainer/grad_norm" not in figures
    with pytest.raises(TrainingDivergedError, match="3 updates in a row"):
        trained.step(rows)
    assert_same(before, parameters(trained))
    assert trained.version == 0


def test_a_good_update_between_bad_ones_starts_the_count_again() -> None:
    """Three bad updates with good ones between them are no divergence."""
    trained = learner(LossConfig(kind="reinforce"))
    for _ in range(3):
        trained.step([make_row(advantages=[0.0] * 8 + [1e38] * 12)])
        trained.step([make_row()])
    assert trained.version == 3


# --- several updates, other losses, schedules ------------------------------------------------------------------------


def test_several_updates_from_a_batch_have_the_policy_before_them_as_the_old_one() -> None:
    """Two updates of half the rows each: the second sees ratios against logprobs from before the first."""
    seen: list[tuple[Any, Any]] = []

    def loss(batch: TokenBatch) -> LossOutput:
        seen.append((batch.logprobs.detach().clone(), batch.old.clone()))
        zero = batch.logprobs.new_zeros(())
        ones = torch.ones_like(batch.logprobs)
        return LossOutput(-batch.logprobs, ones, {"loss/x": zero}, {"loss/x": zero + 1}, {})

    policy = policy_of(tiny_model(), ModelConfig())
    config = TrainerConfig(lr=0.01, updates_per_batch=2)
    trained = TorchLearner(policy, config, loss, denominator=lambda rows: sum(row.trainable for row in rows))
    rows = eight_rows()
    fresh = TorchLearner(policy_of(tiny_model(), ModelConfig()), config, loss, denominator=len)
    expected = torch.cat([logprobs_of(fresh, row) for row in rows[4:]])
    trained.step(rows)
    (first, old_first), (second, old_second) = seen
    assert torch.allclose(first, old_first) and not torch.allclose(second, old_second, atol=1e-2)
    assert torch.allclose(old_second.sort().values, expected.sort().values, atol=1e-5)
    assert trained.version == 1


def test_a_loss_of_ones_own_needs_its_denominator() -> None:
    """A ConfigError: a mean over a micro-batch would depend on how rows were cut."""
    with pytest.raises(ConfigError, match="denominator"):
        TorchLearner(policy_of(tiny_model(), ModelConfig()), None, lambda batch: batch)  # type: ignore[arg-type,return-value]


def test_the_rate_follows_its_schedule() -> None:
    """Warm-up is linear; then constant, linear to 0 or a half cosine to 0; beyond the end it stays there."""
    linear = TrainerConfig(lr=1.0, warmup_steps=3, schedule="linear")
    rates = [lr_at(update, linear, 13) for update in range(15)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0] and rates[8] == 0.5 and rates[13:] == [0.0, 0.0]
    cosine = TrainerConfig(lr=1.0, schedule="cosine")
    assert [round(lr_at(update, cosine, 4), 3) for update in (0, 2, 4)] == [1.0, 0.5, 0.0]
    assert lr_at(99, TrainerConfig(lr=1.0), None) == 1.0


def test_the_gradient_is_clipped_as_a_whole() -> None:
    """The figure is the norm before; SGD at rate 1 then moves by the limit and no more."""
    trained = learner(LossConfig(kind="reinforce"), optimizer="sgd", lr=1.0, max_grad_norm=0.01)
    before = parameters(trained)
    norm = trained.step(eight_rows())["trainer/grad_norm"]
    moved = math.sqrt(sum(float((before[n] - v).square().sum()) for n, v in parameters(trained).items()))
    assert norm > 0.02 and moved == pytest.approx(0.01, rel=1e-3)


def test_bfloat16_autocast_trains_the_same_direction() -> None:
    """Weights and optimiser stay float32; the gradient is that of float32 up to the rounding of bfloat16."""
    moves = []
    for autocast in ("none", "bfloat16"):
        trained = learner(LossConfig(kind="reinforce"), autocast=autocast, optimizer="sgd", lr=1.0)
        before = parameters(trained)
        trained.step(eight_rows())
        after = parameters(trained)
        assert all(value.dtype == torch.float32 for value in after.values())
        moves.append(torch.cat([(after[name] - before[name]).flatten() for name in before]))
    assert not torch.equal(*moves)
    assert torch.nn.functional.cosine_similarity(moves[0], moves[1], dim=0) > 0.99
