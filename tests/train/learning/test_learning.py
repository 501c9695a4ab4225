"""The whole stack learns: environment, engine, loop and trainer as users have them, on one thread of a CPU."""

import pytest

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")]
torch = pytest.importorskip("torch")

from tests.support.learning import imitate, learn  # noqa: E402
from tests.support.toy_tasks import compacted, save_toy, single_turn, tool_use  # noqa: E402
from verifiers.train.config import LoraConfig  # noqa: E402

torch.set_num_threads(1)

SEEDS = [pytest.param(seed, marks=[pytest.mark.slow] if seed else []) for seed in range(5)]
FLOOR = 0.9


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
    """Half of what was imitated was wrong; the rewards tell which half."""
    imitated = imitate(save_toy(tmp_path / "random", seed=seed), tmp_path / "imitated", seed=seed)
    curve = await learn(single_turn(), imitated, steps=30, seed=seed)
    assert 0.3 < curve.of("reward/mean")[0] < 0.7
    assert curve.last >= FLOOR


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_compacted_context_is_learned(tmp_path, seed):
    """Every turn begins a row of its own, and all rows of a rollout earn its reward."""
    imitated = imitate(save_toy(tmp_path / "random", seed=seed), tmp_path / "imitated", seed=seed)
    curve = await learn(compacted(), imitated, steps=40, lr=4e-3, seed=seed)
    assert set(curve.of("rows/per_rollout")) == {2.0}
    assert curve.first < 0.6
    assert curve.last >= FLOOR


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_use_of_a_tool_is_learned(tmp_path, seed):
    """Call first, then write what was found: two turns, one row."""
    imitated = imitate(save_toy(tmp_path / "random", seed=seed), tmp_path / "imitated", seed=seed)
    curve = await learn(tool_use(), imitated, steps=35, seed=seed)
    assert curve.first < 0.4
    assert curve.last >= FLOOR
    assert curve.reports[-1].figures["rows/per_rollout"] == 1.0


@pytest.mark.parametrize("seed", SEEDS)
async def test_an_adapter_learns(tmp_path, seed):
    """LoRA, around a random head that stays as it is: less far in as many updates, and the engine samples from it."""
    imitated = imitate(save_toy(tmp_path / "random", seed=seed), tmp_path / "imitated", steps=30, seed=seed)
    curve = await learn(single_turn(), imitated, steps=30, lr=5e-3, lora=LoraConfig(rank=8, alpha=16), seed=seed)
    assert curve.of("reward/mean")[0] < 0.6
    assert curve.last >= 0.7
    assert max(curve.of("loss/mismatch_kl")) < 1e-5
