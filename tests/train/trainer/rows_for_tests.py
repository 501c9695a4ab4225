"""Rows of random tokens for the trainer's tests."""

import random
from typing import Any

import numpy as np

from verifiers.train.rows import Row


def make_row(length: int = 20, prompt: int = 8, seed: int = 0, **changes: Any) -> Row:
    """A row with `prompt` tokens of context and then sampled ones, each with its own advantage."""
    draw = random.Random(seed)
    mask = [place >= prompt for place in range(length)]
    fields: dict[str, Any] = {
        "tokens": [draw.randrange(256) for _ in range(length)],
        "mask": mask,
        "logprobs": [-5.5 - draw.random() / 10 if sampled else 0.0 for sampled in mask],
        "versions": [0] * length,
        "reward": 1.0,
        "advantages": [draw.uniform(-1, 1) if sampled else 0.0 for sampled in mask],
        "sampling": {"temperature": 1.0},
        "rollout_id": f"r{seed}",
    }
    return Row(**{**fields, **changes})


def eight_rows(**changes: Any) -> list[Row]:
    """Eight rows of different lengths, two of them of several turns, sampled at three temperatures."""
    shapes = [(20, 8, 1.0), (33, 4, 0.7), (9, 8, 1.0), (27, 20, 1.3), (14, 3, 1.0), (33, 30, 1.0), (21, 2, 0.7)]
    rows = [
        make_row(length, prompt, seed, sampling={"temperature": temperature}, **changes)
        for seed, (length, prompt, temperature) in enumerate([*shapes, (2, 1, 1.0)])
    ]
    for row in rows[3:5]:
        row.mask[-2] = False
    return rows


def two_groups(prompt: int = 12) -> list[Row]:
    """Four rows that begin alike, two others that do, and one of its own; one each of two turns, and hotter."""
    rows = [make_row(prompt + own, prompt, seed) for seed, own in enumerate([6, 2, 9, 4, 5, 7, 8])]
    for row, first in ((1, 0), (2, 0), (3, 0), (5, 4)):
        rows[row].tokens[:prompt] = rows[first].tokens[:prompt]
    rows[2].mask[-4:-2] = [False, False]
    rows[3].sampling["temperature"] = 0.7
    return rows


def as_numpy(row: Row) -> Row:
    """The same row with arrays."""
    return Row(
        **{
            **{name: getattr(row, name) for name in row.__slots__},
            "tokens": np.array(row.tokens),
            "mask": np.array(row.mask),
            "logprobs": np.array(row.logprobs),
            "versions": np.array(row.versions),
            "advantages": np.array(row.advantages),
        }
    )
