"""When a sandbox ends by itself: at the end of its lifetime, and when nobody has used it for its idle time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from verifiers.errors import SandboxDiedError
from verifiers.sandboxes.host.channel import Channel
from verifiers.sandboxes.spec import SandboxSpec


class Lifetime:
    """Calls `end` with the reason when the time is over; `cancel` stops that."""

    def __init__(self, spec: SandboxSpec, channel: Channel, end: Callable[[SandboxDiedError], object]) -> None:
        self._channel = channel
        self._end = end
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        if spec.lifetime is not None:
            over = SandboxDiedError(f"the sandbox's lifetime of {spec.lifetime:g} seconds was over")
            self._over = self._loop.call_later(spec.lifetime, end, over)
        if spec.idle_lifetime is not None:
            self._watch_idle(spec.idle_lifetime)

    def _watch_idle(self, seconds: float) -> None:
        left = seconds - self._channel.idle_s
        if left <= 0:
            self._end(SandboxDiedError(f"nobody has used the sandbox for {seconds:g} seconds"))
        else:
            self._idle = self._loop.call_later(max(left, 0.01), self._watch_idle, seconds)

    def cancel(self) -> None:
        """Its end has begun in another way."""
        for timer in (self._over, self._idle):
            if timer is not None:
                timer.cancel()
