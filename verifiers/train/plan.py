"""What a configuration asks for, in figures: batches, bounds, and the size of the model. No torch.

    figures = batch_figures(config)        # of steps, rollouts and tokens
    counted(parameters(config.model.path)) # "135 M"
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from verifiers.errors import ConfigError
from verifiers.train.config import TrainConfig


def batch_figures(config: TrainConfig) -> dict[str, int]:
    """How much a run samples and trains at most.

    rollouts_per_batch: in rollouts; tokens_per_batch: sampled tokens, at the limit of one reply for each; rollouts:
    of the whole run, without those that are cut or left out; ahead: versions that sampling may be ahead.
    """
    rollouts = config.loop.groups_per_batch * config.loop.group_size
    return {
        "steps": config.loop.steps,
        "updates": config.loop.steps * config.trainer.updates_per_batch,
        "rollouts_per_batch": rollouts,
        "tokens_per_batch": rollouts * config.sampling.max_tokens,
        "rollouts": rollouts * config.loop.steps,
        "ahead": config.loop.max_lag,
    }


def on_hub(path: str) -> bool:
    """Whether `model.path` is a name on the Hugging Face Hub, since nothing here is called so.

    ConfigError if it can only be meant to be here: looking on the Hub would end in a minute of retries, or in a model
    of somebody else.
    """
    if Path(path).exists():
        return False
    first, *rest = Path(path).parts
    if len(rest) > 1 or first in ("/", "~", "..") or path.startswith("./") or path.endswith(".gguf"):
        raise _no_model(path)
    if not rest or Path(first).is_dir():
        raise _no_model(path)
    return True


def _no_model(path: str) -> ConfigError:
    return ConfigError(
        f"there is no model {path!r}",
        hint="model.path is a folder with config.json, weights and tokenizer, a .gguf file, or OWNER/NAME on the "
        "Hugging Face Hub.",
    )


def parameters(path: str) -> int | None:
    """Parameters of a model's folder, from the headers of its safetensors files; None where they do not tell."""
    files = sorted(Path(path).glob("*.safetensors")) if Path(path).is_dir() else []
    try:
        return sum(_elements(file) for file in files) or None
    except (OSError, ValueError):
        return None


def _elements(file: Path) -> int:
    """A safetensors file begins with the length of its header in 8 bytes, and the header, in JSON."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header: dict[str, Any] = json.loads(stream.read(length))
    shapes: Iterable[list[int]] = (one["shape"] for name, one in header.items() if name != "__metadata__")
    return sum(math.prod(shape) for shape in shapes)


def counted(number: float) -> str:
    """`135 M`, `1.2 B`, `90.1 k`, `512`."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            value = number / size
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
    return f"{number:.0f}"
