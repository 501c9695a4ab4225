"""`NodeServer`: the sandboxes of a provider, for clients on this machine or others, over HTTP.

    server = NodeServer(provider, token=token)
    await server.start_tcp("127.0.0.1", 8475)           # server.url; or start_unix(path)
    await server.drain(30)                              # no new ones, wait for those that are there
    await server.stop()

Routes. Arguments and answers are messages as `wire` has them; without blobs they may be, and are, plain JSON.
    GET  /health                          status, and with a token what it has room for (no token: the status alone)
    GET  /capabilities, /metrics          what sandboxes here can do; figures for Prometheus
    POST /drain                           make no more sandboxes
    POST /beat, /leave                    an owner lives; an owner goes, with all its sandboxes
    POST /cancel                          {key}: end what was begun with this key
    POST /sandboxes                       {spec} → {id, isolation}
    GET  /sandboxes?labels=JSON           those of the asking owner; of everybody without an owner
    POST /delete                          {labels} → {count}: of those that GET would list
    GET  /sandboxes/ID                    one; the asking owner holds it from now on, too
    POST /sandboxes/ID/ACTION             see `actions`; besides claim {spec} and delete
    GET  /sandboxes/ID/processes/PROCESS/output?stdout_from=0&stderr_from=0       chunks as they come
    PUT  /sandboxes/ID/tree?path=P        a tar archive with one member, `tree`, and what is below it; GET: the same

Every request but /health carries the token. What changes something carries a key: a request that is repeated with its
key is the same request (`once`). While work goes on the answer has a sign of life every few seconds, as often as the
client asks for it. A sandbox belongs to owners; when none of them has been heard of for the lease, it is deleted.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from verifiers.errors import ConfigError, Error, SandboxBusyError, SandboxUnsupportedError
from verifiers.sandboxes.node import trees
from verifiers.sandboxes.node.actions import ACTIONS, argument
from verifiers.sandboxes.node.holdings import Holdings
from verifiers.sandboxes.node.metrics import exposition
from verifiers.sandboxes.node.once import Once
from verifiers.sandboxes.node.wire import (
    BEAT,
    DONE,
    FRAMES,
    HEARTBEAT,
    KEY,
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

LARGEST_BODY = 1 << 30
LEASE_S = 60.0
BEAT_S = 5.0


class NodeServer:
    """Serves one provider, which stays the caller's to close.

    token: asked of everybody; None only where the socket itself says who may connect.
    capacity: sandboxes at a time, those being made included; starting: of these being made at once.
    lease: seconds without a word of its owners after which a sandbox is deleted.
    images: a folder whose sub-folders are the root file systems that may be asked for by name.
    mounts: whether clients may have folders of this machine mounted.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        token: str | None,
        capacity: int = 200,
        starting: int = 16,
        lease: float = LEASE_S,
        images: Path | None = None,
        mounts: bool = False,
    ) -> None:
        self.provider = provider
        self.capacity = capacity
        self.url = ""
        self.instance = uuid.uuid4().hex
        self.draining = False
        self.counts: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self._token = token
        self._images = images
        self._mounts = mounts
        self._once = Once()
        self._held = Holdings(provider, self._once, self.counts, lease=lease)
        self._starting = 0
        self._slots = asyncio.Semaphore(starting)
        self._runner: web.AppRunner | None = None
        self._janitor: asyncio.Task[None] | None = None

    # --- life -----------------------------------------------------------------------------------------------------

    async def start_tcp(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen on an address of this machine (port 0: a free one); the server's URL."""
        if self._token is None:
            raise ConfigError("a node on TCP needs a token", hint="Give it one, or let it listen on a unix socket.")
        runner = await self._set_up()
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            await self.stop()
            raise ConfigError(
                f"nothing can listen at {host}, port {port or 'any'}: {error.strerror or error}",
                hint="Take an address of this machine, and a port that is free.",
            ) from error
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{runner.addresses[0][1]}"
        return self.url

    async def start_unix(self, path: Path) -> str:
        """Listen on a unix socket that only this user may connect to; the server's URL."""
        runner = await self._set_up()
        before = os.umask(0o177)
        try:
            await web.UnixSite(runner, str(path)).start()
        except OSError as error:
            await self.stop()
            why = error.strerror or error
            raise ConfigError(f"nothing can listen at {path}: {why}", hint="Check the path.") from error
        finally:
            os.umask(before)
        self.url = f"unix:{path}"
        return self.url

    async def drain(self, seconds: float | None = None) -> bool:
        """Make no more sandboxes, and wait until there are none; False if some are left when the time is over."""
        self.draining = True
        end = None if seconds is None else time.monotonic() + seconds
        while len(self._held) or self._starting:
            if end is not None and time.monotonic() >= end:
                return False
            await asyncio.sleep(0.05)
            await self._held.look()
        return True

    async def stop(self) -> None:
        """Delete the sandboxes and listen no more."""
        self.draining = True
        if self._janitor is not None:
            self._janitor.cancel()
            await asyncio.gather(self._janitor, return_exceptions=True)
        await self._once.cancel_all()
        await self._held.delete_all("the node was stopped")
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _set_up(self) -> web.AppRunner:
        app = web.Application(middlewares=[self._checked], client_max_size=LARGEST_BODY)
        app.add_routes(
            [
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
        )
        # A client that hangs up waits no more: `once` decides what becomes of what it began.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        self._janitor = asyncio.create_task(self._held.keep_order())
        return self._runner

    # --- who asks -------------------------------------------------------------------------------------------------

    @web.middleware
    async def _checked(self, request: web.Request, handler: Callable[[web.Request], Awaitable[Any]]) -> Any:
        """Turn strangers away, note who lives, and answer every error by its class."""
        if not self._known(request):
            if request.path == "/health":
                return web.json_response({"status": self._status})
            self.counts["refused"] += 1
            text = "does not know the token" if "Authorization" in request.headers else "asks for a token"
            record = {"type": "ConfigError", "message": f"the node {text}"}
            return web.json_response({"error": record}, status=401, headers={"WWW-Authenticate": "Bearer"})
        if owner := request.headers.get(OWNER):
            self._held.heard(owner)
        for key in request.headers.get(DONE, "").split():
            self._once.forget(key)
        try:
            return await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except Exception as error:  # boundary: what is no answer of a provider either
            status, answer = error_answer(error)
            self._failed(answer)
            return web.json_response(answer.header, status=status)

    def _known(self, request: web.Request) -> bool:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return self._token is None or hmac.compare_digest(given.encode(), self._token.encode())

    def _failed(self, answer: Answer) -> None:
        kind = answer.header["error"]["type"]
        self.counts[f"error {kind}"] += 1
        if kind == "SandboxError":
            logger.warning("a request failed: %s", answer.header["error"]["message"])

    # --- answers --------------------------------------------------------------------------------------------------

    async def _reply(self, request: web.Request, work: Callable[[], Awaitable[Answer]]) -> web.StreamResponse:
        """Do the work once for the request's key, with signs of life while it lasts."""
        beat = _seconds(request.headers.get(BEAT), BEAT_S)
        operation = self._once.begin(request.headers.get(KEY), request.headers.get(OWNER, ""), work)
        with operation.awaited():
            await asyncio.wait({operation.task}, timeout=beat)
            if operation.task.done():
                return self._whole(*operation.outcome())
            response = web.StreamResponse(headers={"Content-Type": FRAMES})
            await response.prepare(request)
            while not operation.task.done():
                await response.write(HEARTBEAT)
                await asyncio.wait({operation.task}, timeout=beat)
            status, answer = operation.outcome()
            if status != 200:
                self._failed(answer)
            await response.write(pack(answer))
            return response

    def _whole(self, status: int, answer: Answer) -> web.Response:
        if status != 200:
            self._failed(answer)
        if answer.blobs:
            return web.Response(body=pack(answer), status=status, content_type=FRAMES)
        return web.json_response(answer.header, status=status)

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "status": self._status,
                "protocol": PROTOCOL,
                "instance": self.instance,
                "alive": len(self._held),
                "starting": self._starting,
                "capacity": self.capacity,
                "lease": self._held.lease,
            }
        )

    @property
    def _status(self) -> str:
        return "draining" if self.draining else "ok"

    async def _capabilities(self, request: web.Request) -> web.Response:
        found = await self.provider.capabilities()
        here = replace(found, images=found.images and self._images is not None, mounts=found.mounts and self._mounts)
        return web.json_response(capabilities_record(here))

    async def _metrics(self, request: web.Request) -> web.Response:
        gauges = {
            "sandboxes_alive": len(self._held),
            "sandboxes_starting": self._starting,
            "sandboxes_capacity": self.capacity,
            "draining": int(self.draining),
            "owners": self._held.owners,
        }
        return web.Response(text=exposition(gauges, self.counts, self.seconds), content_type="text/plain")

    async def _drain(self, request: web.Request) -> web.Response:
        self.draining = True
        logger.info("draining: %d sandboxes are left", len(self._held))
        return web.json_response({"status": self._status, "alive": len(self._held)})

    async def _beat(self, request: web.Request) -> web.Response:
        return web.json_response({"lease": self._held.lease})

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        owner = request.headers.get(OWNER, "")

        async def work() -> Answer:
            await self._held.end(owner, "its owner has left")
            return Answer({})

        return await self._reply(request, work)

    async def _cancel(self, request: web.Request) -> web.Response:
        arguments, _ = await _message(request)
        await self._once.cancel(argument(arguments, "key", str))
        return web.json_response({})

    # --- sandboxes ------------------------------------------------------------------------------------------------

    async def _create(self, request: web.Request) -> web.StreamResponse:
        arguments, _ = await _message(request)
        spec, owner = self._here(spec_of(argument(arguments, "spec", dict))), request.headers.get(OWNER, "")

        async def work() -> Answer:
            self._admit()
            began = time.monotonic()
            self._starting += 1
            try:
                async with self._slots:
                    sandbox = await self.provider.create(spec)
            finally:
                self._starting -= 1
            self._took("create", began)
            self._held.hold(sandbox, owner)
            return Answer({"id": sandbox.id, "isolation": sandbox.isolation})

        return await self._reply(request, work)

    def _admit(self) -> None:
        if self.draining:
            raise SandboxBusyError("the node takes no more sandboxes: it is being shut down", hint="Use another node.")
        if len(self._held) + self._starting >= self.capacity:
            self.counts["busy"] += 1
            raise SandboxBusyError(f"the node has its {self.capacity} sandboxes", retry_after=1.0)

    def _here(self, spec: SandboxSpec) -> SandboxSpec:
        """The specification in terms of this machine: no path of it is a client's to name."""
        if spec.mounts and not self._mounts:
            hint = "Upload them, or start sandboxd --allow-mounts."
            raise SandboxUnsupportedError("this node mounts no folders", hint=hint)
        if spec.image == "host":
            return spec
        name = spec.image
        folder = None if self._images is None or "/" in name or name.startswith(".") else self._images / name
        if folder is None or not folder.is_dir():
            hint = "Images are the sub-folders of the folder that sandboxd --images names."
            raise SandboxUnsupportedError(f"this node has no image {name!r}", hint=hint)
        return replace(spec, image=str(folder))

    def _took(self, what: str, began: float) -> None:
        self.counts[what] += 1
        self.seconds[what] += time.monotonic() - began

    async def _list(self, request: web.Request) -> web.Response:
        labels = header_of(request.query.get("labels", "{}").encode())
        listed = [asdict(info) for info in await self._held.found(labels, request.headers.get(OWNER))]
        return web.json_response({"sandboxes": listed})

    async def _delete_many(self, request: web.Request) -> web.StreamResponse:
        arguments, _ = await _message(request)
        labels, owner = argument(arguments, "labels", dict), request.headers.get(OWNER)

        async def work() -> Answer:
            found = await self._held.found(labels, owner)
            await asyncio.gather(*(self._held.delete(info.id, "it was deleted") for info in found))
            return Answer({"count": len(found)})

        return await self._reply(request, work)

    async def _get(self, request: web.Request) -> web.Response:
        sandbox_id = request.match_info["id"]
        if sandbox_id not in self._held or not await (sandbox := self._held.sandbox(sandbox_id)).alive():
            raise KeyError(f"the node has no sandbox {sandbox_id}")
        self._held.hold(sandbox, request.headers.get(OWNER, ""))
        spec = sandbox.spec
        shown = {"labels": dict(spec.labels), "image": spec.image, "workdir": spec.workdir}
        return web.json_response({"id": sandbox_id, "isolation": sandbox.isolation} | shown)

    async def _act(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["action"]
        arguments, blob = await _message(request)
        if name == "delete":
            return await self._reply(request, lambda: self._deleted(request.match_info["id"]))
        if name == "claim":
            spec = spec_of(argument(arguments, "spec", dict))
            sandbox = self._held.sandbox(request.match_info["id"])
            return await self._reply(request, lambda: self._claimed(sandbox, spec))
        if name not in ACTIONS:
            raise ConfigError(f"there is no action {name!r}", hint=f"One of {', '.join(ACTIONS)}, claim, delete.")
        if name == "alive" and request.match_info["id"] not in self._held:
            return web.json_response({"alive": False})

        async def work() -> Answer:
            began = time.monotonic()
            answer = await ACTIONS[name](self._held.sandbox(request.match_info["id"]), arguments, blob)
            self._took(name, began)
            return answer

        return await self._reply(request, work)

    async def _deleted(self, sandbox_id: str) -> Answer:
        await self._held.delete(sandbox_id, "it was deleted")
        return Answer({})

    async def _claimed(self, sandbox: Sandbox, spec: SandboxSpec) -> Answer:
        claimed = await self._held.claim(sandbox, spec)
        return Answer({"id": claimed.id, "isolation": claimed.isolation})

    # --- streams --------------------------------------------------------------------------------------------------

    async def _output(self, request: web.Request) -> web.StreamResponse:
        """Chunks, each a message, then one with `ended`. A client that reads slowly holds the process back."""
        sandbox = self._held.sandbox(request.match_info["id"])
        process = await sandbox.attach(request.match_info["process"])
        offsets = {name: int(request.query.get(name, 0)) for name in ("stdout_from", "stderr_from")}
        beat = _seconds(request.headers.get(BEAT), BEAT_S)
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
            self._failed(answer)
            await response.write(pack(answer))
            return response
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        sandbox, path = self._held.sandbox(request.match_info["id"]), request.query["path"]
        archive, taken = trees.spooled(), False

        async def work() -> Answer:
            nonlocal taken
            taken = True  # it may outlive this request
            with archive, trees.scratch() as folder:
                await asyncio.to_thread(trees.unpack, archive, folder / "tree")
                await sandbox.upload(folder / "tree", path)
            return Answer({})

        try:
            async for data in request.content.iter_chunked(trees.PIECE):
                await asyncio.to_thread(archive.write, data)
            return await self._reply(request, work)
        finally:
            if not taken:
                archive.close()

    async def _download(self, request: web.Request) -> web.StreamResponse:
        sandbox, path = self._held.sandbox(request.match_info["id"]), request.query["path"]
        with trees.spooled() as archive:

            async def work() -> Answer:
                with trees.scratch() as folder:
                    await sandbox.download(path, folder / "tree")
                    await asyncio.to_thread(trees.pack, folder / "tree", archive)
                return Answer({"size": archive.seek(0, os.SEEK_END)})

            response = await self._reply_open(request, work)
            archive.seek(0)
            while data := await asyncio.to_thread(archive.read, trees.PIECE):
                await response.write(data)
            return response

    async def _reply_open(self, request: web.Request, work: Callable[[], Awaitable[Answer]]) -> web.StreamResponse:
        """Answer in a stream that the caller goes on with. Raises what the work does."""
        beat = _seconds(request.headers.get(BEAT), BEAT_S)
        response = web.StreamResponse(headers={"Content-Type": FRAMES})
        await response.prepare(request)
        operation = self._once.begin(None, request.headers.get(OWNER, ""), work)
        try:
            while not (await asyncio.wait({operation.task}, timeout=beat))[0]:
                await response.write(HEARTBEAT)
            await response.write(pack(operation.outcome()[1]))
        finally:
            operation.task.cancel()
            await asyncio.wait({operation.task})
        return response


def _seconds(text: str | None, default: float) -> float:
    try:
        return max(0.05, float(text)) if text else default
    except ValueError:
        return default


async def _message(request: web.Request) -> tuple[dict[str, Any], bytes]:
    """Arguments and blob of a request."""
    body = await request.read()
    if request.content_type == FRAMES:
        return unpack(body)
    return (header_of(body) if body else {}), b""
