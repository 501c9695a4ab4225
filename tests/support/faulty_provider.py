"""A provider of sandboxes that exist only in a ledger and go wrong as a seed says: for the pool, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping

from verifiers.errors import (
    SandboxBusyError,
    SandboxCreationError,
    SandboxUnreachableError,
)
from verifiers.sandboxes.results import Capabilities, SandboxInfo
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import SandboxSpec


class LedgerSandbox(Sandbox):
    """Nothing can be done in it but asking whether it is alive."""

    isolation = "none"
    run = start = attach = read = write = stat = list = mkdir = remove = upload = download = usage = None

    def __init__(self, provider: FaultyProvider, spec: SandboxSpec) -> None:
        self.provider, self.spec, self.id = provider, spec, f"s{next(provider.numbers)}"
        self.uses = 0
        self.ping = "ok"
        self.deletions_to_fail = 0

    async def alive(self) -> bool:
        await asyncio.sleep(self.provider.takes())
        if self.ping == "hangs":
            await asyncio.sleep(10_000)
        if self.ping == "unreachable":
            raise SandboxUnreachableError("nothing answers")
        return self.ping == "ok"

    async def delete(self) -> None:
        await asyncio.shield(asyncio.ensure_future(self._delete()))

    async def _delete(self) -> None:
        await asyncio.sleep(self.provider.takes())
        if self.deletions_to_fail > 0:
            self.deletions_to_fail -= 1
            raise SandboxUnreachableError("the deletion was lost")
        self.provider.there.pop(self.id, None)


LedgerSandbox.__abstractmethods__ = frozenset()


class FaultyProvider(Provider):
    """`faults`: how likely each kind of failure is. The ledger: `there`, and the most that were there or started."""

    name = "faulty"

    def __init__(self, seed: int = 0, **faults: float) -> None:
        self.random, self.faults = random.Random(seed), faults
        self.numbers = iter(range(1_000_000))
        self.there: dict[str, LedgerSandbox] = {}
        self.starting = self.most_starting = self.most_alive = self.creations = 0
        self.seen: Counter[str] = Counter()
        self.closed = False

    def takes(self) -> float:
        return self.random.uniform(0.001, 0.05)

    def fails(self, kind: str) -> bool:
        hit = self.random.random() < self.faults.get(kind, 0)
        self.seen[kind] += hit
        return hit

    async def capabilities(self) -> Capabilities:
        return Capabilities(isolation="none")

    async def create(self, spec: SandboxSpec) -> Sandbox:
        assert not self.closed
        self.creations += 1
        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        self.most_alive = max(self.most_alive, len(self.there) + self.starting)
        try:
            if self.fails("slow"):
                await asyncio.sleep(10_000)
            try:
                await asyncio.sleep(self.takes())
            except asyncio.CancelledError:
                if not self.fails("stubborn"):  # else it comes all the same
                    raise
            if self.fails("busy"):
                raise SandboxBusyError("no room", retry_after=0.5)
            if self.fails("refused"):
                raise SandboxCreationError("it could not be made")
            if self.fails("bug"):
                raise RuntimeError("a mistake of the provider")
            sandbox = LedgerSandbox(self, spec)
            self.there[sandbox.id] = sandbox
        finally:
            self.starting -= 1
        sandbox.deletions_to_fail = self.fails("undeleted") * 2
        if self.fails("dies"):
            outcome = self.random.choice(["dead", "hangs", "unreachable"])
            asyncio.get_running_loop().call_later(self.takes() * 20, setattr, sandbox, "ping", outcome)
        return sandbox

    async def get(self, sandbox_id: str) -> Sandbox:
        return self.there[sandbox_id]

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        return [
            SandboxInfo(id=one.id, labels=dict(one.spec.labels), image=one.spec.image, isolation="none", age=0.0)
            for one in self.there.values()
            if dict(labels or {}).items() <= dict(one.spec.labels).items()
        ]

    async def reap_orphans(self) -> int:
        return 0

    async def close(self) -> None:
        assert not self.starting
        self.closed = True
