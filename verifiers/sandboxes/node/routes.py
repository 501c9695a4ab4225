"""What a node answers: the routes of `server`, each a few lines over holdings and actions."""

from __future__ import annotations

import asyncio
import hmac
import logging
import shutil
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from verifiers.errors import ConfigError, Error, SandboxBusyError, SandboxUnsupportedError
from verifiers.sandboxes.host.trees import PIECE, from_pieces, pieces_of
from verifiers.sandboxes.node.actions import ACTIONS, argument
from verifiers.sandboxes.node.answers import Answers, beat_of
from verifiers.sandboxes.node.holdings import Holdings
from verifiers.sandboxes.node.metrics import exposition
from verifiers.sandboxes.node.once import Once
from verifiers.sandboxes.node.wire import (
    DONE,
    FRAMES,
    HEARTBEAT,
    OWNER,
    PROTOCOL,
    Answer,
    capabilities_record,
    error_answer,
    header_of,
    pack,
    spec_of,
    unpack,
)
from verifiers.sandboxes.sandbox import Provider, Sandbox
from verifiers.sandboxes.spec import SandboxSpec

logger = logging.getLogger(__name__)

class Routes:
    """Answers requests for one provider's sandboxes. The arguments are `NodeServer`'s."""

    def __init__(
        self,
        provider: Provider,
        *,
        token: str | None,
        capacity: int,
        starting: int,
        lease: float,
        images: Path | None,
        mounts: bool,
    ) -> None:
        self.instance = uuid.uuid4().hex
        self.draining = False
        self.starting = 0
        self.scratch: Path | None = None
        self.once = Once()
        self.counts: Counter[str] = Counter()
        self.held = Holdings(provider, self.once, self.counts, lease=lease)
        self._answers = Answers(self.once, self.counts)
        self._provider = provider
        self._token = token
        self._capacity = capacity
        self._slots = asyncio.Semaphore(starting)
        self._images = images
        self._mounts = mounts
        self._seconds: dict[str, float] = defaultdict(float)

    def table(self) -> list[web.RouteDef]:
        """Every route and who answers it."""
        return [
            web.get("/health", self._health),
            web.get("/capabilities", self._capabilities),
            web.get("/metrics", self._metrics),
            web.post("/drain", self._drain),
            web.post("/beat", self._beat),
            web.post("/leave", self._leave),
            web.post("/cancel", self._cancel),
            web.post("/sandboxes", self._create),
            web.get("/sandboxes", self._list),
            web.post("/delete", self._delete_many),
            web.get("/sandboxes/{id}", self._get),
            web.get("/sandboxes/{id}/processes/{process}/output", self._output),
            web.put("/sandboxes/{id}/tree", self._upload),
            web.get("/sandboxes/{id}/tree", self._download),
            web.post("/sandboxes/{id}/{action}", self._act),
        ]

    # --- who asks -------------------------------------------------------------------------------------------------

    @web.middleware
    async def checked(self, request: web.Request, handler: Callable[[web.Request], Awaitable[Any]]) -> Any:
        """Turn strangers away, note who lives, and answer every error by its class."""
        if not self._known(request):
            if request.path == "/health":
                return web.json_response({"status": self._status})
            self.counts["refused"] += 1
            text = "does not know the token" if "Authorization" in request.headers else "asks for a token"
            record = {"type": "ConfigError", "message": f"the node {text}"}
            return web.json_response({"error": record}, status=401, headers={"WWW-Authenticate": "Bearer"})
        if owner := request.headers.get(OWNER):
            self.held.heard(owner)
        for key in request.headers.get(DONE, "").split():
            self.once.forget(key)
        try:
            return await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:  # boundary: what is no answer of a provider either
            status, answer = error_answer(error)
            self._answers.failed(answer)
            return web.json_response(answer.header, status=status)

    def _known(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return self._token is None or hmac.compare_digest(given.encode(), self._token.encode())

    # --- how it is ------------------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "status": self._status,
                "protocol": PROTOCOL,
                "instance": self.instance,
                "alive": len(self.held),
                "starting": self.starting,
                "capacity": self._capacity,
                "lease": self.held.lease,
            }
        )

    @property
    def _status(self) -> str:
        return "draining" if self.draining else "ok"

    async def _capabilities(self, request: web.Request) -> web.Response:
        found = await self._provider.capabilities()
        here = replace(found, images=found.images and self._images is not None, mounts=found.mounts and self._mounts)
        return web.json_response(capabilities_record(here))

    async def _metrics(self, request: web.Request) -> web.Response:
        gauges = {
            "sandboxes_alive": len(self.held),
            "sandboxes_starting": self.starting,
            "sandboxes_capacity": self._capacity,
            "draining": int(self.draining),
            "owners": self.held.owners,
        }
        return web.Response(text=exposition(gauges, self.counts, self._seconds), content_type="text/plain")

    async def _drain(self, request: web.Request) -> web.Response:
        self.draining = True
        logger.info("draining: %d sandboxes are left", len(self.held))
        return web.json_response({"status": self._status, "alive": len(self.held)})

    async def _beat(self, request: web.Request) -> web.Response:
        return web.json_response({"lease": self.held.lease})

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        owner = request.headers.get(OWNER, "")

        async def work() -> Answer:
            await self.held.end(owner, "its owner has left")
            return Answer({})

        return await self._answers.reply(request, work)

    async def _cancel(self, request: web.Request) -> web.Response:
        arguments, _ = await _message(request)
        await self.once.cancel(argument(arguments, "key", str))
        return web.json_response({})

    # --- sandboxes ------------------------------------------------------------------------------------------------

    async def _create(self, request: web.Request) -> web.StreamResponse:
        arguments, _ = await _message(request)
        spec, owner = self._here(spec_of(argument(arguments, "spec", dict))), request.headers.get(OWNER, "")

        async def work() -> Answer:
            self._admit()
            began = time.monotonic()
            self.starting += 1
            try:
                async with self._slots:
                    sandbox = await self._provider.create(spec)
            finally:
                self.starting -= 1
            self._took("create", began)
            self.held.hold(sandbox, owner)
            return Answer({"id": sandbox.id, "isolation": sandbox.isolation})

        async def undo(answer: Answer) -> None:
            await self.held.delete(answer.header["id"], "its creation was cancelled")

        return await self._answers.reply(request, work, undo)

    def _admit(self) -> None:
        if self.draining:
            raise SandboxBusyError("the node takes no more sandboxes: it is being shut down", hint="Use another node.")
        if len(self.held) + self.starting >= self._capacity:
            self.counts["busy"] += 1
            raise SandboxBusyError(f"the node has its {self._capacity} sandboxes", retry_after=1.0)

    def _here(self, spec: SandboxSpec) -> SandboxSpec:
        """The specification in terms of this machine: no path of it is a client's to name."""
        if spec.mounts and not self._mounts:
            hint = "Upload them, or start sandboxd --allow-mounts."
            raise SandboxUnsupportedError("this node mounts no folders", hint=hint)
        name = spec.image
        if name == "host":
            return spec
        inside = name == Path(name).name != ".."
        if self._images is not None and inside and (self._images / name).is_dir():
            return replace(spec, image=str(self._images / name))
        if name.startswith((".", "/")) or Path(name).exists():
            hint = "Images are the sub-folders of the folder that sandboxd --images names, and known names."
            raise SandboxUnsupportedError(f"this node has no image {name!r}", hint=hint)
        return spec

    def _took(self, what: str, began: float) -> None:
        self.counts[what] += 1
        self._seconds[what] += time.monotonic() - began

    async def _list(self, request: web.Request) -> web.Response:
        labels = header_of(request.query.get("labels", "{}").encode())
        listed = [asdict(info) for info in await self.held.found(labels, request.headers.get(OWNER))]
        return web.json_response({"sandboxes": listed})

    async def _delete_many(self, request: web.Request) -> web.StreamResponse:
        arguments, _ = await _message(request)
        labels, owner = argument(arguments, "labels", dict), request.headers.get(OWNER)

        async def work() -> Answer:
            found = await self.held.found(labels, owner)
            await asyncio.gather(*(self.held.delete(info.id, "it was deleted") for info in found))
            return Answer({"count": len(found)})

        return await self._answers.reply(request, work)

    async def _get(self, request: web.Request) -> web.Response:
        sandbox_id = request.match_info["id"]
        sandbox = self.held.sandbox(sandbox_id) if sandbox_id in self.held else None
        if sandbox is not None:
            self.held.hold(sandbox, request.headers.get(OWNER, ""))  # before it is asked: its other owners may leave
        if sandbox is None or not await sandbox.alive():
            raise KeyError(f"the node has no sandbox {sandbox_id}")
        spec = sandbox.spec
        shown = {"labels": dict(spec.labels), "image": spec.image, "workdir": spec.workdir}
        return web.json_response({"id": sandbox_id, "isolation": sandbox.isolation} | shown)

    async def _act(self, request: web.Request) -> web.StreamResponse:
        sandbox_id, name = request.match_info["id"], request.match_info["action"]
        arguments, blob = await _message(request)
        if name == "delete":
            return await self._answers.reply(request, lambda: self._deleted(sandbox_id))
        if name == "alive" and sandbox_id not in self.held:
            return web.json_response({"alive": False})
        if name == "claim":
            sandbox, spec = self.held.sandbox(sandbox_id), spec_of(argument(arguments, "spec", dict))
            return await self._answers.reply(request, lambda: self._claimed(sandbox, spec))
        if name not in ACTIONS:
            raise ConfigError(f"there is no action {name!r}", hint=f"One of {', '.join(ACTIONS)}, claim, delete.")

        async def work() -> Answer:
            began = time.monotonic()
            answer = await ACTIONS[name](self.held.sandbox(sandbox_id), arguments, blob)
            self._took(name, began)
            return answer

        async def undo(answer: Answer) -> None:
            await ACTIONS["kill"](self.held.sandbox(sandbox_id), answer.header, b"")

        return await self._answers.reply(request, work, undo if name == "start" else None)

    async def _deleted(self, sandbox_id: str) -> Answer:
        await self.held.delete(sandbox_id, "it was deleted")
        return Answer({})

    async def _claimed(self, sandbox: Sandbox, spec: SandboxSpec) -> Answer:
        claimed = await self.held.claim(sandbox, spec)
        return Answer({"id": claimed.id, "isolation": claimed.isolation})

    # --- streams --------------------------------------------------------------------------------------------------

    async def _output(self, request: web.Request) -> web.StreamResponse:
        """Chunks, each a message, then one with `ended`. A client that reads slowly holds the process back."""
        sandbox = self.held.sandbox(request.match_info["id"])
        process = await sandbox.attach(request.match_info["process"])
        offsets = {name: int(request.query.get(name, 0)) for name in ("stdout_from", "stderr_from")}
        beat = beat_of(request)
        response = web.StreamResponse(headers={"Content-Type": FRAMES})
        await response.prepare(request)
        chunks = process.output(**offsets)
        coming = asyncio.ensure_future(anext(chunks, None))
        try:
            while True:
                if not (await asyncio.wait({coming}, timeout=beat))[0]:
                    await response.write(HEARTBEAT)
                    continue
                chunk = coming.result()
                if chunk is None:
                    await response.write(pack(Answer({"ended": True})))
                    return response
                header = {"stream": chunk.stream, "offset": chunk.offset}
                await response.write(pack(Answer(header, (chunk.data,))))
                coming = asyncio.ensure_future(anext(chunks, None))
        except Error as error:
            answer = error_answer(error)[1]
            self._answers.failed(answer)
            await response.write(pack(answer))
            return response
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        sandbox, path = self.held.sandbox(request.match_info["id"]), request.query["path"]
        folder, taken = self._folder(), False

        async def work() -> Answer:
            nonlocal taken
            taken = True  # it may outlive this request
            try:
                await sandbox.upload(folder / "tree", path)
            finally:
                await asyncio.to_thread(shutil.rmtree, folder)
            return Answer({})

        try:
            await from_pieces(request.content.iter_chunked(PIECE), folder / "tree")
            return await self._answers.reply(request, work)
        finally:
            if not taken:
                await asyncio.to_thread(shutil.rmtree, folder)

    async def _download(self, request: web.Request) -> web.StreamResponse:
        """A message when it is there, then its pieces."""
        sandbox, path = self.held.sandbox(request.match_info["id"]), request.query["path"]
        beat = beat_of(request)
        response = web.StreamResponse(headers={"Content-Type": FRAMES})
        await response.prepare(request)
        folder = self._folder()
        loading = asyncio.create_task(sandbox.download(path, folder / "tree"))
        try:
            while not (await asyncio.wait({loading}, timeout=beat))[0]:
                await response.write(HEARTBEAT)
            if (error := loading.exception()) is not None:
                answer = error_answer(error)[1]
                self._answers.failed(answer)
                await response.write(pack(answer))
                return response
            await response.write(pack(Answer({})))
            async for piece in pieces_of(folder / "tree"):
                await response.write(piece)
        finally:
            loading.cancel()
            await asyncio.wait({loading})
            await asyncio.to_thread(shutil.rmtree, folder)
        return response

    def _folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self.scratch))


async def _message(request: web.Request) -> tuple[dict[str, Any], bytes]:
    """Arguments and blob of a request."""
    body = await request.read()
    if request.content_type == FRAMES:
        return unpack(body)
    return (header_of(body) if body else {}), b""
