"""Training goes on from files as if it had never stopped, and models leave in Hugging Face's layout."""

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from tests.support.tiny_model import save_tiny, tiny_model  # noqa: E402
from tests.train.trainer.rows_for_tests import eight_rows  # noqa: E402
from verifiers.errors import ResumeError  # noqa: E402
from verifiers.train.config import LoraConfig, LossConfig, ModelConfig, TrainerConfig  # noqa: E402
from verifiers.train.models import load_policy, policy_of  # noqa: E402
from verifiers.train.trainer import TorchLearner  # noqa: E402

pytestmark = pytest.mark.train

KINDS: list[dict[str, Any]] = [
    {"kind": "qwen2"},
    {"kind": "qwen3_moe"},
    {"kind": "qwen2", "lora": LoraConfig(rank=4, dropout=0.3)},
]


def learner(kind: str = "qwen2", lora: LoraConfig | None = None, seed: int = 0, **trainer: Any) -> TorchLearner:
    """A learner whose dropout, where it has any, draws from the global random state."""
    policy = policy_of(tiny_model(kind, seed), ModelConfig(lora=lora), seed=seed)
    settings = {"lr": 1e-2, "warmup_steps": 3, "weight_decay": 0.1, "seed": seed, **trainer}
    return TorchLearner(policy, TrainerConfig(**settings), LossConfig(kind="icepop"))


def weights(of: TorchLearner) -> dict[str, Any]:
    """A copy of what is trained."""
    return {name: value.detach().clone() for name, value in of.policy.trained.items()}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("kind", KINDS, ids=["dense", "moe", "lora"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_run_that_was_saved_and_loaded_is_the_unbroken_one(tmp_path: Path, kind: Any, optimizer: str) -> None:
    """Two steps, a new process's worth of objects, two more: weights equal four steps, bit for bit."""
    unbroken = learner(**kind, optimizer=optimizer)
    for _ in range(4):
        unbroken.step(eight_rows())
    broken = learner(**kind, optimizer=optimizer)
    for _ in range(2):
        broken.step(eight_rows())
    broken.save(tmp_path / "state")
    again = learner(**kind, optimizer=optimizer) if kind.get("lora") else learner(**kind, optimizer=optimizer, seed=1)
    again.step(eight_rows())
    again.load(tmp_path / "state")
    assert again.version == 2
    for _ in range(2):
        again.step(eight_rows())
    assert again.version == 4
    assert_same(weights(unbroken), weights(again))


def test_what_is_saved_is_readable_without_running_anything(tmp_path: Path) -> None:
    """safetensors and JSON alone: nothing that unpickles."""
    trained = learner()
    trained.step(eight_rows())
    trained.save(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors"}
    data = json.loads((tmp_path / "learner.json").read_text())
    assert (data["version"], data["updates"], data["ranks"], data["adapter"]) == (1, 1, 1, False)


def test_another_model_is_refused(tmp_path: Path) -> None:
    """A ResumeError names a parameter that differs; so does a folder that holds no learner, or one cut short."""
    learner().save(tmp_path)
    with pytest.raises(ResumeError, match=r"22 parameters differ.*mlp\.down_proj"):
        learner("qwen3_moe").load(tmp_path)
    with pytest.raises(ResumeError, match="no saved learner"):
        learner().load(tmp_path / "nowhere")
    (tmp_path / "trained.safetensors").write_bytes(b"cut")
    with pytest.raises(ResumeError, match="no saved learner"):
        learner().load(tmp_path)


def test_weights_stay_what_they_were(tmp_path: Path) -> None:
    """What a sampler was handed does not change when training goes on; tied embeddings are in it once."""
    trained = learner()
    first = trained.weights()
    assert first.tensors is not None and first.version == 0 and not first.adapter
    assert "lm_head.weight" not in first.tensors and "model.embed_tokens.weight" in first.tensors
    kept = {name: value.clone() for name, value in first.tensors.items()}
    trained.step(eight_rows())
    second = trained.weights()
    trained.step(eight_rows())
    assert second.version == 1 and second.tensors is not None
    assert_same(kept, first.tensors)
    assert not torch.equal(second.tensors["model.norm.weight"], trained.policy.trained["model.norm.weight"])


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe"])
def test_an_exported_model_is_loaded_by_anyone(tmp_path: Path, kind: str) -> None:
    """The folder holds the trained weights and the tokenizer, and training can start from it."""
    folder = save_tiny(tmp_path / "start", kind)
    trained = TorchLearner(load_policy(ModelConfig(path=str(folder))), TrainerConfig(lr=1e-2), LossConfig())
    trained.step(eight_rows())
    trained.export(tmp_path / "end")
    assert "lm_head.weight" not in load_file(tmp_path / "end" / "model.safetensors")  # tied
    again = load_policy(ModelConfig(path=str(tmp_path / "end")))
    assert_same(weights(trained), {name: value.detach() for name, value in again.trained.items()})
    assert again.tokenizer.eos_token == "<|im_end|>" and again.tokenizer.chat_template
