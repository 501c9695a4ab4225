"""A pool of sandboxes that are started before anybody asks: `SandboxPool` is a `Provider` around another one.

    async with SandboxPool(LocalProvider(), max_alive=200, max_starting=8, ready=16) as pool:
        sandbox = await pool.create(spec)       # an idle one if there is one, else a new one
        ...
        await sandbox.delete()                  # gone for good: a used sandbox is never given to a second rollout

Who asks first is served first. Idle sandboxes are kept for each kind of specification (`SandboxSpec.pool_key`) that was
asked for more than once lately. What must not enter an idle sandbox, secrets and labels, comes at the claim. At most
`max_alive` exist at any time, those that start or end included, and at most `max_starting` start. A pool belongs to the
event loop it is used in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

from verifiers.errors import (
    ConfigError,
    SandboxBusyError,
    SandboxCreationError,
    SandboxError,
)
from verifiers.loops import shielded
from verifiers.sandboxes.pool_kinds import Kind, PoolStats
from verifiers.sandboxes.pool_requests import Requests
from verifiers.sandboxes.pool_starts import ATTEMPTS, LONGEST_PAUSE_S, PAUSE_S, started
from verifiers.sandboxes.pooled import PooledSandbox
from verifiers.sandboxes.results import Capabilities, SandboxInfo
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import SandboxSpec, check_limit

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Waiter:
    """Who waits for a sandbox. `given`: the sandbox, and since when it was idle; None if it is new."""

    kind: Kind
    since: float
    given: asyncio.Future[tuple[Sandbox, float | None]]


class SandboxPool(Provider):
    """Pre-warmed sandboxes of `provider`, which it enters and closes.

    max_alive, max_starting: see the module. ready: idle ones kept for each kind, more if demand asks for it.
    start_s, ping_s: seconds that a start, and the answer of an idle one at its claim, may take. fresh_s: an idle one
    older than this is thrown away. wait_s: how long one is waited for before `SandboxBusyError`; None: for ever.
    """

    def __init__(
        self,
        provider: Provider,
        max_alive: int = 64,
        max_starting: int = 8,
        *,
        ready: int = 4,
        start_s: float = 60.0,
        ping_s: float = 2.0,
        fresh_s: float = 120.0,
        wait_s: float | None = 600.0,
    ) -> None:
        limits = {"max_alive": max_alive, "max_starting": max_starting, "start_s": start_s, "ping_s": ping_s}
        for name, value in {**limits, "fresh_s": fresh_s, "wait_s": wait_s}.items():
            check_limit(name, value)
        if ready < 0:
            raise ConfigError(f"ready is {ready}", hint="0 keeps no idle sandboxes.")
        self.name = provider.name
        self.provider = provider
        self.max_alive, self.max_starting, self.ready = max_alive, max_starting, ready
        self._start_s, self._ping_s, self._fresh_s, self._wait_s = start_s, ping_s, fresh_s, wait_s
        self._kinds: dict[str, Kind] = {}
        self._waiters: list[_Waiter] = []
        self._starting: dict[asyncio.Task[None], Kind] = {}
        self._held: set[Sandbox] = set()
        """Taken from the idle ones or just made, and not yet deleted."""
        self._used: dict[str, PooledSandbox] = {}
        self._ending: dict[Sandbox, asyncio.Task[SandboxError | None]] = {}
        self._undeleted: set[Sandbox] = set()
        self._requests = Requests()
        self._counts: Counter[str] = Counter()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    # --- the provider -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.provider.__aenter__()
        return self

    async def capabilities(self) -> Capabilities:
        """Those of the provider."""
        return await self.provider.capabilities()

    async def create(self, spec: SandboxSpec) -> PooledSandbox:
        """An idle sandbox that answers, or a new one.

        Raises what the provider raises after `ATTEMPTS`, SandboxBusyError after `wait_s`. Cancelled: what was started
        for this call becomes an idle one.
        """
        if (key := spec.idempotency_key) is None:
            return await self._take(spec)
        return await self._requests.made(key, lambda: self._take(spec))

    async def claim(self, sandbox: Sandbox, spec: SandboxSpec) -> PooledSandbox:
        """For a pool around this one: the sandbox is in use here."""
        used = self._used[sandbox.id]
        used.wrap(await self.provider.claim(used.inner, spec))
        return used

    async def get(self, sandbox_id: str) -> PooledSandbox:
        """A sandbox that is in use. KeyError: there is none of this id."""
        return self._used[sandbox_id]

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """Those in use; idle ones are nobody's."""
        return [info for info in await self.provider.list(labels) if info.id in self._used]

    async def reap_orphans(self) -> int:
        """As the provider does."""
        return await self.provider.reap_orphans()

    async def close(self) -> None:
        """Delete all, also what others still use, and close the provider."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await shielded(self._closing)

    # --- beyond a provider ------------------------------------------------------------------------------------

    def warm(self, spec: SandboxSpec, count: int) -> None:
        """Begin to have `count` idle ones of this kind, as far as the limits allow."""
        kind = self._kind(spec)
        kind.warm = count
        kind.asked.append(_now())
        self._pump()

    def stats(self) -> PoolStats:
        """What there is now and has been."""
        idle = sum(len(kind.idle) for kind in self._kinds.values())
        now = {"idle": idle, "used": len(self._held), "starting": len(self._starting), "ending": len(self._ending)}
        return PoolStats(**now, waiting=len(self._waiters), **self._counts)

    # --- one claim --------------------------------------------------------------------------------------------

    async def _take(self, spec: SandboxSpec) -> PooledSandbox:
        kind, began = self._kind(spec), _now()
        kind.asked.append(began)
        while True:
            sandbox, idle_since = await self._next(kind)
            idle = idle_since is not None
            if idle and not await self._answers(kind, sandbox, idle_since):
                self._counts["discarded"] += 1
                self._end(sandbox)
                continue
            try:
                claimed = await self.provider.claim(sandbox, spec)
            except BaseException as error:  # cancellation too: what was claimed half is used
                self._end(sandbox)
                if idle and isinstance(error, SandboxError):
                    continue
                raise
            if self._closing is not None:  # it has deleted this one
                raise _closed()
            self._counts["hits" if idle else "misses"] += 1
            used = PooledSandbox(claimed, partial(self._end, sandbox), hit=idle, start_s=_now() - began)
            used.key = spec.idempotency_key
            self._used[used.id] = used
            return used

    async def _next(self, kind: Kind) -> tuple[Sandbox, float | None]:
        """The next sandbox for who asks now, and since when it was idle; it is held by the caller."""
        if self._closing is not None:
            raise _closed()
        waiter = _Waiter(kind, _now(), asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        self._pump()
        try:
            async with asyncio.timeout(self._wait_s):
                return await waiter.given
        except (TimeoutError, asyncio.CancelledError) as error:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif waiter.given.exception() is None:  # given in the same moment
                self._give_back(kind, *waiter.given.result())
            self._pump()
            if isinstance(error, TimeoutError):
                waited = f"no sandbox became free within {self._wait_s:g} s"
                raise SandboxBusyError(f"{waited}: {self.stats()}") from error
            raise

    async def _answers(self, kind: Kind, sandbox: Sandbox, since: float | None) -> bool:
        """Whether an idle sandbox is alive. Cancelled: it is idle again."""
        try:
            async with asyncio.timeout(self._ping_s):
                return await sandbox.alive()
        except (SandboxError, TimeoutError):
            return False
        except asyncio.CancelledError:
            self._give_back(kind, sandbox, since)
            raise

    def _give_back(self, kind: Kind, sandbox: Sandbox, since: float | None) -> None:
        """One that nobody has used after all is idle again."""
        if self._closing is not None:
            self._end(sandbox)
            return
        self._held.discard(sandbox)
        kind.idle.appendleft((sandbox, _now() if since is None else since))
        self._pump()

    # --- who gets what ----------------------------------------------------------------------------------------

    def _kind(self, spec: SandboxSpec) -> Kind:
        key = spec.pool_key
        if (kind := self._kinds.get(key)) is None:
            kind = self._kinds[key] = Kind(spec, self._fresh_s)
        return kind

    def _room(self) -> bool:
        alive = sum(len(kind.idle) for kind in self._kinds.values())
        alive += len(self._held) + len(self._starting) + len(self._ending)
        return alive < self.max_alive and len(self._starting) < self.max_starting

    def _pump(self) -> None:
        """Hand out what is idle, start what is waited for, then what is worth having. Called after every change."""
        if self._closing is not None:
            return
        self._sweep()
        for waiter in self._waiting():
            if waiter.kind.idle:
                self._give(waiter, *waiter.kind.idle.popleft())
        coming = Counter(self._starting.values())
        for waiter in self._waiting():  # nobody is overtaken by who came later
            if coming[waiter.kind] > 0:
                coming[waiter.kind] -= 1
            elif self._room():
                self._begin(waiter.kind)
            else:
                self._make_room(waiter.kind)
                return
        now = _now()
        for kind in self._kinds.values():
            missing = kind.wanted(now, self.ready) - len(kind.idle) - coming[kind]
            for _ in range(missing):
                if not self._room():
                    return
                self._begin(kind)

    def _waiting(self) -> tuple[_Waiter, ...]:
        """Who waits, in order. Who was cancelled and has not run since is in the list and waits no more."""
        return tuple(waiter for waiter in self._waiters if not waiter.given.done())

    def _give(self, waiter: _Waiter, sandbox: Sandbox, since: float | None) -> None:
        self._waiters.remove(waiter)
        self._held.add(sandbox)
        waiter.given.set_result((sandbox, since))

    def _make_room(self, kind: Kind) -> None:
        """End the oldest idle sandbox of another kind, unless room is being made for all who wait."""
        others = [other for other in self._kinds.values() if other is not kind and other.idle]
        if others and len(self._ending) < len(self._waiters) and len(self._starting) < self.max_starting:
            self._end(min(others, key=lambda other: other.idle[0][1]).idle.popleft()[0])

    def _sweep(self) -> None:
        """Throw away what has been idle for too long, forget what nobody asks for, and come again in time."""
        now = _now()
        for key, kind in list(self._kinds.items()):
            while kind.idle and now - kind.idle[0][1] >= kind.fresh_s:
                self._end(kind.idle.popleft()[0])
            in_use = kind.idle or kind in self._starting.values() or any(w.kind is kind for w in self._waiters)
            if not in_use and kind.asked and now - kind.asked[-1] > self._fresh_s:
                del self._kinds[key]
        if self._sweep_timer is None and self._kinds:
            pause = min(kind.fresh_s for kind in self._kinds.values()) / 2
            self._sweep_timer = asyncio.get_running_loop().call_later(pause, self._look_again)

    def _look_again(self) -> None:
        self._sweep_timer = None
        self._pump()

    # --- starting ---------------------------------------------------------------------------------------------

    def _begin(self, kind: Kind) -> None:
        task = asyncio.create_task(self._start(kind))
        self._starting[task] = kind

    async def _start(self, kind: Kind) -> None:
        """Make one sandbox, for whoever waits longest for its kind when it is there."""
        task, began = asyncio.current_task(), _now()
        assert task is not None
        try:
            sandbox = await started(
                self.provider,
                kind.spec,
                start_s=self._start_s,
                wait_s=self._wait_s,
                busy=partial(self._make_room, kind),
            )
        except Exception as error:  # boundary: it goes to who waits, or into the log
            del self._starting[task]
            self._start_failed(kind, began, error)
        except asyncio.CancelledError:
            del self._starting[task]
            raise
        else:
            del self._starting[task]
            kind.failures, kind.rests_until = 0, 0.0
            kind.starts.append(_now() - began)
            if self._closing is not None:
                await shielded(self._end(sandbox))
            elif waiter := next((waiter for waiter in self._waiting() if waiter.kind is kind), None):
                self._give(waiter, sandbox, None)
            else:
                kind.idle.append((sandbox, _now()))
        self._pump()

    def _start_failed(self, kind: Kind, began: float, error: Exception) -> None:
        self._counts["failed"] += 1
        kind.failures += 1
        kind.rests_until = _now() + min(PAUSE_S * 2.0**kind.failures, LONGEST_PAUSE_S)
        if not isinstance(error, SandboxError):
            error = SandboxCreationError(f"making a sandbox raised {type(error).__name__}: {error}", cause=error)
        waiter = next((waiter for waiter in self._waiting() if waiter.kind is kind and waiter.since <= began), None)
        if waiter is None:  # who came later gets a start of its own
            logger.warning("an idle sandbox could not be made: %s", error)
            return
        self._waiters.remove(waiter)
        waiter.given.set_exception(error)

    # --- ending -----------------------------------------------------------------------------------------------

    def _end(self, sandbox: Sandbox) -> asyncio.Task[SandboxError | None]:
        """Delete a sandbox, once, whoever asks and however often."""
        if (task := self._ending.get(sandbox)) is None:
            task = self._ending[sandbox] = asyncio.create_task(self._delete(sandbox))
            self._held.discard(sandbox)
            used = self._used.pop(sandbox.id, None)
            if used is not None and used.key is not None:
                self._requests.forget(used.key)
        return task

    async def _delete(self, sandbox: Sandbox) -> SandboxError | None:
        """Delete it. What went wrong is returned, since not everybody who ends a sandbox waits for that."""
        failure: SandboxError | None = None
        try:
            for attempt in range(ATTEMPTS):
                await asyncio.sleep(PAUSE_S * 2**attempt if failure else 0)
                try:
                    await sandbox.delete()
                    return None
                except SandboxError as error:
                    failure = error
            logger.warning("sandbox %s could not be deleted: %s", sandbox.id, failure)
            self._undeleted.add(sandbox)
            self._counts["undeleted"] += 1
            return failure
        finally:
            del self._ending[sandbox]
            self._pump()

    async def _close(self) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for waiter in self._waiting():
            waiter.given.set_exception(_closed())
        self._waiters.clear()
        for task in self._starting:
            task.cancel()
        idle = [sandbox for kind in self._kinds.values() for sandbox, _ in kind.idle]
        self._kinds.clear()
        for sandbox in [*self._held, *idle, *self._undeleted]:
            self._end(sandbox)
        if going := [*self._ending.values(), *self._starting, *self._requests.tasks()]:
            await asyncio.wait(going)
        await self.provider.close()


def _closed() -> SandboxError:
    return SandboxError("the pool of sandboxes is closed", hint="Ask while its `async with` block is open.")


def _now() -> float:
    return asyncio.get_running_loop().time()
