"""How many groups may be under way, so that none is expected to be trained more than `max_lag` versions late.

A group that is asked for now waits for those before it: with `a` of them, and batches of G groups, it is trained
`a // G` batches after the next one. Its first tokens are of the sampler's present version, so its expected lag is
`behind + a // G`, where `behind` is how many versions the next batch will be ahead of the sampler. Keeping that at
`max_lag` at most is one inequality, and `max_lag=0` is no case of its own: while a batch is trained, `behind` is 1 and
nothing is asked for; once its weights are published, G groups are.

This bounds what is expected. A rollout that takes far longer than the others is overtaken by them; the buffer cuts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """The rule, with `oversample` as the factor by which stragglers are allowed for."""

    groups_per_batch: int
    max_lag: int
    oversample: float = 1.0

    def room(self, *, under_way: int, behind: int, owed: int) -> int:
        """How many groups may be asked for now.

        under_way: asked for, and in no batch yet, whether they are in flight or ready.
        behind: versions that the next batch will be ahead of the sampler.
        owed: groups that the remaining steps need. What no step would train is not sampled.
        """
        batches = max(0, self.max_lag + 1 - behind)
        most = math.ceil(batches * self.groups_per_batch * self.oversample)
        return max(0, min(most, owed) - under_way)
