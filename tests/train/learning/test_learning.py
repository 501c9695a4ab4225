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

AFTER_IMITATION: dict[str, Any] = {"steps": 30, "lr": 4e-3, "warmup": 8}
"""With imitation's 30 steps, sixty. Without a warm-up the first updates of a new AdamW, all of full length, undo what
was imitated, and some seeds then end with one class written everywhere."""


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_single_turn_is_learned(tmp_path, seed):
    """What to write depends on the prompt; from random weights, sampled one version behind."""
    curve = await learn(single_turn(), save_toy(tmp_path, seed=seed), steps=55, max_lag=1, seed=seed)
    assert curve.first < 0.3
    assert curve.last >= FLOOR
    assert max(curve.of("lag/max")) == 1


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_mixture_of_experts_learns(tmp_path, seed):
    """With the sampler's routes replayed in training."""
    curve = await learn(single_turn(), save_toy(tmp_path, "qwen3_moe", seed=seed), steps=40, seed=seed)
    assert curve.first < 0.3
    assert curve.last >= FLOOR
    assert min(curve.of("loss/aux")) > 0


@pytest.mark.parametrize("seed", SEEDS)
async def test_reinforcement_goes_on_from_imitation(tmp_path, seed):
    """Half of what was imitated was drawn from all classes; the rewards tell which half. One in three is chance."""
    imitated = imitate(save_toy(tmp_path / "random", seed=seed), tmp_path / "imitated", seed=seed)
    curve = await learn(single_turn(), imitated, **AFTER_IMITATION, seed=seed)
    assert 0.4 < curve.of("reward/mean")[0] < 0.8
    assert curve.last >= FLOOR


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_compacted_context_is_learned(tmp_path, seed):
    """Every turn begins a row of its own, and all rows of a rollout earn its reward."""
    imitated = imitate(save_toy(tmp_path / "random", seed=seed), tmp_path / "imitated", seed=seed)
    curve = await learn(compacted(), imitated, **AFTER_IMITATION, seed=seed)
    assert set(curve.of("rows/per_rollout")) == {2.0}
    assert curve.first < 0.75
    assert curve.last >= FLOOR


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_use_of_a_tool_is_learned(tmp_path, seed):
    """Call first, then write what was found: two turns, one row."""
    imitated = imitate(save_toy(tmp_path / "random", seed=seed), tmp_path / "imitated", seed=seed)
    curve = await learn(tool_use(), imitated, **AFTER_IMITATION, seed=seed)
    assert curve.first < 0.8
    assert curve.last >= FLOOR
    assert curve.of("rows/per_rollout")[-1] < 1.1  # a rare reply may be rendered otherwise than it was sampled


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_adapter_learns(tmp_path, seed):
    """LoRA, around a random head that stays as it is: less far in as many updates, and the engine samples from it."""
    imitated = imitate(save_toy(tmp_path / "random", seed=seed), tmp_path / "imitated", seed=seed)
    settings = {**AFTER_IMITATION, "lr": 1e-2, "lora": LoraConfig(rank=8, alpha=16)}
    curve = await learn(single_turn(), imitated, **settings, seed=seed)
    assert curve.first < 0.75
    assert curve.last >= 0.75
    assert max(curve.of("loss/mismatch_kl")) < 1e-5
