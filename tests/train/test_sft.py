"""A model learns to say what it is shown, and a run that goes on makes the updates of an unbroken one."""

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.support.tiny_model import TEMPLATE, tiny_model, tiny_tokenizer  # noqa: E402
from verifiers.errors import DatasetError, ResumeError, StoreError  # noqa: E402
from verifiers.train.build import make_sft_learner  # noqa: E402
from verifiers.train.checkpoint import Checkpoints  # noqa: E402
from verifiers.train.config import LoraConfig, ModelConfig, SftLoopConfig, TrainerConfig  # noqa: E402
from verifiers.train.models import policy_of  # noqa: E402
from verifiers.train.report import StepReport  # noqa: E402
from verifiers.train.rows import Row  # noqa: E402
from verifiers.train.sft import SftLoop, split  # noqa: E402
from verifiers.train.sft_rows import rows_of_conversation  # noqa: E402

TOKENIZER = tiny_tokenizer()
REPLIES = {"red": "stop", "green": "go", "blue": "wait"}


def rows(replies: dict[str, str] = REPLIES) -> list[Row]:
    """A row for each question."""
    return [
        row
        for question, reply in replies.items()
        for row in rows_of_conversation(
            {
                "messages": [
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": reply},
                ],
                "task_id": question,
            },
            TOKENIZER,
        )
    ]


def learner(loop: SftLoop, model: ModelConfig | None = None, **settings: Any) -> Any:
    """A tiny one, the same every time."""
    config = TrainerConfig(**{"lr": 5e-3, "tokens_per_microbatch": 512, **settings})
    return make_sft_learner(policy_of(tiny_model(), model or ModelConfig(), TOKENIZER), config, loop.total_steps)


def answer(model: Any, question: str) -> str:
    """What it says, greedily."""
    ids = TOKENIZER.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    said = model.generate(ids, max_new_tokens=8, do_sample=False, attention_mask=torch.ones_like(ids))
    return str(TOKENIZER.decode(said[0, ids.shape[1] :], skip_special_tokens=True))


def test_it_learns_to_say_what_it_is_shown() -> None:
    """After forty updates the model answers as it was taught, and both losses have fallen to almost nothing."""
    reports: list[StepReport] = []
    loop = SftLoop(
        rows(), SftLoopConfig(epochs=40, rows_per_batch=4), validation=rows(), observers=[reports.append]
    )
    taught = learner(loop)
    result = loop.run(taught)
    model = taught.policy.model.eval()
    assert {question: answer(model, question) for question in REPLIES} == REPLIES
    assert result.step == 40 and result.epoch == 40.0 and not result.stopped
    assert result.loss is not None and result.loss < 0.05 and result.validation is not None
    assert result.validation < 0.05 < 5.0 < reports[0].figures["validation/cross_entropy"]
    assert reports[-1].figures["sft/epoch"] == 40.0 and reports[-1].trained


def test_the_loss_is_the_mean_over_learned_tokens() -> None:
    """As computed one row at a time without masks, packing or batches; measuring changes nothing."""
    loop = SftLoop(rows())
    own = learner(loop)
    model = own.policy.model
    total, count = 0.0, 0
    for row in rows():
        ids = torch.tensor([row.tokens])
        logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1).detach()
        for place in (at for at, on in enumerate(row.mask) if on):
            total, count = total - float(logprobs[place - 1, row.tokens[place]]), count + 1
    before = [value.clone() for value in model.parameters()]
    assert own.measure(rows())["loss/cross_entropy"] == pytest.approx(total / count, abs=1e-5)
    assert all(map(torch.equal, before, model.parameters())) and own.version == 0 and model.training
    assert own.step(loop.batch(0))["loss/cross_entropy"] == pytest.approx(total / count, abs=1e-5)


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
def test_batches_of_any_cut_are_one_update(packing: bool) -> None:
    """Small micro-batches and large ones, packed or padded, give the same weights."""
    made = []
    for budget in (32, 512):
        loop = SftLoop(rows(), SftLoopConfig(rows_per_batch=3))
        own = learner(loop, packing=packing, tokens_per_microbatch=budget, optimizer="sgd", lr=0.1)
        loop.run(own)
        made.append(torch.cat([value.flatten() for value in own.policy.model.parameters()]))
    assert torch.allclose(*made, atol=1e-6)


def test_every_epoch_has_every_row_once_in_an_order_of_its_own() -> None:
    """Shuffled by the seed, the last batch of an epoch may be smaller; without shuffling the order is the rows'."""
    many = rows({f"q{number}": str(number) for number in range(10)})
    loop = SftLoop(many, SftLoopConfig(epochs=2, rows_per_batch=4, seed=3))
    assert (loop.steps_per_epoch, loop.total_steps) == (3, 6)
    orders = [[row.task_id for step in range(at, at + 3) for row in loop.batch(step)] for at in (0, 3)]
    assert all(sorted(order) == [f"q{number}" for number in range(10)] for order in orders)
    assert orders[0] != orders[1] and [len(loop.batch(step)) for step in range(3)] == [4, 4, 2]
    again = SftLoop(many, SftLoopConfig(epochs=2, rows_per_batch=4, seed=3))
    assert [row.task_id for row in again.batch(4)] == [row.task_id for row in loop.batch(4)]
    plain = SftLoop(many, SftLoopConfig(rows_per_batch=4, shuffle=False))
    assert [row.task_id for row in plain.batch(1)] == ["q4", "q5", "q6", "q7"]
    assert SftLoop(many, SftLoopConfig(epochs=9, rows_per_batch=4, steps=2)).total_steps == 2


def test_held_out_tasks_are_the_same_in_every_run() -> None:
    """Whole tasks, whatever else is in the data; none at 0."""
    many = rows({f"question {number}": str(number) for number in range(200)})
    learned, held_out = split(many, 0.2)
    assert len(learned) + len(held_out) == 200 and 20 <= len(held_out) <= 60
    _, fewer = split(many[:100], 0.2)
    assert {row.task_id for row in fewer} <= {row.task_id for row in held_out}
    assert split(many, 0.0)[1] == []


FORGETS = TEMPLATE.replace(
    "{{ message.content or '' }}", "{{ (message.content if loop.last else message.content.split('|')[-1]) or '' }}"
)
"""A template that takes thinking out of earlier turns, so that each reply is a row of its own."""


def asked(number: int, thought: str, **more: Any) -> dict[str, Any]:
    """A conversation of two turns."""
    said = [("user", f"question {number}"), ("assistant", f"{thought}|a"), ("user", "Sure?"), ("assistant", thought)]
    return {"messages": [{"role": role, "content": content} for role, content in said], **more}


@pytest.mark.parametrize("form", ["messages", "prompt", "rows"])
def test_rows_of_one_task_that_nobody_named_stay_together(form: str) -> None:
    """Those of one conversation, and of conversations that were asked the same: one would tell the other's answer."""
    tokenizer = tiny_tokenizer(FORGETS)
    made: list[tuple[int, Row]] = []
    for number in range(60):
        for thought in ("hm", "well"):
            item = asked(number, thought)
            if form == "prompt":
                item = {"prompt": item["messages"][:1], "completion": item["messages"][1:]}
            rows = rows_of_conversation(item, tokenizer)
            assert len(rows) == 2
            if form == "rows":  # as a file of another trainer has them
                rows = [replace(row, task_id="", rollout_id=f"{number}{thought}") for row in rows]
            made += [(number, row) for row in rows]
    learned, held_out = split([row for _, row in made], 0.3)
    tasks = [{number for number, row in made if any(row is one for one in part)} for part in (learned, held_out)]
    assert not tasks[0] & tasks[1] and all(len(part) > 5 for part in tasks)


def weights(own: Any) -> Any:
    """All of them, flat."""
    return torch.cat([value.detach().flatten() for value in own.policy.model.parameters()])


def test_a_run_that_goes_on_is_the_unbroken_one(tmp_path: Path) -> None:
    """Stopped by request after five updates and continued by another loop: weights equal bit for bit."""
    config = SftLoopConfig(epochs=6, rows_per_batch=2)
    whole_loop = SftLoop(rows(), config)
    whole = learner(whole_loop, schedule="cosine")
    whole_loop.run(whole)

    def stop(report: StepReport) -> None:
        if report.step == 5:
            first.stop()

    first = SftLoop(rows(), config, observers=[stop], checkpoints=Checkpoints(tmp_path, every=2))
    result = first.run(learner(first, schedule="cosine"))
    assert result.stopped and result.step == 5
    second = SftLoop(rows(), config, checkpoints=Checkpoints(tmp_path, every=2))
    own = learner(second, schedule="cosine")
    assert second.resume(own) and second.step == 5 and own.version == 5
    second.run(own)
    assert torch.equal(weights(own), weights(whole))


@pytest.mark.slow
def test_kill_9_and_a_resume_are_an_unbroken_run(tmp_path: Path) -> None:
    """A process that is killed in the middle of an update loses what came after its last checkpoint, no more."""
    code = f"""
import torch
torch.set_num_threads(1)
from pathlib import Path
from tests.train.test_sft import SftLoop, SftLoopConfig, Checkpoints, learner, rows, weights
import sys
loop = SftLoop(
    rows(),
    SftLoopConfig(epochs=6, rows_per_batch=2),
    checkpoints=Checkpoints(Path({str(tmp_path)!r}), every=2),
    observers=[lambda report: print(report.step, flush=True)],
)
own = learner(loop)
loop.resume(own)
loop.run(own)
torch.save(weights(own), {str(tmp_path / "end.pt")!r})
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == "5":
            child.send_signal(signal.SIGKILL)
            break
    child.wait()
    child.stdout.close()
    assert not (tmp_path / "end.pt").exists()
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] in ("5", "6", "7"), "it went on from a checkpoint"
    loop = SftLoop(rows(), SftLoopConfig(epochs=6, rows_per_batch=2))
    whole = learner(loop)
    loop.run(whole)
    assert torch.equal(torch.load(tmp_path / "end.pt"), weights(whole))


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    """Batches would not be those that the step counts; the message shows both."""
    loop = SftLoop(rows(), SftLoopConfig(rows_per_batch=2), checkpoints=Checkpoints(tmp_path, every=1))
    loop.run(learner(loop))
    other = SftLoop(rows({"red": "halt"}), SftLoopConfig(rows_per_batch=2), checkpoints=Checkpoints(tmp_path))
    with pytest.raises(ResumeError, match="other data or another order"):
        other.resume(learner(other))
    assert not SftLoop(rows()).resume(learner(other))


def test_a_checkpoint_that_can_not_be_written_ends_the_run_at_its_end_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is explained, and the updates go on; the last one has to be kept."""

    class Full(Checkpoints):
        def save(self, state: Any, learner: Any) -> Path:
            raise StoreError(f"no room for step {state.step}", hint="Make room.")

    loop = SftLoop(rows(), SftLoopConfig(rows_per_batch=2, epochs=1), checkpoints=Full(tmp_path, every=1))
    with pytest.raises(StoreError, match=f"no room for step {loop.total_steps}"):
        loop.run(learner(loop))
    assert loop.step == loop.total_steps > 1 and "no room for step 1 (Make room.)" in caplog.text


def test_an_adapter_is_taught_alone() -> None:
    """With LoRA the loss falls and the weights below stay."""
    loop = SftLoop(rows(), SftLoopConfig(epochs=10, rows_per_batch=4))
    own = learner(loop, ModelConfig(lora=LoraConfig(rank=8)), lr=2e-2)
    base = own.policy.model.get_base_model().model.embed_tokens.weight.clone()
    first = own.measure(rows())["loss/cross_entropy"]
    result = loop.run(own)
    assert result.loss is not None and result.loss < first - 0.3
    assert torch.equal(base, own.policy.model.get_base_model().model.embed_tokens.weight)


def test_rows_of_any_temperature_are_learned_at_1() -> None:
    """A row's temperature is its sampler's: also greedy rollouts can be imitated. Missing logprobs are no matter."""
    (row,) = rows({"red": "stop"})
    row.sampling = {"temperature": 0.0}
    assert any(math.isnan(value) for value in row.logprobs)
    loop = SftLoop([row])
    assert loop.run(learner(loop)).loss is not None


def test_nothing_to_learn_is_an_error() -> None:
    """Rather than a run without an update."""
    with pytest.raises(DatasetError, match="nothing to learn"):
        SftLoop([])
