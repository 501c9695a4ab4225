"""`NodesProvider`: the sandboxes of many nodes as one provider.

    async with NodesProvider(["http://10.0.0.1:8475", "http://10.0.0.2:8475"], token) as provider:
        sandbox = await provider.create(SandboxSpec())

A sandbox is made where there is most room, as the nodes themselves tell, and stays there: its commands go straight to
its node. An image other than the host's prefers the nodes that had it before. A node that is busy, drained or silent is
passed over; one that dies ends its own sandboxes, by an error that names it, and nobody else's. An address whose host
name has several numbers is as many nodes, looked up again and again: a headless service is one entry.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar
from urllib.parse import urlsplit

from verifiers.errors import (
    ConfigError,
    Error,
    SandboxBusyError,
    SandboxDiedError,
    SandboxError,
    SandboxSettingsError,
    SandboxUnreachableError,
    SandboxUnsupportedError,
)
from verifiers.sandboxes.node.client import NodeProvider, NodeSandbox
from verifiers.sandboxes.node.link import PATIENCE, Patience
from verifiers.sandboxes.results import Capabilities, SandboxInfo
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import ISOLATION_LEVELS, SandboxSpec

T = TypeVar("T")

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""Seconds between two looks at how the nodes are."""
CROWDED = 0.9
"""With more of its room taken a node is no longer preferred for its images."""


@dataclass(eq=False)
class Node:
    """One node as it was last seen. why: it is passed over, and that is why; "" otherwise."""

    url: str
    provider: NodeProvider
    why: str = "not asked yet"
    refusal: Error | None = None
    """It answers, and does not let us in."""
    taken: int = 0
    capacity: int = 1
    asked: int = 0
    """Sandboxes that were asked for since it was last seen, or are being made."""
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def load(self) -> float:
        """The part of its room that is taken."""
        return (self.taken + self.asked) / max(1, self.capacity)


class NodesProvider(Provider):
    """Sandboxes of nodes. addresses: as `NodeProvider` takes them. look_s: seconds between two looks at the nodes."""

    name = "nodes"

    def __init__(
        self,
        addresses: Sequence[str],
        token: str | None = None,
        *,
        patience: Patience = PATIENCE,
        look_s: float = LOOK_S,
    ) -> None:
        if isinstance(addresses, str) or not addresses:
            raise ConfigError(f"these are no addresses of nodes: {addresses!r}", hint="A list of http://HOST:PORT.")
        self._addresses = list(dict.fromkeys(address.rstrip("/") for address in addresses))
        self._token = token
        self._patience = patience
        self._look_s = look_s
        self._nodes: dict[str, Node] = {}
        self._of_key: dict[str, Node] = {}
        self._answered = False
        self._looking: asyncio.Task[None] | None = None
        self._looked: asyncio.Task[None] | None = None
        self._left: set[asyncio.Task[Sandbox]] = set()

    def nodes(self) -> list[Node]:
        """The nodes as they were last seen."""
        return list(self._nodes.values())

    # --- the provider -----------------------------------------------------------------------------------------------

    async def capabilities(self) -> Capabilities:
        """What every node that answers can do."""
        found = [one for one in await self._ask_all(lambda node: node.provider.capabilities()) if one is not None]
        if not found:
            raise self._nobody()
        weakest = min((one.isolation for one in found), key=ISOLATION_LEVELS.index)
        return replace(
            found[0],
            isolation=weakest,
            limits=frozenset.intersection(*(one.limits for one in found)),
            weak={name: how for one in found for name, how in one.weak.items()},
            network=frozenset.intersection(*(one.network for one in found)),
            images=all(one.images for one in found),
            mounts=all(one.mounts for one in found),
            attach=all(one.attach for one in found),
        )

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """On the node with most room. Raises SandboxBusyError if none has any, else what the last one said."""
        await self._begin()
        refused: list[SandboxError] = []
        for node in self._candidates(spec):
            try:
                sandbox = await self._create_at(node, spec)
            except (SandboxBusyError, SandboxUnsupportedError) as error:
                refused.append(error)
            except (SandboxUnreachableError, SandboxDiedError) as error:
                self._lose(node, error)
                refused.append(error)
            else:
                if spec.idempotency_key is not None:
                    self._of_key[spec.idempotency_key] = node
                return sandbox
        raise self._verdict(refused)

    async def claim(self, sandbox: Sandbox, spec: SandboxSpec) -> Sandbox:
        if not isinstance(sandbox, NodeSandbox) or sandbox.link.node not in self._nodes:
            raise KeyError(f"sandbox {sandbox.id} is of no node of this provider")
        node = self._nodes[sandbox.link.node]
        return await node.provider.claim(sandbox, spec)

    async def get(self, sandbox_id: str) -> Sandbox:
        async def look(node: Node) -> Sandbox | None:
            try:
                return await node.provider.get(sandbox_id)
            except KeyError:
                return None

        for sandbox in await self._ask_all(look):
            if sandbox is not None:
                return sandbox
        silent = [node.url for node in self._nodes.values() if node.why and not node.why.startswith("draining")]
        if silent:
            raise SandboxUnreachableError(f"no node that answers has sandbox {sandbox_id}; silent: {', '.join(silent)}")
        raise KeyError(sandbox_id)

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        """Those of the nodes that answer."""
        found = await self._ask_all(lambda node: node.provider.list(labels))
        return [info for listed in found if listed is not None for info in listed]

    async def delete_many(self, labels: Mapping[str, str]) -> int:
        return sum(count or 0 for count in await self._ask_all(lambda node: node.provider.delete_many(labels)))

    async def reap_orphans(self) -> int:
        """0: nodes sweep by themselves."""
        return 0

    async def close(self) -> None:
        for task in (self._looking, self._looked, *self._left):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*(node.provider.close() for node in self._nodes.values()))

    # --- where ------------------------------------------------------------------------------------------------------

    def _candidates(self, spec: SandboxSpec) -> Sequence[Node]:
        """The nodes to ask, in order."""
        nodes = [node for node in self._nodes.values() if not node.why]
        if key := spec.idempotency_key:  # asked for again, it must be found
            first = self._of_key.get(key)
            return sorted(nodes, key=lambda node: (node is not first, _weight(key, node.url)))
        if spec.image != "host":
            return sorted(nodes, key=lambda node: (node.load > CROWDED, _weight(spec.image, node.url)))
        return sorted(nodes, key=lambda node: (node.load, node.asked))

    async def _create_at(self, node: Node, spec: SandboxSpec) -> Sandbox:
        """As the node's provider does, but given up as soon as the node is known to be lost."""
        node.asked += 1
        creating: asyncio.Task[Sandbox] = asyncio.ensure_future(node.provider.create(spec))
        losing = asyncio.ensure_future(node.lost.wait())
        try:
            await asyncio.wait({creating, losing}, return_when=asyncio.FIRST_COMPLETED)
            if not creating.done():
                raise SandboxUnreachableError(f"node {node.url} was lost: {node.why}")
            return creating.result()
        except Exception:
            node.asked -= 1
            raise
        finally:
            losing.cancel()
            if not creating.done():  # its end takes as long as the node is silent: nobody waits for that
                creating.cancel()
                self._left.add(creating)
                creating.add_done_callback(self._forget)
                if node.why == "":
                    await asyncio.wait({creating})

    def _forget(self, task: asyncio.Task[Sandbox]) -> None:
        self._left.discard(task)
        if not task.cancelled():
            task.exception()

    def _verdict(self, refused: Sequence[SandboxError]) -> Error:
        """Why no node made it: busy if any is, since that passes."""
        busy = [error for error in refused if isinstance(error, SandboxBusyError)]
        if busy:
            times = [error.retry_after for error in busy if error.retry_after is not None]
            return SandboxBusyError(f"no node has room: {busy[-1]}", retry_after=min(times, default=None))
        return refused[-1] if refused else self._nobody()

    def _nobody(self) -> Error:
        refusals = [node.refusal for node in self._nodes.values() if node.refusal is not None]
        if refusals:
            return refusals[0]
        draining = [node.url for node in self._nodes.values() if node.why.startswith("draining")]
        if draining:
            text = f"the nodes that answer are being shut down: {', '.join(draining)}"
            return SandboxBusyError(text, retry_after=5.0)
        told = "; ".join(_named(node) for node in self._nodes.values()) or ", ".join(self._addresses)
        if not self._answered:  # waiting for one that never was there would fail every rollout alike
            hint = "Start a node there (sandboxd --help), or correct its address (VF_SANDBOX_PROVIDER)."
            return SandboxSettingsError(f"no node answers ({told})", hint=hint)
        return SandboxUnreachableError(f"no node answers ({told})")

    # --- how they are -----------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Look once before the first request, and from then on every few seconds."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        await asyncio.shield(self._looking)
        if self._looked is None:
            self._looked = asyncio.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            await self._look()

    async def _look(self) -> None:
        urls = [url for found in await asyncio.gather(*map(_resolved, self._addresses)) for url in found]
        for url in urls:
            if url not in self._nodes:
                self._nodes[url] = Node(url, NodeProvider(url, self._token, patience=self._patience))
        await asyncio.gather(*(self._see(node) for node in self._nodes.values()))

    async def _see(self, node: Node) -> None:
        before = node.asked
        try:
            found = await node.provider.health()
        except Error as error:  # boundary: whatever is wrong with a node, the others go on
            self._lose(node, error)
            return
        if node.why and node.why != "not asked yet":
            logger.info("node %s: %s", node.url, "answers again" if found["status"] == "ok" else found["status"])
        self._answered = True
        node.why = "" if found["status"] == "ok" else str(found["status"])
        node.refusal = None
        node.lost.clear()
        node.taken, node.capacity = found["alive"] + found["starting"], found["capacity"]
        node.asked = max(0, node.asked - before)

    def _lose(self, node: Node, error: Error) -> None:
        if not node.why:
            logger.warning("passed over: %s", _named(node, str(error)))
        node.why = str(error)
        node.refusal = None if isinstance(error, SandboxError) else error
        node.lost.set()

    async def _ask_all(self, ask: Callable[[Node], Awaitable[T]]) -> Sequence[T | None]:
        """What the nodes that answer say."""
        await self._begin()

        async def one(node: Node) -> T | None:
            try:
                return await ask(node)
            except (SandboxUnreachableError, SandboxDiedError) as error:
                self._lose(node, error)
                return None

        there = [node for node in self._nodes.values() if not node.why or node.why.startswith("draining")]
        return await asyncio.gather(*map(one, there))


def _named(node: Node, why: str = "") -> str:
    """What is wrong with a node, with its address once."""
    why = why or node.why
    return why if node.url in why else f"node {node.url}: {why}"


def _weight(word: str, url: str) -> bytes:
    """Rendezvous hashing: each word has an order of nodes of its own, which others do not change by coming or going."""
    return hashlib.blake2b(f"{word}\0{url}".encode(), digest_size=8).digest()


async def _resolved(address: str) -> list[str]:
    """The addresses behind one: several if its host name has several numbers, else itself."""
    parts = urlsplit(address)
    if parts.scheme != "http" or not parts.hostname:  # a certificate is for the name
        return [address]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except OSError as error:
        logger.warning("the nodes of %s are not known: %s", address, error)
        return []
    hosts = sorted({str(address[0]) for _, _, _, _, address in found})
    if len(hosts) < 2:
        return [address]
    return [f"http://{f'[{host}]' if ':' in host else host}:{parts.port or 80}" for host in hosts]


