"""What two ranks do in the tests of several processes: `torchrun ranks_main.py FOLDER KIND`, or forked processes.

The leader writes the trained weights and figures of each part into FOLDER; the test compares them with one process.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.support.tiny_model import tiny_model
from tests.train.trainer.rows_for_tests import eight_rows, make_row, two_groups
from verifiers.errors import TrainingDivergedError
from verifiers.train.config import LoraConfig, LossConfig, ModelConfig, TrainerConfig
from verifiers.train.distributed import Ranks, join
from verifiers.train.models import policy_of
from verifiers.train.trainer import TorchLearner

LOSS = LossConfig(kind="icepop", kl=0.1)


def make_learner(kind: str, ranks: Ranks | None = None, **trainer: Any) -> TorchLearner:
    """A float64 learner of the tiny model; "lora" is the dense one with an adapter."""
    lora = LoraConfig(rank=4) if kind == "lora" else None
    model = tiny_model("qwen2" if lora else kind).double()
    config = ModelConfig(dtype="float64", lora=lora, router_aux_coefficient=0.1)
    return TorchLearner(policy_of(model, config, reference=True), TrainerConfig(**trainer), LOSS, ranks=ranks)


def gradient_step(learner: TorchLearner, rows: list[Any]) -> tuple[dict[str, Any], dict[str, float]]:
    """The weights after one update at rate 1 without clipping, and its figures."""
    figures = learner.step(rows)
    tensors = learner.weights().tensors
    assert tensors is not None
    return tensors, figures


SGD: dict[str, Any] = {"lr": 1.0, "optimizer": "sgd", "max_grad_norm": None}
ADAM: dict[str, Any] = {"lr": 1e-2}


def lead_or_follow(learner: TorchLearner, lead: Callable[[], None]) -> None:
    """Run `lead` at rank 0, and what it asks for at the others."""
    if learner.ranks.leads:
        lead()
        learner.close()
    else:
        learner.follow()


def run(folder: Path, kind: str) -> None:
    """All parts, one learner after the other."""
    torch.set_num_threads(1)
    ranks = join("cpu")
    assert ranks.world == 2
    learner = make_learner(kind, ranks, **SGD)

    def eight() -> None:
        tensors, figures = gradient_step(learner, [*eight_rows(), *two_groups()])
        save_file(tensors, folder / "eight.safetensors")
        (folder / "eight.json").write_text(json.dumps(figures))

    lead_or_follow(learner, eight)
    fewer = make_learner(kind, ranks, **SGD)
    lead_or_follow(
        fewer, lambda: save_file(gradient_step(fewer, [make_row()])[0], folder / "one.safetensors")
    )
    unbroken = make_learner(kind, ranks, **ADAM)

    def four() -> None:
        for number in range(4):
            if number == 2:
                unbroken.save(folder / "state")
            unbroken.step(eight_rows())
        save_file(unbroken.weights().tensors or {}, folder / "four.safetensors")
        unbroken.export(folder / "exported")

    lead_or_follow(unbroken, four)
    resumed = make_learner(kind, ranks, **ADAM)

    def two_more() -> None:
        resumed.load(folder / "state")
        for _ in range(2):
            resumed.step(eight_rows())
        assert resumed.version == 4
        save_file(resumed.weights().tensors or {}, folder / "resumed.safetensors")

    lead_or_follow(resumed, two_more)
    diverging = make_learner(kind, ranks, **ADAM)

    def diverges() -> None:
        bad = make_row(advantages=[0.0] * 8 + [1e38] * 12)
        for _ in range(2):
            assert diverging.step([bad] * 2)["trainer/skipped"] == 1
        try:
            diverging.step([bad] * 2)
        except TrainingDivergedError:
            (folder / "diverged").touch()

    lead_or_follow(diverging, diverges)
    half = make_learner(kind, ranks, lr=0.1, optimizer="sgd", autocast="bfloat16")
    lead_or_follow(half, lambda: save_file(gradient_step(half, eight_rows())[0], folder / "half.safetensors"))
    ranks.leave()


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
