"""One measured run of `training.py`, printed as one line of JSON: `training_worker.py WHAT SIZE SEED`."""

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from tests.support.toy_tasks import CLASSES, save_toy, score, single_turn

GROUPS, SIZE, LENGTH, LR = 4, 8, 8, 6e-3


def ours(folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Our stack in this process, sampling and training in turn."""
    return _ours(folder, steps, seed, max_lag=0, max_tokens=LENGTH)


def turns(folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Sampling in a process of its own, in turn with training."""
    return _ours(folder, steps, seed, max_lag=0, max_tokens=24, apart=True)


def overlapped(folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Sampling in a process of its own, at the same time as training."""
    return _ours(folder, steps, seed, max_lag=4, max_tokens=24, apart=True)


def _ours(folder: Path, steps: int, seed: int, **settings: Any) -> dict[str, Any]:
    from tests.support.learning import learn

    ends: list[float] = []
    clock = time.perf_counter if settings.get("apart") else time.process_time
    begun = clock()
    curve = asyncio.run(
        learn(
            single_turn(LENGTH), folder, steps=steps, groups=GROUPS, lr=LR, seed=seed, repeatable=False,
            observers=[lambda report: ends.append(clock() - begun)], **settings,
        )
    )  # fmt: skip
    return {"ends_s": ends, "rewards": curve.of("reward/mean")}


def trl(folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """TRL's trainer with its own sampling."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    def of_class(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        return [score(reply[0]["content"], wanted, LENGTH) for reply, wanted in zip(completions, answer, strict=True)]

    ends: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(time.process_time() - begun)

    tasks = [{"prompt": [{"role": "user", "content": name}], "answer": name} for name in CLASSES]
    settings = GRPOConfig(
        output_dir=str(folder / "trl"), use_cpu=True, bf16=False, report_to="none", seed=seed, disable_tqdm=True,
        per_device_train_batch_size=GROUPS * SIZE, num_generations=SIZE, max_completion_length=LENGTH,
        max_steps=steps, learning_rate=LR, lr_scheduler_type="constant", logging_steps=1, save_strategy="no",
        gradient_checkpointing=False, adam_beta2=0.95,
    )  # fmt: skip
    begun = time.process_time()
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(folder),
        args=settings,
        train_dataset=Dataset.from_list(tasks * GROUPS),
        reward_funcs=of_class,
        callbacks=[Clock()],
    )
    trainer.train()
    return {"ends_s": ends, "rewards": [one["reward"] for one in trainer.state.log_history if "reward" in one]}


def rows(folder: Path, count: int, seed: int) -> dict[str, Any]:  # noqa: ARG001 - every run has these parameters
    """Records of 1,000 tokens and 4 turns become groups, wait in the buffer, are cut, padded and made tensors."""
    from benchmarks.training_rows import results
    from verifiers.train.advantages import make_algorithm
    from verifiers.train.buffer import Buffer
    from verifiers.train.config import AdvantageConfig
    from verifiers.train.curriculum import Ask
    from verifiers.train.forward import on_device
    from verifiers.train.groups import group_of
    from verifiers.train.packing import pad

    made = results(count // SIZE, SIZE, seed)
    buffer = Buffer(make_algorithm(AdvantageConfig()), groups_per_batch=8, max_lag=8)
    asks = [Ask(number, "toy", one.request.task_id, number, 0) for number, one in enumerate(made)]
    begun, seen = time.process_time(), 0
    for ask, result in zip(asks, made, strict=True):
        buffer.ask(ask)
        buffer.arrived(group_of(result))
        batch = buffer.cut(0)
        if batch is not None:
            for micro in pad(batch.rows, 16_384).batches:
                on_device(micro, torch.device("cpu"))
            seen += len(batch.rows)
    return {"rows_per_s": seen / (time.process_time() - begun)}


def main() -> None:
    """Run what was asked for."""
    what, size, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = save_toy(Path(name), seed=seed)
        runs = {"ours": ours, "turns": turns, "overlapped": overlapped, "trl": trl, "rows": rows}
        print(json.dumps(runs[what](folder, size, seed)))


if __name__ == "__main__":
    main()
