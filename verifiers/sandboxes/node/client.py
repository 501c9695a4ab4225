"""`NodeProvider`: sandboxes on another machine, or in another process, through its `sandboxd`.

    async with NodeProvider("http://10.0.0.1:8475", token) as provider:
        sandbox = await provider.create(SandboxSpec())
        result = await sandbox.exec("echo hi")

The same interface, results and errors as of the provider that the node runs. The node deletes this provider's sandboxes
when it has not heard of it for its lease (a minute): a provider that is alive tells so by itself.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from verifiers.errors import Error, SandboxDiedError, SandboxError
from verifiers.loops import shielded
from verifiers.sandboxes.host.trees import PIECE, TreeWriter, from_pieces, pieces_of
from verifiers.sandboxes.node.link import FAILURES, PATIENCE, Link, Patience
from verifiers.sandboxes.node.wire import (
    Answer,
    capabilities_of,
    command_record,
    info_of,
    receive,
    result_of,
    spec_record,
)
from verifiers.sandboxes.results import Capabilities, Chunk, ExecResult, FileStat, SandboxInfo, Usage
from verifiers.sandboxes.sandbox import Process, Provider, Sandbox
from verifiers.sandboxes.spec import Command, SandboxSpec

logger = logging.getLogger(__name__)

INPUT = 1 << 20
"""Bytes of input sent to a process at a time."""


class NodeProcess(Process):
    """A process on a node."""

    def __init__(self, sandbox: NodeSandbox, process_id: str) -> None:
        self.id = process_id
        self._sandbox = sandbox
        self._result: ExecResult | None = None
        self._writing = asyncio.Lock()

    async def _ask(self, action: str, blob: bytes | None = None, *, launch: bool = True, **arguments: Any) -> Answer:
        return await self._sandbox.ask(action, {"process": self.id, **arguments}, blob, launch=launch)

    async def write(self, data: bytes) -> None:
        async with self._writing:  # pieces of two writes must not mix
            for start in range(0, len(data), INPUT):
                await self._ask("stdin", data[start : start + INPUT])

    async def close_stdin(self) -> None:
        async with self._writing:
            await self._ask("close_stdin")

    async def signal(self, number: int) -> None:
        await self._ask("signal", number=int(number))

    async def output(self, *, stdout_from: int = 0, stderr_from: int = 0) -> AsyncIterator[Chunk]:
        offsets = {"stdout": stdout_from, "stderr": stderr_from}
        link, broken = self._sandbox.link, 0
        while True:
            query = {f"{name}_from": str(offset) for name, offset in offsets.items()}
            try:
                async with link.stream(f"{self._sandbox.path}/processes/{self.id}/output", query) as stream:
                    while not (answer := link.checked(await receive(stream))).header.get("ended"):
                        broken = 0
                        chunk = Chunk(answer.header["stream"], answer.header["offset"], answer.blobs[0])
                        offsets[chunk.stream] = chunk.offset + len(chunk.data)
                        yield chunk
                    return
            except FAILURES as error:
                broken += 1
                if broken >= link.patience.attempts:
                    raise await link.named(error) from error
                await asyncio.sleep(link.patience.pause * 2**broken)

    async def wait(self) -> ExecResult:
        if self._result is None:
            self._result = result_of(await self._ask("wait", launch=False))
        return self._result

    async def kill(self) -> None:
        await self._ask("kill")


class NodeSandbox(Sandbox):
    """A sandbox on a node."""

    def __init__(self, link: Link, sandbox_id: str, spec: SandboxSpec, isolation: str) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.isolation = isolation
        self.link = link
        self.path = f"/sandboxes/{sandbox_id}"

    async def ask(
        self, action: str, arguments: Mapping[str, Any], blob: bytes | None = None, *, launch: bool = False
    ) -> Answer:
        """The node's answer to an action on this sandbox."""
        return await self.link.ask(f"{self.path}/{action}", arguments, blob, launch=launch)

    async def run(self, command: Command) -> ExecResult:
        record, stdin = command_record(command)
        return result_of(await self.ask("exec", record, stdin, launch=True))

    async def start(self, command: Command) -> Process:
        record, stdin = command_record(command)
        return NodeProcess(self, (await self.ask("start", record, stdin, launch=True)).header["process"])

    async def attach(self, process_id: str) -> Process:
        return NodeProcess(self, (await self.ask("attach", {"process": process_id})).header["process"])

    async def read(self, path: str, *, offset: int = 0, size: int | None = None) -> bytes:
        return (await self.ask("read", {"path": path, "offset": offset, "size": size})).blobs[0]

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await self.ask("write", {"path": path, "mode": mode}, data, launch=True)

    async def stat(self, path: str) -> FileStat:
        return FileStat(**(await self.ask("stat", {"path": path})).header["stat"])

    async def list(self, path: str) -> list[FileStat]:
        return [FileStat(**entry) for entry in (await self.ask("list", {"path": path})).header["entries"]]

    async def mkdir(self, path: str) -> None:
        await self.ask("mkdir", {"path": path}, launch=True)

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self.ask("remove", {"path": path, "recursive": recursive}, launch=True)

    async def upload(self, source: Path | str, target: str) -> None:
        await self.link.ask(
            f"{self.path}/tree", method="PUT", query={"path": target}, body=lambda: pieces_of(Path(source)), launch=True
        )

    async def download(self, source: str, target: Path | str) -> None:
        async def attempt() -> None:
            async with self.link.stream(f"{self.path}/tree", {"path": source}) as content:
                self.link.checked(await receive(content))
                await from_pieces(content.iter_chunked(PIECE), Path(target))

        await asyncio.to_thread(TreeWriter, Path(target))  # refuses what is there before any work
        await self.link.attempts(attempt)

    async def usage(self) -> Usage:
        return Usage(**(await self.ask("usage", {})).header["usage"])

    async def alive(self) -> bool:
        try:
            return bool((await self.ask("alive", {})).header["alive"])
        except SandboxDiedError:
            return False

    async def delete(self) -> None:
        with suppress(SandboxDiedError):
            await shielded(self.ask("delete", {}))


class NodeProvider(Provider):
    """The sandboxes of one node.

    url: http://HOST:PORT, or unix:/PATH. token: the node's; None: what VF_SANDBOXD_TOKEN holds.
    """

    name = "node"

    def __init__(self, url: str, token: str | None = None, *, patience: Patience = PATIENCE) -> None:
        self.link = Link(url, token, patience=patience)
        self._beating: asyncio.Task[None] | None = None
        self._closed = False

    async def health(self) -> dict[str, Any]:
        """What the node tells of itself: status, alive, starting, capacity. SandboxUnreachableError if nothing."""
        try:
            found = await self.link.health()
        except FAILURES as error:
            raise self.link.silent(error) from error
        self.link.instance = found["instance"]
        return found

    async def capabilities(self) -> Capabilities:
        return capabilities_of((await self.link.ask("/capabilities", method="GET")).header)

    async def create(self, spec: SandboxSpec) -> Sandbox:
        await self._begin()
        made = (await self.link.ask("/sandboxes", {"spec": spec_record(spec)}, launch=True)).header
        return NodeSandbox(self.link, made["id"], spec, made["isolation"])

    async def claim(self, sandbox: Sandbox, spec: SandboxSpec) -> Sandbox:
        path, arguments = f"/sandboxes/{sandbox.id}/claim", {"spec": spec_record(spec)}
        made = (await self.link.ask(path, arguments, launch=True)).header
        return NodeSandbox(self.link, made["id"], spec, made["isolation"])

    async def get(self, sandbox_id: str) -> Sandbox:
        await self._begin()
        found = (await self.link.ask(f"/sandboxes/{sandbox_id}", method="GET")).header
        spec = SandboxSpec(image=found["image"], workdir=found["workdir"], labels=found["labels"])
        return NodeSandbox(self.link, sandbox_id, spec, found["isolation"])

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxInfo]:
        query = {"labels": json.dumps(dict(labels or {}))}
        answer = await self.link.ask("/sandboxes", method="GET", query=query)
        return [info_of(record) for record in answer.header["sandboxes"]]

    async def delete_many(self, labels: Mapping[str, str]) -> int:
        return int((await self.link.ask("/delete", {"labels": dict(labels)}, launch=True)).header["count"])

    async def reap_orphans(self) -> int:
        """0: a node sweeps by itself, when it starts and when a lease is over."""
        return 0

    async def close(self) -> None:
        self._closed = True
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None
            try:
                await shielded(self.link.ask("/leave", {}))
            except SandboxError as error:
                logger.warning("node %s was not told that its client has left: %s", self.link.node, error)
        await self.link.close()

    # --- below ----------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """At the first sandbox: learn which daemon this is, and tell it from now on that its client lives."""
        if self._closed:
            raise SandboxError(f"the provider of node {self.link.node} is closed", hint="Open a new one.")
        if self._beating is None:
            found = await self.health()
            if self._beating is None:
                self._beating = asyncio.create_task(self._beat(float(found["lease"]) / 4))

    async def _beat(self, pause: float) -> None:
        while True:
            await asyncio.sleep(pause)
            try:
                await self.link.beat()
            except Error as error:
                logger.warning("node %s: %s", self.link.node, error)
