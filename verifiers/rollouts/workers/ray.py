"""A link to a worker on some machine of a Ray cluster, through an actor that relays (`relay.Relay`).

Ray finds the machine, carries the bytes, and tells when the actor or its machine is gone. It tries nothing again by
itself: the pool is the one place that does. `cluster.connected` makes the connection that links share.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from verifiers.envs.provenance import package_version
from verifiers.errors import ClusterError, Error, WorkerDiedError
from verifiers.loops import shielded
from verifiers.rollouts.workers.link import check_hello, check_ready
from verifiers.rollouts.workers.messages import (
    FromWorker,
    Hello,
    Ready,
    ToWorker,
    decode,
    encode,
    error_from_dict,
)
from verifiers.rollouts.workers.process import LOAD_SECONDS, is_told

if TYPE_CHECKING:
    from verifiers.rollouts.workers.cluster import RayCluster

logger = logging.getLogger(__name__)

TELL_WAITING_SECONDS = 15.0
"""A worker that waits longer for a place says so."""

END_SECONDS = 5.0
"""How long a worker may take to be ended before its actor is."""

_NODE_HINT = (
    "Every machine needs the same verifiers, Ray and Python, or a runtime_env (ray_options) that brings them."
)


class RayLink:
    """One worker behind one actor. See `link.Link`."""

    def __init__(self, cluster: RayCluster, number: int) -> None:
        self.number = number
        self.host = ""
        self._cluster = cluster
        self._errors = cluster.ray.exceptions
        self._actor: Any = None
        self._outgoing: deque[bytes] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._arrived: asyncio.Queue[FromWorker | Error] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None
        self._ended = False

    @property
    def name(self) -> str:
        """`worker 1 (Ray, on HOST)`."""
        return f"worker {self.number} (Ray{f', on {self.host}' if self.host else ''})"

    # --- start ------------------------------------------------------------------------------------------------

    async def start(self) -> Ready:
        """Have Ray find a machine, start the worker there, let it load. See `link.Link.start`."""
        try:
            where = await self._placed()
            self.host = where["host"]
            check_hello(Hello(where["protocol"], where["version"]), package_version())
            self._reading = asyncio.create_task(self._read())
            load = encode(self._cluster.load)
            answer = await self._ask(
                self._actor.start.remote(load, dict(self._cluster.environ), LOAD_SECONDS)
            )
            if answer is None:
                raise await self._why()
            return check_ready(decode(answer))
        except BaseException:
            await shielded(self.kill())
            raise

    async def _why(self) -> Error:
        """What ended a worker that did not load."""
        message = await self._arrived.get()
        assert isinstance(message, Error), "a worker speaks only after it has loaded"
        return message

    async def _placed(self) -> dict[str, Any]:
        """Wait for a machine. One that dies while Ray still counts on it costs no start of the worker."""
        told = asyncio.get_running_loop().call_later(
            TELL_WAITING_SECONDS, logger.warning, "%s waits for a place on the cluster", self.name
        )
        try:
            async with asyncio.timeout(self._cluster.place_seconds):
                while True:
                    self._actor = await self._cluster.new_actor(self.number)
                    try:
                        return cast(dict[str, Any], await self._actor.place.remote())
                    except self._errors.ActorDiedError as error:
                        if error.actor_init_failed:
                            raise
                        logger.info("%s lost its place before it began: %s", self.name, error)
                        await asyncio.sleep(1)
        except TimeoutError as error:
            wanted = ", ".join(f"{name}={value}" for name, value in self._cluster.options.per_worker.items())
            raise ClusterError(
                f"the cluster had no place for {self.name} within {self._cluster.place_seconds:.0f} s: it needs "
                f"{wanted}; {await self._cluster.room()}",
                hint="Ask for fewer workers (-w), or less for each (ray_options). If there is room, its runtime_env "
                "can not be set up: see Ray's logs on its machines.",
            ) from error
        except self._errors.RayError as error:
            raise ClusterError(
                f"{self.name} can not be started: {_last_line(error)}", hint=_NODE_HINT
            ) from error
        finally:
            told.cancel()

    async def _ask(self, answer: Any) -> Any:
        """What a call of the actor answers; WorkerDiedError if there is none."""
        try:
            return await answer
        except self._errors.RayError as error:
            raise WorkerDiedError(
                f"{self.name} is gone: {type(error).__name__}", said=str(error), cause=error
            ) from error

    def _end_of(self, told: Mapping[str, Any]) -> Error:
        """The error that a worker ended with, as it was raised there."""
        error = error_from_dict(told)
        if isinstance(error, WorkerDiedError):
            return WorkerDiedError(f"{self.name}: {error}", said=str(told.get("said") or ""))
        return error

    # --- messages ---------------------------------------------------------------------------------------------

    async def send(self, message: ToWorker) -> None:
        """Hand a message over. See `link.Link.send`."""
        self._outgoing.append(encode(message))
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_all())

    async def _send_all(self) -> None:
        """Messages that come while a call is under way travel together in the next."""
        with contextlib.suppress(WorkerDiedError):  # which `messages` tells
            while self._outgoing and not self._ended:
                batch = list(self._outgoing)
                self._outgoing.clear()
                await self._ask(self._actor.send.remote(batch))

    async def _read(self) -> None:
        """Fetch what the worker sends as it comes, also when nobody asks: its last words are not to be lost."""
        try:
            death = None
            while death is None:
                batch, death = await self._ask(self._actor.receive.remote())
                for data in batch:
                    message = decode(data)
                    if not is_told(message):
                        self._arrived.put_nowait(cast(FromWorker, message))
            self._arrived.put_nowait(self._end_of(death))
        except Error as error:
            self._arrived.put_nowait(error)

    async def messages(self) -> AsyncIterator[FromWorker]:
        """What the worker sends. See `link.Link.messages`."""
        while True:
            message = await self._arrived.get()
            if isinstance(message, Error):
                raise message
            yield message

    # --- end --------------------------------------------------------------------------------------------------

    async def stop(self, seconds: float) -> None:
        """Ask for the end, wait, then kill. See `link.Link.stop`."""
        if self._actor is not None and not self._ended:
            with contextlib.suppress(WorkerDiedError, TimeoutError):
                async with asyncio.timeout(seconds + END_SECONDS):
                    if self._sending is not None:
                        await self._sending
                    await self._ask(self._actor.stop.remote(seconds))
                    if self._reading is not None:
                        await self._reading
        await self.kill()

    async def kill(self) -> None:
        """End the worker, then its actor. See `link.Link.kill`."""
        if self._actor is None or self._ended:
            return
        self._ended = True
        if self.host:  # else it has no worker yet
            with contextlib.suppress(WorkerDiedError, TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await self._ask(self._actor.kill.remote())
        await self._cluster.end_actor(self._actor)


def _last_line(error: BaseException) -> str:
    """Of the traceback in Ray's text."""
    return (str(error).strip() or type(error).__name__).splitlines()[-1]
