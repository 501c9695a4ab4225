"""The optimiser, and the learning rate of each update."""

from __future__ import annotations

import math
from typing import Any

import torch

from verifiers.train.config import TrainerConfig


def make_optimizer(parameters: list[Any], config: TrainerConfig) -> Any:
    """AdamW or SGD. Matrices alone decay: norms and biases have no scale to shrink to."""
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def lr_at(update: int, config: TrainerConfig, total: int | None) -> float:
    """Learning rate of update 0, 1, …: linear warm-up to `lr`, then constant, or falling to 0 at `total` updates."""
    if update < config.warmup_steps:
        return config.lr * (update + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant" or total is None:
        return config.lr
    done = min(1.0, (update - config.warmup_steps) / max(1, total - config.warmup_steps))
    return config.lr * (1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2)
