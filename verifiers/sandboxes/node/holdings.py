"""Which sandboxes a node holds, and for whom: those that nobody claims any longer end.

A sandbox belongs to owners, clients that made it or asked for it by its id. An owner is alive while it is heard of; one
that is silent for the lease, or leaves, takes along the sandboxes that nobody else holds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from verifiers.errors import Error, SandboxDiedError
from verifiers.sandboxes.node.once import Once
from verifiers.sandboxes.results import SandboxInfo
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import SandboxSpec

logger = logging.getLogger(__name__)

REMEMBERED = 10_000
"""So many ends of sandboxes are kept, to tell why one is gone."""


@dataclass
class Held:
    """A sandbox, and the owners that hold it."""

    sandbox: Sandbox
    owners: set[str] = field(default_factory=set)


class Holdings:
    """The sandboxes of one node. `keep_order` runs beside its requests."""

    def __init__(self, provider: Provider, once: Once, counts: Counter[str], *, lease: float) -> None:
        self.lease = lease
        self._provider = provider
        self._once = once
        self._counts = counts
        self._held: dict[str, Held] = {}
        self._ended: dict[str, str] = {}
        self._seen: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._held

    @property
    def owners(self) -> int:
        """Owners that are alive."""
        return len(self._seen)

    def heard(self, owner: str) -> None:
        """This owner lives."""
        self._seen[owner] = time.monotonic()

    def hold(self, sandbox: Sandbox, owner: str) -> None:
        """The owner holds this sandbox from now on."""
        self._held.setdefault(sandbox.id, Held(sandbox)).owners.add(owner)
        if owner:
            self.heard(owner)

    def sandbox(self, sandbox_id: str) -> Sandbox:
        """A sandbox by its id. SandboxDiedError, with why it ended if that is known."""
        held = self._held.get(sandbox_id)
        if held is None:
            why = self._ended.get(sandbox_id, "the node has none of that name")
            raise SandboxDiedError(f"sandbox {sandbox_id} is gone: {why}")
        return held.sandbox

    async def claim(self, sandbox: Sandbox, spec: SandboxSpec) -> Sandbox:
        """Hand an idle sandbox to a rollout of the same owners. SandboxDiedError if it was deleted meanwhile."""
        claimed = await self._provider.claim(sandbox, spec)
        if (before := self._held.pop(sandbox.id, None)) is None:
            await claimed.delete()  # nobody holds it, so nobody else would
            return self.sandbox(sandbox.id)  # raises, and says why
        self._held[claimed.id] = Held(claimed, before.owners)
        return claimed

    async def found(self, labels: Mapping[str, str], owner: str | None) -> list[SandboxInfo]:
        """Those that have all these labels, of this owner; None: of all."""
        infos = await self._provider.list(labels)
        held = self._held
        return [info for info in infos if info.id in held and (owner is None or owner in held[info.id].owners)]

    async def delete(self, sandbox_id: str, why: str) -> None:
        """Delete it; one that is not here is fine."""
        held = self._held.pop(sandbox_id, None)
        if held is None:
            return
        self._note(sandbox_id, why)
        try:
            await held.sandbox.delete()
        except Error as error:
            self._counts["undeleted"] += 1
            logger.warning("sandbox %s could not be deleted: %s", sandbox_id, error)

    async def delete_all(self, why: str) -> None:
        """Delete every sandbox."""
        await asyncio.gather(*(self.delete(sandbox_id, why) for sandbox_id in list(self._held)))

    async def end(self, owner: str, why: str) -> None:
        """End what this owner has begun, and the sandboxes that nobody else holds."""
        self._seen.pop(owner, None)
        await self._once.cancel_all(owner)
        mine = [sandbox_id for sandbox_id, held in self._held.items() if owner in held.owners]
        for sandbox_id in mine:
            self._held[sandbox_id].owners.discard(owner)
        lone = [sandbox_id for sandbox_id in mine if not self._held[sandbox_id].owners]
        await asyncio.gather(*(self.delete(sandbox_id, why) for sandbox_id in lone))

    async def look(self) -> None:
        """Take what ended by itself off the list: a lifetime that is over, a sandbox that died."""
        known = set(self._held)
        if known:
            there = {info.id for info in await self._provider.list()}
            for sandbox_id in known - there:
                if self._held.pop(sandbox_id, None) is not None:
                    self._note(sandbox_id, "it died, or its lifetime is over")

    async def keep_order(self) -> None:
        """Every moment: end the sandboxes of owners that are silent, forget what has ended."""
        pause = min(1.0, self.lease / 8)
        looked = time.monotonic()
        while True:
            await asyncio.sleep(pause)
            now = time.monotonic()
            if now - looked > pause + self.lease / 4:  # this process stood still: nobody can have been heard
                self._seen = {owner: seen + now - looked for owner, seen in self._seen.items()}
            looked = now
            with suppress(Error):
                await self.look()
            self._once.prune()
            for owner in [owner for owner, seen in self._seen.items() if now - seen > self.lease]:
                self._counts["lease_expired"] += 1
                logger.warning("an owner was not heard of for %g seconds: its sandboxes end", self.lease)
                await self.end(owner, f"its owner was not heard of for {self.lease:g} seconds")

    def _note(self, sandbox_id: str, why: str) -> None:
        self._ended[sandbox_id] = why
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]
