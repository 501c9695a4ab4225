"""What the loop knows of a trainer: rows in, new weights out. The torch trainer implements it; tests have others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from verifiers.train.rows import Row


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights to hand to a sampler: a folder in Hugging Face's layout, or tensors by name in this process.

    adapter: whether they are those of a LoRA adapter alone. Exactly one of `folder` and `tensors` is set.
    """

    version: int
    folder: Path | None = None
    tensors: dict[str, Any] | None = None
    adapter: bool = False


class Learner(Protocol):
    """Trains a policy. Its methods block; one thread calls them, one at a time."""

    @property
    def version(self) -> int:
        """How many updates the weights have had: the policy version."""
        ...

    def step(self, rows: Sequence[Row]) -> dict[str, float]:
        """One update from rows with advantages; returns the figures to log.

        With nothing to train on (no rows, or no token left after masking) the weights stay, and `version` with them.
        """
        ...

    def weights(self) -> Weights:
        """The present weights for a sampler. They stay valid until the next but one call."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything that a continued run needs (weights, optimiser, random state) into an empty folder."""
        ...

    def load(self, folder: Path) -> None:
        """Go on from what `save` wrote."""
        ...
