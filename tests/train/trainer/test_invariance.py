"""How rows are cut into micro-batches, packed or padded, changes speed and no gradient."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import tiny_model  # noqa: E402
from tests.train.trainer.rows_for_tests import eight_rows, make_row, two_groups  # noqa: E402
from verifiers.errors import ConfigError  # noqa: E402
from verifiers.train.attention import attend, register  # noqa: E402
from verifiers.train.config import LossConfig, ModelConfig, TrainerConfig  # noqa: E402
from verifiers.train.forward import SampledHead, sharing_of  # noqa: E402
from verifiers.train.models import policy_of  # noqa: E402
from verifiers.train.rows import Row  # noqa: E402
from verifiers.train.trainer import TorchLearner  # noqa: E402

pytestmark = pytest.mark.train

register()
LOSS = LossConfig(kind="icepop", kl=0.1, entropy=0.01)


def update_of(
    trainer: dict[str, Any],
    model: dict[str, Any] | None = None,
    loss: LossConfig = LOSS,
    rows: list[Row] | None = None,
) -> dict[str, Any]:
    """What one step of SGD without clipping, at rate 1, takes from each parameter of a float64 model: the gradient."""
    tiny = tiny_model(**(model or {})).double()
    before = {name: value.detach().clone() for name, value in tiny.named_parameters()}
    config = TrainerConfig(lr=1.0, optimizer="sgd", max_grad_norm=None, **trainer)
    policy = policy_of(tiny, ModelConfig(dtype="float64"), reference=loss.kl > 0)
    figures = TorchLearner(policy, config, loss).step(rows or eight_rows())
    gradient = {name: before[name] - value.detach() for name, value in policy.model.named_parameters()}
    return {"gradient": gradient, "figures": figures}


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Gradients and the means of the loss agree to 1e-6 of the largest entry."""
    largest = max(float(value.abs().max()) for value in one["gradient"].values())
    assert largest > 0
    for name, value in one["gradient"].items():
        assert float((value - other["gradient"][name]).abs().max()) <= 1e-6 * largest, name
    for name, value in one["figures"].items():
        if name.startswith("loss/"):
            assert other["figures"][name] == pytest.approx(value, rel=1e-6, abs=1e-9), name


KINDS: list[dict[str, Any]] = [{"kind": "qwen2"}, {"kind": "qwen3_moe"}]


@pytest.mark.parametrize("model", KINDS, ids=lambda kind: kind["kind"])
@pytest.mark.parametrize("normalise", ["token", "sequence", "dr_grpo"])
def test_one_batch_is_eight_micro_batches_is_packed_is_padded(model: dict[str, Any], normalise: Any) -> None:
    """The same gradient four ways; with a mixture of experts its balancing loss is part of it."""
    loss = LOSS.model_copy(update={"normalise": normalise, "max_tokens": 32 if normalise == "dr_grpo" else None})
    whole = update_of({"packing": False}, model, loss)
    assert whole["figures"]["trainer/microbatches"] == 1
    one_each = update_of({"packing": False, "tokens_per_microbatch": 33}, model, loss)
    assert one_each["figures"]["trainer/microbatches"] >= 7
    packed = update_of({"packing": True}, model, loss)
    packed_small = update_of({"packing": True, "tokens_per_microbatch": 70}, model, loss)
    assert 1 < packed_small["figures"]["trainer/microbatches"] < 7
    for other in (one_each, packed, packed_small):
        assert_equal(whole, other)


def test_gradient_checkpointing_changes_nothing() -> None:
    """Layers are run again in the backward pass, experts and their balance included."""
    tiny = {"kind": "qwen3_moe"}
    plain = update_of({}, tiny)
    model = tiny_model(**tiny).double()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    policy = policy_of(model, ModelConfig(gradient_checkpointing=True), reference=True)
    config = TrainerConfig(lr=1.0, optimizer="sgd", max_grad_norm=None)
    figures = TorchLearner(policy, config, LOSS).step(eight_rows())
    gradient = {name: before[name] - value.detach() for name, value in policy.model.named_parameters()}
    assert_equal(plain, {"gradient": gradient, "figures": figures})


@pytest.mark.parametrize("attention", ["sdpa", "eager", "segments"])
def test_packed_rows_do_not_see_each_other(attention: str) -> None:
    """Another row before it in the sequence leaves a row's gradient as it was."""

    def gradient(neighbour: int) -> Any:
        model = tiny_model(attn_implementation=attention).double()
        still = make_row(12, 4, neighbour, advantages=[0.0] * 12)
        rows = [still, make_row(12, 4, 1), make_row(24, 4, 2)]
        learner = TorchLearner(
            policy_of(model, ModelConfig()),
            TrainerConfig(lr=1.0, optimizer="sgd", max_grad_norm=None, packing=True),
            LossConfig(kind="reinforce", drift=0.0),
        )
        assert learner.step(rows)["trainer/microbatches"] == 1
        return learner.policy.model.lm_head.weight.detach()

    assert torch.allclose(gradient(7), gradient(8), rtol=0, atol=1e-12)


WAYS: dict[str, Any] = {"packed": {}, "padded": {"packing": False}, "small": {"tokens_per_microbatch": 70}}
SLIDING = {"sliding_window": 6, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}


@pytest.mark.parametrize("shape", [{}, SLIDING], ids=["full", "sliding"])
@pytest.mark.parametrize("trainer", WAYS.values(), ids=WAYS)
def test_attention_by_segments_is_attention_under_a_mask(shape: dict[str, Any], trainer: dict[str, Any]) -> None:
    """The same gradient, also where tokens see the last few alone."""
    masked = update_of({}, {**shape, "attn_implementation": "eager"})
    by_segments = update_of(trainer, {**shape, "attn_implementation": "segments"})
    assert_equal(masked, by_segments)


SHARED: dict[str, Any] = {"whole budget": {}, "small": {"tokens_per_microbatch": 70}, "two": {"updates_per_batch": 2}}


@pytest.mark.parametrize("shape", [{}, {**SLIDING, "attn_implementation": "segments"}], ids=["mask", "segments"])
@pytest.mark.parametrize("trainer", SHARED.values(), ids=SHARED)
def test_a_shared_prompt_is_a_prompt_a_row(shape: dict[str, Any], trainer: dict[str, Any]) -> None:
    """The same loss and gradient, also of rows with several turns, of other temperatures, and of no group."""
    whole = update_of({**trainer, "share_prompts": False}, shape, rows=two_groups())
    shared = update_of(trainer, shape, rows=two_groups())
    assert whole["figures"]["tokens/shared"] == 0
    assert shared["figures"]["tokens/shared"] > 30
    assert shared["figures"]["tokens/total"] == whole["figures"]["tokens/total"]
    assert_equal(whole, shared)


UNSHARED: dict[str, Any] = {
    "experts": ({"kind": "qwen3_moe"}, {}),
    "dropout": ({"attention_dropout": 0.1}, {}),
    "windows under a mask": (SLIDING, {}),
    "attention that takes no such mask": ({"attn_implementation": "eager"}, {}),
    "padded": ({}, {"packing": False}),
    "switched off": ({}, {"share_prompts": False}),
}


@pytest.mark.parametrize(("model", "trainer"), UNSHARED.values(), ids=UNSHARED)
def test_prompts_are_not_shared_where_that_is_another_computation(model: dict[str, Any], trainer: Any) -> None:
    """Balance counts tokens, dropout is drawn for each, and a mask of one's own shows no windows."""
    learner = TorchLearner(policy_of(tiny_model(**model), ModelConfig()), TrainerConfig(**trainer), LossConfig())
    assert learner.step(two_groups())["tokens/shared"] == 0


def test_a_model_that_takes_no_mask_shares_no_prompts() -> None:
    """Two passes tell, whatever the model's configuration says."""
    model = tiny_model()
    assert sharing_of(SampledHead(model), "cpu") is not None
    plain = model.forward
    model.forward = lambda attention_mask=None, **others: plain(**others)
    assert sharing_of(SampledHead(model), "cpu") is None


def test_attention_by_segments_refuses_what_it_does_not_know() -> None:
    """Soft caps, sinks and chunks change the scores: without them the policy would be another one."""
    empty = torch.zeros(1, 1, 2, 4)
    for name in ("softcap", "s_aux"):
        with pytest.raises(ConfigError, match="Identity"):
            attend(torch.nn.Identity(), empty, empty, empty, None, **{name: 1.0})
    model = tiny_model(attn_implementation="segments")
    model.config.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(ConfigError, match="knows no chunks, which qwen2"):
        policy_of(model, ModelConfig())
