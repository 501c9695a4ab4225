"""A training step from the file equals the live one, with the real trainer."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.support.tiny_model import tiny_model  # noqa: E402
from verifiers.train.config import ModelConfig, TrainerConfig  # noqa: E402
from verifiers.train.models import policy_of  # noqa: E402
from verifiers.train.replay import Recording, batches  # noqa: E402
from verifiers.train.rows import Row  # noqa: E402
from verifiers.train.trainer import TorchLearner  # noqa: E402


def learner() -> TorchLearner:
    """The same one every time."""
    return TorchLearner(policy_of(tiny_model(), ModelConfig()), TrainerConfig(lr=1e-3, tokens_per_microbatch=64))


def batch(number: int) -> list[Row]:
    """Three rows of other lengths, advantages and logprobs in every batch."""
    return [
        Row(
            tokens=[(number + at * index) % 259 for at in range(5 + index)],
            mask=[at > 1 for at in range(5 + index)],
            logprobs=[0.0, 0.0, *(-5.0 - 1 / (at + 3 * number + index + 1) for at in range(3 + index))],
            versions=[number] * (5 + index),
            reward=float(index),
            advantages=[0.0, 0.0, *[float(index - 1) / 3] * (3 + index)],
            rollout_id=f"{number}/{index}",
            group_id=str(number),
        )
        for index in range(3)
    ]


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".parquet"])
def test_steps_from_disk_are_the_live_ones(suffix: str, tmp_path: Path) -> None:
    """Weights and figures of every step are equal bit for bit."""
    live, again = learner(), learner()
    recording = Recording(live, tmp_path, suffix)
    told = [recording.step(batch(number)) for number in range(3)]
    replayed = [again.step(rows) for rows in batches(tmp_path)]
    timed = ("trainer/seconds", "trainer/tokens_per_s")
    for one, other in zip(told, replayed, strict=True):
        assert {name: value for name, value in one.items() if name not in timed} == {
            name: value for name, value in other.items() if name not in timed
        }
    pairs = zip(live.policy.model.parameters(), again.policy.model.parameters(), strict=True)
    assert live.version == again.version == 3 and all(torch.equal(one, other) for one, other in pairs)
