"""The figures of a loss, as sums, counts and maxima that aggregate exactly (`verifiers.train.tally`).

Which names there are depends on the configuration alone, so that ranks can add their vectors without talking first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verifiers.train.losses.ratios import ratio
from verifiers.train.losses.tokens import TokenBatch


class Meter:
    """Collects figures of one micro-batch; everything given to it is detached and summed in float64."""

    def __init__(self, batch: TokenBatch) -> None:
        """Of this batch; an empty one gives zeros for sums and counts, and -inf for maxima."""
        self.batch = batch
        self.sums: dict[str, Any] = {}
        self.counts: dict[str, Any] = {}
        self.maxima: dict[str, Any] = {}

    def mean(self, name: str, values: Any, among: Any = None) -> None:
        """The mean of [n] values or flags; `among`: over these of them only."""
        values = values.detach().double()
        among = values.new_ones(values.shape) if among is None else among.double()
        self.sums[name] = (values * among).sum()
        self.counts[name] = among.sum()

    def largest(self, name: str, values: Any) -> None:
        """The largest of [n] values."""
        values = values.detach().double()
        self.maxima[name] = values.max() if len(values) else values.new_tensor(float("-inf"))

    def mismatch(self) -> None:
        """How far policy and sampler are apart: r, and two estimates of KL(μ‖π) from tokens of μ.

        k1 = −log r is unbiased, k3 = r − 1 − log r too, and never negative (joschu.net/blog/kl-approx.html).
        """
        log_ratio = (self.batch.logprobs - self.batch.sampler_logprobs).detach().double()
        r = ratio(log_ratio)
        for name, values in {"ratio": r, "mismatch_k1": -log_ratio, "mismatch_kl": r - 1 - log_ratio}.items():
            self.mean(f"loss/{name}", values)
            self.largest(f"loss/{name}", values)

    def advantages(self) -> None:
        """What the tokens were worth, and the entropy of the policy where it is known."""
        self.mean("loss/advantage", self.batch.advantages)
        self.mean("loss/advantage_abs", self.batch.advantages.abs())
        self.largest("loss/advantage_abs", self.batch.advantages.abs())
        if self.batch.entropy is not None:
            self.mean("loss/entropy", self.batch.entropy)

    def masks(self, masks: Mapping[str, Any], keep: Any) -> None:
        """Shares of tokens that lost their policy loss: in all, by the sign of the advantage, and by mask.

        A token that two masks drop counts for both.
        """
        positive, negative = self.batch.advantages > 0, self.batch.advantages < 0
        self.mean("loss/masked", ~keep)
        self.mean("loss/masked_positive", ~keep, positive)
        self.mean("loss/masked_negative", ~keep, negative)
        for name, kept in masks.items():
            self.mean(f"loss/masked/{name}", ~kept)
