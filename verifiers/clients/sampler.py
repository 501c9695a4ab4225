"""What generates tokens for training: the protocol that inference engines implement.

Where a `Client` takes messages and gives a message, a `Sampler` takes token ids and gives token ids with the logprob
and the policy version of each, and lets its weights be replaced while it runs. Engines implement it above this
package's core; there is no implementation here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from verifiers.types import FinishReason, SamplingArgs


@dataclass(frozen=True, slots=True)
class Completion:
    """A sampled continuation: one logprob and one policy version for each token.

    routed_experts: of a mixture of experts, where the engine records it: int16 array [P + C - 1, layers, k], the
    experts of each token that was fed (prompt, then completion without its last) in each routed layer, k a token.
    """

    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: FinishReason | None
    routed_experts: Any = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine serves: the model's name, its vocabulary and context in tokens, the present policy version."""

    model: str
    vocabulary: int
    context: int
    version: int


class Sampler(Protocol):
    """An engine whose policy is being trained."""

    async def generate(self, token_ids: list[int], params: SamplingArgs) -> Completion:
        """Continue `token_ids`."""
        ...

    async def score(self, token_ids: list[int]) -> list[float]:
        """The logprob of each token given those before it; the first is 0."""
        ...

    async def pause(self) -> None:
        """Finish or keep what runs, and start nothing new."""
        ...

    async def resume(self) -> None:
        """Go on after `pause`."""
        ...

    async def update_weights(self, source: Any, version: int) -> None:
        """Load weights and name them `version`."""
        ...

    def info(self) -> EngineInfo:
        """What is served now."""
        ...
