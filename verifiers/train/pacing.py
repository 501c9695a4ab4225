"""How many groups may be under way, so that none is expected to be trained more than `max_lag` versions late.

A group that is asked for now waits for those before it: with `a` of them, and batches of G groups, it is trained
`a // G` batches after the next one. Its first tokens are of the sampler's present version, so its expected lag is
`behind + a // G`, where `behind` is how many versions the next batch will be ahead of the sampler. Keeping that at
`lead` at most is one inequality, and `max_lag=0` is no case of its own: while a batch is trained, `behind` is 1 and
nothing is asked for; once its weights are published, G groups are.

`lead` is as small as keeps the trainer busy, and never above `max_lag`: what is ready long before it is trained only
grows old. It rises by one when the trainer found no batch ready, and falls by one when a second batch was ready, too,
over several batches: what is asked for now arrives that much later, so falling faster would overshoot.

This bounds what is expected. A rollout that takes far longer than the others is overtaken by them; the buffer cuts it.
"""

from __future__ import annotations

import math

PATIENCE = 4
"""So many batches for each version of the lead it takes, with a second batch ready each time, until it falls."""


class Pace:
    """The rule, with `oversample` as the factor by which stragglers are allowed for."""

    def __init__(self, groups_per_batch: int, max_lag: int, oversample: float = 1.0) -> None:
        self.lead = min(1, max_lag)
        self._groups_per_batch = groups_per_batch
        self._max_lag = max_lag
        self._oversample = oversample
        self._surplus = 0

    def room(self, *, under_way: int, behind: int, owed: int) -> int:
        """How many groups may be asked for now.

        under_way: asked for, and in no batch yet, whether they are in flight or ready.
        behind: versions that the next batch will be ahead of the sampler.
        owed: groups that the remaining steps need. What no step would train is not sampled, unless by `oversample`.
        """
        allowed = max(0, self.lead + 1 - behind) * self._groups_per_batch
        return max(0, math.ceil(min(allowed, owed) * self._oversample) - under_way)

    def adapt(self, *, starved: bool, ready: int) -> None:
        """A batch was cut. starved: the trainer had to wait for it; ready: groups that are left."""
        self._surplus = self._surplus + 1 if ready >= self._groups_per_batch and not starved else 0
        if starved:
            self.lead = min(self.lead + 1, self._max_lag)
        elif self._surplus >= PATIENCE * self.lead > PATIENCE:
            self.lead, self._surplus = self.lead - 1, 0
