"""Workers of one environment: started, kept alive, given groups, and started again when they die.

`play` has the signature of `Engine.play`, and the records are those that the engine would make. The pool adds what
processes need: a rollout whose worker died is played again if it was not sealed, a worker that hangs is ended, one
that dies is started again a bounded number of times, and a task that kills its workers fails alone.

    pool = WorkerPool(lambda number: ProcessLink(load, number=number), workers=2)
    facts = await pool.start()
    rows = await pool.rows()
    await pool.play(rows, plan_rollouts(rows, 4), on_sealed)
    await pool.close()
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from verifiers.clients.cache import CacheCounts
from verifiers.errors import Error, InfraError, ProtocolError, WorkerDiedError, as_error
from verifiers.loops import shielded
from verifiers.rollouts.engine import OnSealed
from verifiers.rollouts.plan import PlannedRollout, Rows
from verifiers.rollouts.workers.dispatch import Group, Queue
from verifiers.rollouts.workers.job import Job, all_broken, killed_by_task, shown, too_long, with_last_words
from verifiers.rollouts.workers.link import Link
from verifiers.rollouts.workers.messages import (
    Cancel,
    Counts,
    Done,
    Failed,
    FromWorker,
    Generated,
    GetRows,
    LogLevel,
    Note,
    Ping,
    Play,
    Pong,
    RowChunk,
    Sealed,
    error_from_dict,
)
from verifiers.rollouts.workers.rows import CarriedRows, line_of
from verifiers.rollouts.workers.slots import Request, Slot
from verifiers.scopes import Limit, Scope
from verifiers.types import RolloutOutput

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """How workers are kept. Times are seconds.

    max_concurrent: rollouts that generate in all workers together; below 1 there is no limit. As many again may be
        scored, or wait for their group.
    ping: how often a sign of life is asked for. hang: a worker that gives none, or whose event loop has been blocked
        while it had work, for this long is ended; time that this process did not get itself does not count.
    request: how long a group may take, None is as long as it takes; `grace` is then given for its cleanup.
    restarts: starts in a row without a finished rollout until a worker is given up. backoff: before the second start;
        doubled for each further one, up to longest_backoff.
    stop: how long workers may take to clean up at the end.
    lasting: whether a play that fails or is cancelled ends alone, for callers with several plays at once.
    run_limit: what all rollouts may spend; looked at when one is sealed, so those in flight are played to their end.
    """

    max_concurrent: int = -1
    ping: float = 2.0
    hang: float = 300.0
    request: float | None = None
    grace: float = 60.0
    restarts: int = 4
    backoff: float = 0.5
    longest_backoff: float = 30.0
    stop: float = 120.0
    lasting: bool = False
    run_limit: Limit | None = None


class WorkerPool:
    """Workers of one environment. `connect(number)` makes a new link for the place of that number, from 1."""

    def __init__(
        self,
        connect: Callable[[int], Link],
        workers: int = 1,
        options: PoolOptions | None = None,
        on_log: Callable[[str], None] | None = None,
    ) -> None:
        self.options = options or PoolOptions()
        self.facts: Mapping[str, Any] = {}
        self.run = Scope(self.options.run_limit)
        self.retried: Counter[str] = Counter()
        """Requests that the workers' clients tried again, by reason. Live."""
        self.cache = CacheCounts()
        """What the workers' caches answered. Live."""
        self._connect = connect
        self._slots = [Slot(number) for number in range(1, workers + 1)]
        self._limit = self.options.max_concurrent
        self._on_log = on_log
        self._numbers = itertools.count(1)
        self._loaded: asyncio.Future[None] | None = None
        self._rows: dict[int, tuple[CarriedRows, asyncio.Future[None]]] = {}
        self._jobs: list[Job] = []
        self._closing = False

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> Mapping[str, Any]:
        """Start the first worker. Returns the facts of the environment; raises what its loading ended with."""
        self._loaded = asyncio.get_running_loop().create_future()
        self._start(self._slots[0])
        try:
            await asyncio.shield(self._loaded)
        except BaseException:
            await shielded(self.close())
            raise
        return self.facts

    async def rows(self) -> CarriedRows:
        """The evaluation rows that the workers were told to choose. Asks one worker; the others never load them."""
        slot = self._slots[0]
        while True:
            number, rows = next(self._numbers), CarriedRows()
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if slot.broken is not None:
                raise slot.broken
            if slot.ready and slot.link is not None:
                self._rows[number] = (rows, done)
                await slot.link.send(GetRows(number))
                try:
                    await done
                    return rows
                except WorkerDiedError:
                    logger.warning("worker %d died while it made the data set", slot.number)
                finally:
                    del self._rows[number]
            await asyncio.sleep(0.05)

    def _start(self, slot: Slot) -> None:
        if slot.keeper is None:
            slot.keeper = asyncio.create_task(self._keep(slot))

    async def close(self) -> None:
        """Let every worker clean up and end, within `options.stop` seconds. Closing twice is fine."""
        self._closing = True
        # One that is still loading has nothing to clean up.
        ends = [
            slot.link.stop(self.options.stop if slot.ready else 0) for slot in self._slots if slot.link is not None
        ]
        await asyncio.gather(*ends, return_exceptions=True)
        keepers = [slot.keeper for slot in self._slots if slot.keeper is not None]
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)

    # --- playing ----------------------------------------------------------------------------------------------

    async def play(self, rows: Rows, plan: Sequence[PlannedRollout], on_sealed: OnSealed) -> str | None:
        """Play the planned rollouts of `rows`. Raises what ended the run, if something did.

        Returns None, or what the run's limit was of if that kept rollouts from being started, as `Engine.play` does.
        The first error and a cancellation end the pool: workers clean up and are gone when this returns. In a pool that
        is `lasting` they end this play alone, and several may be under way; each takes its turn at free places.
        """
        if not plan:
            return None
        if self._closing:
            raise InfraError("the pool of workers has been closed", hint="Make a new one.")
        job = Job(rows, Queue.of(plan, joins=bool(self.facts.get("joins"))), len(plan), on_sealed)
        self._jobs.append(job)
        level = logging.getLogger("verifiers").getEffectiveLevel()
        try:
            for slot in self._slots:
                self._start(slot)
                if slot.ready and slot.link is not None:
                    await slot.link.send(LogLevel(level))
            self._check_slots(job)
            await self._dispatch()
            await asyncio.shield(job.ended)
        except BaseException:
            # Until the workers are gone, what they seal is still saved.
            await shielded(self._withdraw(job) if self.options.lasting else self.close())
            raise
        finally:
            self._jobs.remove(job)
        return job.stopped_by

    async def _withdraw(self, job: Job) -> None:
        """End what is in flight of a play, with its cleanup. Workers that do not stop when told to are ended."""
        job.fail(InfraError("the play was withdrawn"))
        job.queue.clear()
        for number in list(job.requests):
            await self._tell_to_end(number, "cancelled")
        try:
            async with asyncio.timeout(self.options.stop):
                await job.idle()
        except TimeoutError:
            for slot in self._slots:
                if slot.link is not None and job.requests & set(slot.requests):
                    slot.ended_because = f"a group did not stop within {self.options.stop:g} s when told to"
                    await slot.link.kill()

    async def limit_to(self, rollouts: int) -> None:
        """Change how many rollouts are in flight. What is too much is cancelled, youngest first, and played later."""
        self._limit = rollouts
        surplus = sum(slot.generating for slot in self._slots) - rollouts if rollouts > 0 else 0
        for request in self._youngest():
            # One that only waits for its score is spared.
            if surplus > 0 and request.generating and await self._tell_to_end(request.number, "overload"):
                surplus -= len(request.generating)
        await self._dispatch()

    def requests(self) -> list[int]:
        """The numbers of the requests in flight, the youngest first."""
        return [request.number for request in self._youngest()]

    def _youngest(self) -> list[Request]:
        found = [request for slot in self._slots for request in slot.requests.values() if request.unsealed]
        return sorted(found, key=lambda one: one.number, reverse=True)

    async def cancel(self, number: int) -> bool:
        """Stop a request, with its cleanup. Its rollouts get no record. False if it is not in flight."""
        return await self._tell_to_end(number, "cancelled")

    async def _tell_to_end(self, number: int, why: str) -> bool:
        """Tell a worker to stop a request. False if it is not there or has been told."""
        for slot in self._slots:
            request = slot.requests.get(number)
            if request is not None and request.ended is None and slot.link is not None:
                request.ended = why
                await slot.link.send(Cancel(number))
                return True
        return False

    # --- handing out ------------------------------------------------------------------------------------------

    async def _dispatch(self) -> None:
        """Fill the free places of the workers, the least busy first."""
        while jobs := [job for job in self._jobs if not job.ended.done()]:
            living = [slot for slot in self._slots if slot.broken is None]
            places = self._limit if self._limit > 0 else max(sum(job.owed for job in jobs), 1)
            free = min(
                places - sum(slot.generating for slot in living), 2 * places - sum(slot.unsealed for slot in living)
            )
            share = -(-places // max(len(living), 1))
            ready = [slot for slot in living if slot.ready and not slot.alone]
            for slot in sorted(ready, key=lambda one: one.generating):
                if await self._hand_out(jobs, slot, min(free, share - slot.generating)):
                    break
            else:
                return

    async def _hand_out(self, jobs: list[Job], slot: Slot, room: int) -> bool:
        """Hand a worker what fits it, of the play that has waited longest. False if nothing does."""
        for job in jobs:
            group = job.queue.take(room, idle=not slot.requests)
            if group is not None:
                await self._hand_over(job, slot, group)
                return True
        return False

    async def _hand_over(self, job: Job, slot: Slot, group: Group) -> None:
        number = next(self._numbers)
        owed = {one.rollout_id: one for one in group.rollouts}
        slot.requests[number] = Request(number, job, group, owed, set(owed))
        job.requests.add(number)
        slot.alone = group.is_suspect
        try:
            lines = {planned.position: line_of(job.rows, planned.position) for planned in group.rollouts}
            rows = {str(position): orjson.Fragment(line) for position, line in lines.items() if line is not None}
            if slot.link is not None:
                await slot.link.send(Play(number, group.rollouts, rows))
        except Error as error:  # rows that can not be sent are no fault of the worker
            job.fail(error)

    # --- one worker after the other ---------------------------------------------------------------------------

    async def _keep(self, slot: Slot) -> None:
        """Keep a worker in this place until the pool is closed or it is given up."""
        while not self._closing:
            try:
                await self._serve(slot)
            except Exception as error:  # boundary: a fault of ours must not leave a run waiting for ever
                await self._bury(slot, as_error(error, InfraError, "the pool of workers"))
                if slot.broken is not None:
                    return
                delay = min(self.options.longest_backoff, self.options.backoff * 2 ** (slot.fruitless - 1))
                await asyncio.sleep(delay)

    async def _serve(self, slot: Slot) -> None:
        """Start a worker and listen to it until it ends, which is always an error."""
        slot.link = link = self._connect(slot.number)
        slot.silent = slot.blocked = 0.0
        slot.ended_because = ""
        began = time.monotonic()
        ready = await link.start()
        logger.info("%s is ready after %.1f s", link.name, time.monotonic() - began)
        self.facts = self.facts or ready.facts
        slot.ready = True
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(None)
        await link.send(LogLevel(logging.getLogger("verifiers").getEffectiveLevel()))
        watcher = asyncio.create_task(self._watch(slot, link))
        try:
            await self._dispatch()
            async for message in link.messages():
                slot.silent = 0.0
                await self._take(slot, message)
        finally:
            watcher.cancel()

    async def _take(self, slot: Slot, message: FromWorker) -> None:
        match message:
            case Generated():
                if message.request in slot.requests:
                    slot.requests[message.request].generating.discard(message.rollout_id)
                    await self._dispatch()
            case Sealed():
                self._seal(slot, message)
                await self._dispatch()
            case Done() | Failed(request=int()):
                await self._finish(slot, message)
            case RowChunk() if message.request in self._rows:
                rows, done = self._rows[message.request]
                rows.extend(message.rows, message.exact)
                if message.last and not done.done():
                    done.set_result(None)
            case Counts():
                self.retried.update(message.retried)
                self.cache.add(message.cache or {})
            case Pong():
                slot.blocked = message.blocked if message.tasks else 0.0
            case Note():
                if self._on_log is not None:
                    self._on_log(message.text)
            case Failed():
                raise error_from_dict(message.error)
            case _:
                raise ProtocolError(f"a worker sent {type(message).__name__}, which answers nothing")

    def _seal(self, slot: Slot, sealed: Sealed) -> None:
        slot.fruitless = 0
        request = slot.requests.get(sealed.request)
        if request is None or sealed.rollout_id not in request.unsealed:
            return
        request.generating.discard(sealed.rollout_id)
        request.held[sealed.rollout_id] = RolloutOutput(sealed.record)
        if request.job.queue.joins and len(request.held) < len(request.unsealed):
            # If the worker dies now, the whole group is played again: a part of it would be compared with itself.
            return
        for rollout_id, record in request.held.items():
            del request.unsealed[rollout_id]
            self._charge(record.get("spent") or {})
            request.job.seal(record)
        request.held.clear()
        if (reached := self.run.reached()) is not None:
            for job in self._jobs:
                job.stop(reached)

    def _charge(self, spent: Mapping[str, Any]) -> None:
        for spending, figures in ((self.run.spent, spent), (self.run.judge, spent.get("judge") or {})):
            spending.calls += figures.get("calls", 0)
            spending.input_tokens += figures.get("input_tokens", 0)
            spending.output_tokens += figures.get("output_tokens", 0)
            spending.cost += figures.get("cost", 0.0)

    async def _finish(self, slot: Slot, message: Done | Failed) -> None:
        assert message.request is not None
        if message.request in self._rows and isinstance(message, Failed):
            _, rows_done = self._rows[message.request]
            if not rows_done.done():
                rows_done.set_exception(error_from_dict(message.error))
            return
        request = slot.requests.pop(message.request, None)
        if request is None:
            return
        request.job.leave(request.number)
        slot.alone = slot.alone and bool(slot.requests)
        if isinstance(message, Failed):
            request.job.fail(error_from_dict(message.error))
        elif request.unsealed:
            self._left_over(request)
        await self._dispatch()

    def _left_over(self, request: Request) -> None:
        """A request that ended before all its rollouts were sealed: it was told to, or the pool is closing."""
        if self._closing:
            return
        job, rollouts = request.job, list(request.unsealed.values())
        if request.ended == "overload":
            job.queue.put_back(Group(rollouts, request.group.deaths))
        elif request.ended == "deadline":
            job.give_up(rollouts, too_long(self.options.request or 0))
        elif request.ended == "cancelled":
            job.forget(len(rollouts))
        else:
            job.fail(ProtocolError(f"a worker ended a group with {len(rollouts)} rollouts left"))

    # --- deaths -----------------------------------------------------------------------------------------------

    async def _bury(self, slot: Slot, error: Error) -> None:
        """A worker is gone, or never came up: put back what it played, and decide whether to start another."""
        link, slot.link, slot.ready, slot.alone = slot.link, None, False, False
        requests, slot.requests = list(slot.requests.values()), {}
        if link is not None:
            await link.kill()
        if self._closing:
            return
        if slot.ended_because:
            error = WorkerDiedError(f"{slot.ended_because}: {error}", said=getattr(error, "said", ""), cause=error)
        slot.fruitless += 1
        for _, done in self._rows.values():
            if not done.done():
                done.set_exception(WorkerDiedError(str(error)))
        overdue = any(request.ended == "deadline" for request in requests)
        for request in requests:
            self._put_back(slot, request, error, blame=not overdue)
        # What the environment's own loading ends with would end every further one.
        first = self._loaded is not None and not self._loaded.done()
        loading_failed = first and not isinstance(error, InfraError)
        # One that never came up is tried once more; that it will come up is less likely than with one that did.
        allowed = min(1, self.options.restarts) if first else self.options.restarts
        if loading_failed or slot.fruitless > allowed:
            self._give_up(slot, error)
        else:
            logger.warning("%s; starting another", with_last_words(error))
        await self._dispatch()

    def _put_back(self, slot: Slot, request: Request, error: Error, *, blame: bool) -> None:
        job, rollouts = request.job, list(request.unsealed.values())
        job.leave(request.number)
        if not rollouts:
            return
        if request.ended in ("deadline", "cancelled"):
            self._left_over(request)
            return
        group = Group(rollouts, request.group.deaths + blame)
        if group.is_poison:
            slot.fruitless = 0  # it was the task
            job.give_up(rollouts, killed_by_task(group.deaths, error))
        else:
            job.queue.put_back(group)

    def _give_up(self, slot: Slot, error: Error) -> None:
        slot.broken = error
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_exception(shown(error))
            return
        logger.warning("worker %d is given up: %s", slot.number, with_last_words(error))
        for job in self._jobs:
            self._check_slots(job)

    def _check_slots(self, job: Job) -> None:
        """Nothing is played where every worker has been given up."""
        errors = [slot.broken for slot in self._slots if slot.broken is not None]
        if len(errors) == len(self._slots):
            job.fail(all_broken(len(errors), errors[-1]))

    # --- signs of life ----------------------------------------------------------------------------------------

    async def _watch(self, slot: Slot, link: Link) -> None:
        """Ask for signs of life; end a worker that gives none, whose loop stands, or that is over its time."""
        options = self.options
        for number in itertools.count():
            await link.send(Ping(number))
            await asyncio.sleep(options.ping)
            # A count of pings, not of seconds: time that this process did not get does not count.
            slot.silent += options.ping
            if slot.silent > max(options.hang, 2 * options.ping):
                slot.ended_because = f"it gave no sign of life for {slot.silent:.0f} s"
            elif slot.blocked > options.hang:
                slot.ended_because = f"its event loop was blocked for {slot.blocked:.0f} s (its log shows by what)"
            elif options.request is not None and await self._over_time(slot):
                slot.ended_because = f"a group took {options.request:g} s, and did not stop when told to"
            if slot.ended_because:
                await link.kill()
                return

    async def _over_time(self, slot: Slot) -> bool:
        """Tell requests that are over their time to stop. Whether one of them did not."""
        assert self.options.request is not None
        now = time.monotonic()
        for request in list(slot.requests.values()):
            over = now - request.began - self.options.request
            if over > self.options.grace and request.ended == "deadline":
                return True
            if over > 0:
                await self._tell_to_end(request.number, "deadline")
        return False
