"""Sums, products and short word problems with one whole number as the answer, from a seeded generator.

One task:

    question  "Mia has 6 books and buys 2 more. How many books does Mia have now?"
    answer    "8"
    info      {"level": 4}

The reply should be one short line; its last number is the answer and is compared exactly, so no partial credit
and no judging model is involved. Five levels alternate, from single-digit sums that a model of 135 M parameters
often gets right to two-step word problems that it mostly misses: a mean tells models apart. The same arguments give
the same tasks on every machine, and no sum of the training tasks occurs in the evaluation tasks.

    vf-eval arithmetic -m local
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Sequence
from typing import Any

import verifiers as vf
from verifiers.grading.math import grade_math
from verifiers.grading.verdict import reward_of

Task = dict[str, Any]
Problem = tuple[str, int]
"""A question and its answer."""

SYSTEM_PROMPT = "Work out the answer in one short line. The last number of your reply is your answer."
FEW_SHOT = [
    {"role": "user", "content": "What is 4 + 3?"},
    {"role": "assistant", "content": "4 + 3 = 7"},
    {"role": "user", "content": "Ann has 8 cups and buys 2 more. How many cups does Ann have now?"},
    {"role": "assistant", "content": "8 + 2 = 10"},
    {"role": "user", "content": "What is 15 - 6?"},
    {"role": "assistant", "content": "15 - 6 = 9"},
]
NAMES = ("Mia", "Ben", "Ada", "Tom", "Zoe", "Leo", "Ida", "Sam")
THINGS = ("apples", "books", "coins", "stamps", "shells", "cards", "pens", "marbles")
ASK = ("What is {}?", "Calculate {}.", "How much is {}?", "{} = ?")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?")
PATIENCE = 2000
"""Draws in a row that bring no new task before a generator says that there are no more."""
EVAL_SHARE = 4
"""One problem in four, chosen by the hash of its numbers, belongs to evaluation."""


# --- one function a level ---------------------------------------------------------------------------------------


def digit_sum(rng: random.Random) -> Problem:
    """Level 1: two digits added."""
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    return f"{a} + {b}", a + b


def digit_product(rng: random.Random) -> Problem:
    """Level 2: two digits multiplied."""
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    return f"{a} * {b}", a * b


def larger_sum(rng: random.Random) -> Problem:
    """Level 3: numbers of two digits, added or subtracted, half of them round."""
    a = rng.randint(1, 9) * 10 if rng.random() < 0.5 else rng.randint(11, 99)
    b = rng.randint(1, 9) if rng.random() < 0.5 else rng.randint(11, 99)
    if rng.random() < 0.3 and a > b:
        return f"{a} - {b}", a - b
    return f"{a} + {b}", a + b


def one_step(rng: random.Random) -> Problem:
    """Level 4: a story with one operation."""
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    a, b = rng.randint(6, 12), rng.randint(2, 5)
    return rng.choice(
        [
            (f"{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?", a + b),
            (f"{name} has {a} {things} and gives {b} away. How many {things} are left?", a - b),
            (f"{name} has {b} boxes with {a} {things} each. How many {things} does {name} have?", a * b),
        ]
    )


def two_steps(rng: random.Random) -> Problem:
    """Level 5: a story with two operations."""
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    a, b, c = rng.randint(2, 9), rng.randint(5, 9), rng.randint(2, 9)
    if rng.random() < 0.5:
        story = f"{name} fills {a} boxes with {b} {things} each and keeps {c} {things} on the table."
        return f"{story} How many {things} are there in all?", a * b + c
    story = f"{name} had {a * b} {things}, gave {c} to a friend and found {b} on the way home."
    return f"{story} How many {things} does {name} have now?", a * b - c + b


LEVELS = (digit_sum, digit_product, larger_sum, one_step, two_steps)


# --- tasks ------------------------------------------------------------------------------------------------------


def make_tasks(count: int, split: str, levels: Sequence[int], seed: int) -> list[Task]:
    """`count` distinct tasks of `split`, the levels taking turns. ValueError if a level has not so many."""
    rng = random.Random(f"arithmetic/{split}/{seed}")
    tasks: dict[str, Task] = {}
    stale = 0
    while len(tasks) < count:
        level = levels[len(tasks) % len(levels)]
        text, answer = LEVELS[level - 1](rng)
        question = rng.choice(ASK).format(text) if level <= 3 else text
        stale += 1
        # Repeating the question must not pay, so its own last number is never the answer.
        if question not in tasks and _split_of(text) == split and last_number(question) != str(answer):
            tasks[question] = {"question": question, "answer": str(answer), "info": {"level": level}}
            stale = 0
        if stale > PATIENCE:
            raise ValueError(f"level {level} has no {count // len(levels)} different {split} tasks")
    return list(tasks.values())


def _split_of(text: str) -> str:
    """Which split a problem belongs to, by its numbers alone: no story hides a sum of the other split."""
    numbers = " ".join(sorted(NUMBER.findall(text)))
    return "eval" if hashlib.sha256(numbers.encode()).digest()[0] % EVAL_SHARE == 0 else "train"


# --- answer and reward ------------------------------------------------------------------------------------------


def last_number(text: str) -> str:
    """The last number in `text`, without thousands commas; "" if there is none or the thinking never ends."""
    numbers = [] if "<think>" in text else NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else ""


def correct_answer(parser: vf.Parser, completion: vf.Messages, answer: str) -> float:
    """1 if the reply's last number equals the answer, else 0."""
    return reward_of(grade_math(parser.parse_answer(completion), answer))


def load_environment(
    num_train: int = 500,
    num_eval: int = 100,
    levels: Sequence[int] = (1, 2, 3, 4, 5),
    max_tokens: int = 48,
    seed: int = 0,
    shots: int = len(FEW_SHOT) // 2,
) -> vf.Environment:
    """The environment.

    `levels` picks among 1 to 5; `max_tokens` is the default limit of a reply, which a run may raise (`-t`) for a
    model that thinks first; `seed` gives other tasks. `shots` is how many solved examples stand before the question:
    0 for training a model to answer in the form by itself, from prompts of half the length.
    """
    if not 0 <= shots <= len(FEW_SHOT) // 2:
        raise ValueError(f"shots must be 0 to {len(FEW_SHOT) // 2}, not {shots}")
    if not levels or not set(levels) <= set(range(1, len(LEVELS) + 1)):
        raise ValueError(f"levels must be some of 1 to {len(LEVELS)}, not {list(levels)}")
    parser = vf.MaybeThinkParser(last_number)
    return vf.SingleTurnEnv(
        dataset=lambda: make_tasks(num_train, "train", levels, seed),
        eval_dataset=lambda: make_tasks(num_eval, "eval", levels, seed),
        system_prompt=SYSTEM_PROMPT,
        few_shot=FEW_SHOT[: 2 * shots],
        parser=parser,
        rubric=vf.Rubric(funcs=[correct_answer], parser=parser),
        sampling_args={"max_tokens": max_tokens},
    )


def oracle(task: Task, messages: vf.Messages, state: vf.State) -> str:  # noqa: ARG001 - every oracle has these parameters
    """A reply that earns the maximum."""
    return str(task["answer"])
