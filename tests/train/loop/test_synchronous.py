"""`max_lag=0` beside an independent synchronous loop: the same tokens, and the same weights, bit for bit.

Both train in float64 and hand float32 weights to their sampler. Two programs that add up the same numbers in another
order differ in the last bits of a float64, and so agree in every bit of a float32. Rows are trained whole, as the
reference does it: with shared prompts sums have other terms, which Adam shows where a gradient is next to nothing
(tests/train/trainer/test_invariance.py holds gradients to 1e-6).
"""

from __future__ import annotations

import asyncio
import functools

import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

from tests.support.tiny_model import tiny_tokenizer  # noqa: E402
from tests.support.toy_tasks import TEMPLATE, score, single_turn  # noqa: E402
from tests.support.training_torch import (  # noqa: E402
    SAMPLING,
    toy_engine,
    toy_learner,
    toy_loop,
    toy_model,
    toy_source,
)
from tests.train.reference_loop import train  # noqa: E402
from verifiers.rollouts.plan import rollout_id_of, sampling_seed_of, task_id_of  # noqa: E402
from verifiers.train.config import LoopConfig  # noqa: E402
from verifiers.train.curriculum import Course, Curriculum  # noqa: E402

STEPS, GROUPS, SIZE = 4, 3, 6


def bits(tensors):
    """Every weight as the sampler is given it, by the model's names."""
    return {name: value.detach().float().numpy().tobytes() for name, value in tensors.items()}


@functools.cache
def ours(max_lag=0, steps=STEPS):
    """Tokens and logprobs of each batch, and the weights after each step, of the package's loop."""
    batches, weights = [], []

    async def main():
        engine, learner = toy_engine(), toy_learner("float64", share_prompts=False)
        step = learner.step

        def watched(rows):
            batches.append([(row.tokens, [value for value in row.logprobs if value]) for row in rows])
            figures = step(rows)
            weights.append(bits(learner.policy.trained))
            return figures

        learner.step = watched
        config = LoopConfig(steps=steps, groups_per_batch=GROUPS, group_size=SIZE, max_lag=max_lag)
        async with toy_source(single_turn(), engine) as source:
            await toy_loop({"toy": source}, engine, learner, config).run()
        await engine.close()

    asyncio.run(main())
    return batches, weights


def independent():
    """The same of the reference: one group after the other, until enough of them have a difference to learn from."""
    batches, weights = [], []
    tokenizer, model, runner = tiny_tokenizer(TEMPLATE), toy_model().double(), asyncio.Runner()
    engine, rows = toy_engine(), {task_id_of(dict(row)): row for row in single_turn().get_dataset()}
    curriculum = Curriculum([Course("toy", list(rows))])

    async def group(ask):
        row, members = rows[ask.task_id], []
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False)
        for index in range(SIZE):
            seed = sampling_seed_of(rollout_id_of(ask.seed, ask.task_id, index))
            reply = await engine.generate(prompt, {**SAMPLING, "seed": seed})
            text = tokenizer.decode(reply.tokens, skip_special_tokens=True)
            members.append(
                {
                    "tokens": prompt + reply.tokens,
                    "mask": [False] * len(prompt) + [True] * len(reply.tokens),
                    "logprobs": [0.0] * len(prompt) + reply.logprobs,
                    "reward": score(text, row["answer"]),
                }
            )
        return members

    async def sampled(step):
        if step:
            weights.append(bits(dict(model.named_parameters())))
            await engine.update_weights({name: value.detach() for name, value in model.named_parameters()}, step)
        groups = []
        while len(groups) < GROUPS:
            members = await group(curriculum.next())
            if len({member["reward"] for member in members}) > 1:
                groups.append(members)
        batches.append(
            [(one["tokens"], [value for value in one["logprobs"] if value]) for members in groups for one in members]
        )
        return groups

    with runner:
        train(model, lambda model, step: runner.run(sampled(step)), steps=STEPS, lr=6e-3)
        runner.run(engine.close())
    return batches, [*weights, bits(dict(model.named_parameters()))]


def test_without_lag_it_equals_an_independent_loop_bit_for_bit():
    """Sampled tokens, the bits of their logprobs, and all weights after each step."""
    batches, weights = ours()
    expected_batches, expected_weights = independent()
    assert batches == expected_batches
    for number, (mine, theirs) in enumerate(zip(weights, expected_weights, strict=True)):
        differing = [name for name in theirs if mine[name] != theirs[name]]
        assert not differing, f"after step {number + 1}"
    assert weights[0] != weights[1]


def test_with_lag_it_does_not():
    """What is compared can differ: with lag the second batch is of other weights."""
    assert ours(max_lag=2, steps=2)[0] != ours()[0][:2]
