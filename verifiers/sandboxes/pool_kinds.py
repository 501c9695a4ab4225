"""What a pool counts: its figures, and for each kind of sandbox how many idle ones are worth having."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from verifiers.sandboxes.sandbox import Sandbox
from verifiers.sandboxes.spec import SandboxSpec

WINDOW_S = 10.0
"""The demand of so many seconds says how many idle ones are worth having."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """What a pool holds now (idle, used, starting, ending, waiting: who waits for one) and has done so far.

    hits, misses: claims that found an idle sandbox, and that did not. discarded: idle ones that were too old or did not
    answer when claimed. failed: starts that were given up. undeleted: deletions that failed; tried again at the close.
    """

    idle: int
    used: int
    starting: int
    ending: int
    waiting: int
    hits: int = 0
    misses: int = 0
    discarded: int = 0
    failed: int = 0
    undeleted: int = 0

    @property
    def alive(self) -> int:
        """All that may exist now."""
        return self.idle + self.used + self.starting + self.ending


class Kind:
    """The sandboxes of one pool key: `spec` is what an idle one is made from."""

    def __init__(self, spec: SandboxSpec, fresh_s: float) -> None:
        self.spec = replace(spec, secrets={}, labels={}, idempotency_key=None)
        self.fresh_s = min(fresh_s, *(limit / 10 for limit in (spec.lifetime, spec.idle_lifetime) if limit), math.inf)
        self.idle: deque[tuple[Sandbox, float]] = deque()
        self.asked: deque[float] = deque(maxlen=1024)
        self.starts: deque[float] = deque([0.0], maxlen=32)
        self.warm = 0
        self.failures = 0
        self.rests_until = 0.0

    def wanted(self, now: float, ready: int) -> int:
        """How many idle ones are worth having: what comes in while two starts take their time, at least `ready`."""
        if not self.asked or now - self.asked[-1] > self.fresh_s or now < self.rests_until:
            return 0
        if not ready or len(self.asked) < 2:
            return self.warm
        lately = sum(now - when < WINDOW_S for when in self.asked)
        slow = sorted(self.starts)[int(len(self.starts) * 0.95)]
        return max(ready, self.warm, math.ceil(lately / WINDOW_S * slow * 2))
