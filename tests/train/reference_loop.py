"""Synchronous GRPO in one function, to hold the real loop against: it shares neither buffer nor trainer with it.

Plain torch and transformers. A rollout is a mapping with `tokens`, `mask`, `logprobs` and `reward`, as a Row has them.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

Sample = Callable[[Any, int], Sequence[Sequence[Any]]]
"""The model and the number of the step in; groups of rollouts out, in the order in which they are trained."""


def train(
    model: Any,
    sample: Sample,
    *,
    steps: int,
    lr: float,
    temperature: float = 1.0,
    delta: float = 0.2,
    drift: float = 1e-3,
    max_norm: float = 1.0,
    std: bool = False,
) -> list[float]:
    """Train in place, one update a step, all rows in one padded batch. Returns the mean reward of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    curve = []
    for step in range(steps):
        groups = sample(model, step)
        batch = []
        for group in groups:
            rewards = [row["reward"] for row in group]
            scale = statistics.stdev(rewards) + 1e-4 if std else 1.0
            if max(rewards) > min(rewards):
                batch += [(row, (row["reward"] - statistics.fmean(rewards)) / scale) for row in group]
        curve.append(statistics.fmean(row["reward"] for group in groups for row in group))
        if batch:
            loss = policy_loss(model, batch, temperature, delta, drift)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    return curve


def policy_loss(model: Any, batch: Sequence[Any], temperature: float, delta: float, drift: float) -> Any:
    """DPPO with a drift term, mean over the sampled tokens of all rows."""
    length = max(len(row["tokens"]) for row, _ in batch)
    tokens = torch.zeros(len(batch), length, dtype=torch.long)
    there, mask = (torch.zeros(len(batch), length, dtype=torch.bool) for _ in range(2))
    behaviour, advantage = (torch.zeros(len(batch), length) for _ in range(2))
    for number, (row, value) in enumerate(batch):
        size = len(row["tokens"])
        tokens[number, :size] = torch.tensor(row["tokens"])
        there[number, :size] = True
        mask[number, :size] = torch.tensor(row["mask"])
        behaviour[number, :size] = torch.tensor(row["logprobs"])
        advantage[number, :size] = value
    logits = model(input_ids=tokens, attention_mask=there.long()).logits[:, :-1] / temperature
    policy = logits.log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0][mask[:, 1:]]
    behaviour, advantage = behaviour[mask], advantage[mask]
    moved = policy.exp() - behaviour.exp()
    dropped = ((advantage > 0) & (moved > delta)) | ((advantage < 0) & (moved < -delta))
    ratio = (policy - behaviour).exp()
    return (-(~dropped).float() * advantage * ratio + drift * (policy - behaviour).square()).mean()
