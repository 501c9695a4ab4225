"""The whole stack learns: environment, engine, loop and trainer as users have them, on one thread of a CPU."""

from typing import Any

import pytest

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")]
torch = pytest.importorskip("torch")

from tests.support.learning import imitate, learn  # noqa: E402
from tests.support.toy_tasks import compacted, save_toy, single_turn, tool_use  # noqa: E402
from verifiers.train.config import LoraConfig  # noqa: E402

torch.set_num_threads(1)

SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed else []) for seed in range(5)]
FLOOR = 0.9

AFTER_IMITATION: dict[str, Any] = {"steps": 30, "groups": 12, "lr": 4e-3, "warmup": 8, "schedule": "cosine"}
"""With imitation's 30 steps, sixty. What else happens to one seed in twenty, which then writes one class everywhere or
for two prompts of three: without a warm-up the first updates of a new AdamW, all of full length, undo what was
imitated; with six groups a class may seem worse than it is; and at the end, when few groups have a difference left,
an update of full length in their direction alone ends what was learned."""

GUESSES: dict[str, Any] = {"right": 0.35, "called": 0.5}
"""Shares of what is imitated: of replies of the wanted class beyond chance, of uses of the tool. With 0.2 some seeds
write one class for twenty updates before they tell the two apart."""


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_single_turn_is_learned(tmp_path, seed):
    """What to write depends on the prompt; from random weights, sampled one version behind."""
    calm: dict[str, Any] = {"groups": 12, "warmup": 8, "schedule": "cosine"}
    curve = await learn(single_turn(), save_toy(tmp_path, seed=seed), steps=55, max_lag=1, **calm, seed=seed)
    assert curve.first < 0.3
    assert curve.last >= FLOOR
    assert max(curve.of("lag/max")) == 1


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_mixture_of_experts_learns(tmp_path, seed):
    """With the sampler's routes replayed in training."""
    curve = await learn(single_turn(), save_toy(tmp_path, "qwen3_moe", seed=seed), steps=55, warmup=8, seed=seed)
    assert curve.first < 0.3
    assert curve.last >= FLOOR
    assert min(curve.of("loss/aux")) > 0


@pytest.mark.parametrize("seed", SEEDS)
async def test_reinforcement_goes_on_from_imitation(tmp_path, seed):
    """Half of what was imitated was drawn from all classes; the rewards tell which half. One in three is chance."""
    imitated = imitate(save_toy(tmp_path / "random", seed=seed), tmp_path / "imitated", seed=seed)
    curve = await learn(single_turn(), imitated, **AFTER_IMITATION, seed=seed)
    assert 0.4 < curve.of("reward/mean")[0] < 0.85
    assert curve.last >= FLOOR


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_compacted_context_is_learned(tmp_path, seed):
    """Every turn begins a row of its own, and all rows of a rollout earn its reward."""
    imitated = imitate(save_toy(tmp_path / "random", seed=seed), tmp_path / "imitated", seed=seed)
    curve = await learn(compacted(), imitated, **AFTER_IMITATION, seed=seed)
    assert set(curve.of("rows/per_rollout")) == {2.0}
    assert curve.of("reward/mean")[0] < 0.75
    assert curve.last >= FLOOR


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_use_of_a_tool_is_learned(tmp_path, seed):
    """Call first, and end, then write what was found, where half of what was imitated never looked. Two turns are one
    row, id for id; a call that the limit cut has no end to go on from, and alone may begin another."""
    imitated = imitate(save_toy(tmp_path / "random", seed=seed), tmp_path / "imitated", **GUESSES, seed=seed)
    curve = await learn(tool_use(), imitated, **AFTER_IMITATION, seed=seed)
    assert curve.of("reward/mean")[0] < 0.6
    assert curve.last >= FLOOR
    assert set(curve.prompts) <= {"first", "continued", "rendered:truncated"}
    assert curve.breaks <= curve.prompts["rendered:truncated"]


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_adapter_learns(tmp_path, seed):
    """LoRA, from which the engine samples. Head and norms stay as imitation left them, and no hidden state has a
    logit beyond their lengths: with 64 columns the best one writes the wanted class at 0.91 to 0.98, whatever the
    adapter, with 128 at more than 0.99."""
    wide = {"hidden_size": 128, "intermediate_size": 256}
    imitated = imitate(save_toy(tmp_path / "random", seed=seed, **wide), tmp_path / "imitated", seed=seed)
    settings = {**AFTER_IMITATION, "warmup": 4, "lora": LoraConfig(rank=32, alpha=64)}
    curve = await learn(single_turn(), imitated, **settings, seed=seed)
    assert 0.4 < curve.of("reward/mean")[0] < 0.8
    assert curve.last >= FLOOR
    assert max(curve.of("loss/mismatch_kl")) < 1e-5
