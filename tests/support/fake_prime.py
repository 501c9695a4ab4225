"""Prime's service for tests: its routes on the loopback interface, whose machines are sandboxes of this machine.

The API (`/api/v1/sandbox…`) and the gateway (Connect calls of `command_session.CommandSession`, in protocol buffers).
Processes, limits and files are real.

`faults` says what goes wrong, once each: (method, a part of the path) → what; the method "STARTED" is a process that
runs while the answer that says so is lost.
"""

import asyncio
import contextlib
import json
import secrets
import struct
from datetime import UTC, datetime, timedelta

from aiohttp import web

from verifiers.errors import SandboxCreationError, SandboxError
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.prime.api import Patience
from verifiers.sandboxes.prime.connect import envelope, field, fields
from verifiers.sandboxes.spec import MIB, SandboxSpec, command

KEY = "pit_test"
IMAGES = {"python:3.11-slim", "no-python:1"}
HASTY = Patience(pause=0.01, poll=0.01, longest_poll=0.05)
DROP_BEFORE, DROP_AFTER, HALF = "drop before", "drop after", "half"


class Machine:
    """One sandbox of the service."""

    def __init__(self, number, body):
        self.id, self.body = number, body
        self.status, self.error, self.inner = "PENDING", ("", ""), None
        self.processes = {}
        self.polls = 0

    def record(self):
        return {"id": self.id, "name": self.body["name"], "status": self.status, "labels": self.body["labels"],
                "dockerImage": self.body["docker_image"], "vm": True, "errorType": self.error[0] or None,
                "errorMessage": self.error[1] or None}  # fmt: skip


class FakePrime:
    """`async with FakePrime() as prime: PrimeProvider(KEY, url=prime.url)`."""

    def __init__(self):
        self.machines = {}
        self.keys = {}
        self.tokens = {}
        self.faults = []
        self.requests = []
        self.creations = self.starts = 0
        self.token_seconds = 3600
        self._local = LocalProvider()
        self._runner = None
        self._tasks = set()

    async def __aenter__(self):
        app = web.Application(client_max_size=1 << 24, middlewares=[self._middle])
        app.add_routes([
            web.post("/api/v1/sandbox", self._create),
            web.get("/api/v1/sandbox", self._list),
            web.delete("/api/v1/sandbox", self._bulk_delete),
            web.get("/api/v1/sandbox/{id}", self._get),
            web.get("/api/v1/sandbox/{id}/error-context", self._context),
            web.delete("/api/v1/sandbox/{id}", self._delete),
            web.post("/api/v1/sandbox/{id}/auth", self._auth),
            web.post("/gw/ns/{id}/command_session.CommandSession/Start", self._start),
            web.post("/gw/ns/{id}/command_session.CommandSession/SendInput", self._send_input),
        ])  # fmt: skip
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        await self._local.__aenter__()
        return self

    async def __aexit__(self, *_):
        await self._local.close()
        await self._runner.cleanup()

    @web.middleware
    async def _middle(self, request, handler):
        """Keys, and faults."""
        self.requests.append((request.method, request.path))
        fault = self._fault(request.method, request.path)
        if fault == DROP_BEFORE:
            request.transport.abort()
            return web.Response()
        if isinstance(fault, int):
            return web.json_response({"detail": "a fault"}, status=fault)
        if request.path.startswith("/api/") and request.headers.get("Authorization") != f"Bearer {KEY}":
            return web.json_response({"detail": "Invalid API key"}, status=401)
        answer = await handler(request)
        if request.transport is None:
            return answer  # who asked has gone
        if fault == DROP_AFTER:
            request.transport.abort()
        elif fault == HALF:
            text = answer.body or b"{}"
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text)
            request.transport.write(head + text[: len(text) // 2])
            await asyncio.sleep(0)
            request.transport.close()
        return answer

    def _fault(self, method, path):
        for number, (at, part, what) in enumerate(self.faults):
            if at == method and part in path:
                del self.faults[number]
                return what
        return None

    # --- the API

    async def _create(self, request):
        body = await request.json()
        known = self.keys.get(body["idempotency_key"])
        if known is not None:
            return web.json_response(known.record())
        if body["docker_image"] not in IMAGES:
            return web.json_response({"detail": f"image {body['docker_image']} not found"}, status=422)
        self.creations += 1
        machine = Machine(secrets.token_hex(8), body)
        self.machines[machine.id] = self.keys[body["idempotency_key"]] = machine
        task = asyncio.ensure_future(self._boot(machine))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return web.json_response(machine.record())

    async def _boot(self, machine):
        body = machine.body
        spec = SandboxSpec(
            cpu=body.get("cpu_cores"), memory=round(body.get("memory_gb", 1) * 1024) + 64,
            disk=round(body.get("disk_size_gb", 5) * 1024), pids=None, lifetime=None, isolation="namespace",
            network="none" if "network_allowlist" in body else "open",
        )  # fmt: skip
        try:
            machine.inner = await self._local.create(spec)
        except SandboxCreationError:
            return  # this service is being closed
        if machine.id in self.machines:
            machine.status = "RUNNING"
        else:
            await machine.inner.delete()

    def _machine(self, request):
        machine = self.machines.get(request.match_info["id"])
        if machine is None:
            raise web.HTTPNotFound(text=json.dumps({"detail": "Sandbox not found"}), content_type="application/json")
        return machine

    async def _get(self, request):
        return web.json_response(self._machine(request).record())

    async def _context(self, request):
        machine = self._machine(request)
        return web.json_response(
            {"status": machine.status, "errorType": machine.error[0], "errorMessage": machine.error[1]}
        )

    async def _list(self, request):
        wanted = set(request.query.getall("labels", []))
        page, size = int(request.query.get("page", 1)), int(request.query.get("per_page", 50))
        found = [one.record() for one in self.machines.values() if wanted <= set(one.body["labels"])]
        part = found[(page - 1) * size : page * size]
        return web.json_response({"sandboxes": part, "total": len(found), "page": page, "perPage": size,
                                  "hasNext": page * size < len(found)})  # fmt: skip

    async def _delete(self, request):
        await self._remove(self._machine(request))
        return web.json_response({"status": "ok"})

    async def _bulk_delete(self, request):
        body = await request.json()
        ids, labels = body.get("sandbox_ids") or [], set(body.get("labels") or [])
        if labels:
            ids = [one.id for one in self.machines.values() if labels <= set(one.body["labels"])]
        there = [one for one in ids if one in self.machines]
        for one in there:
            await self._remove(self.machines[one])
        failed = [{"sandbox_id": one, "error": "not found"} for one in ids if one not in there]
        return web.json_response({"succeeded": there, "failed": failed, "message": "done"})

    async def _remove(self, machine):
        self.machines.pop(machine.id, None)
        machine.status = "TERMINATED"
        if machine.inner is not None:
            await machine.inner.delete()

    async def end(self, name, kind, words):
        """The service ends a machine, as when its memory is gone."""
        machine = next(one for one in self.machines.values() if one.body["name"] == name)
        machine.status, machine.error = "ERROR", (kind, words)
        await machine.inner.delete()

    # --- the gateway

    async def _auth(self, request):
        machine = self._machine(request)
        token = secrets.token_hex(8)
        self.tokens[token] = machine.id
        expires = datetime.now(UTC) + timedelta(seconds=self.token_seconds)
        return web.json_response({"gateway_url": f"{self.url}/gw/", "user_ns": "ns", "job_id": machine.id,
                                  "token": token, "expires_at": expires.isoformat()})  # fmt: skip

    def _refused(self, request):
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens.get(token) != request.match_info["id"]:
            return _rpc_error("unauthenticated", 401)
        machine = self.machines.get(request.match_info["id"])
        if machine is None or machine.status != "RUNNING":
            return _rpc_error("not_found", 404)
        return None

    async def _start(self, request):
        if refused := self._refused(request):
            return refused
        machine = self._machine(request)
        body = await request.read()
        assert struct.unpack(">BI", body[:5]) == (0, len(body) - 5)
        asked = fields(body[5:])
        arguments = _repeated(asked[1], 2)
        self.starts += 1
        if machine.body["docker_image"] == "no-python:1":
            arguments[1] = arguments[1].replace(b"python3", b"/no/python3")
        words = [fields(asked[1])[1], *arguments]
        line = [word.decode() for word in words]
        unlimited = {"timeout": None, "output_limit": None, "max_output": 64 * MIB, "keep": "last"}
        process = await machine.inner.start(command(line, **unlimited))
        if self._fault("STARTED", request.path):
            request.transport.abort()
            return web.Response()
        pid = 100 + len(machine.processes)
        machine.processes[pid] = process
        answer = web.StreamResponse(headers={"Content-Type": "application/connect+proto"})
        await answer.prepare(request)
        await answer.write(_event(1, field(1, pid)) + _event(4, b""))
        with contextlib.suppress(SandboxError, ConnectionError):
            async for chunk in process.output():
                await answer.write(_event(2, field(1 if chunk.stream == "stdout" else 2, chunk.data)))
            result = await process.wait()
            status = result.exit_code if result.exit_code is not None else -1
            await answer.write(_event(3, field(1, status << 1 if status >= 0 else 1)) + envelope(b"{}", 2))
        return answer

    async def _send_input(self, request):
        if refused := self._refused(request):
            return refused
        assert request.headers["Content-Type"] == "application/proto"
        found = fields(await request.read())
        process = self._machine(request).processes[fields(found[1])[1]]
        try:
            await process.write(fields(found[2])[1])
        except SandboxError:
            return _rpc_error("not_found", 404)
        return web.Response(body=b"", content_type="application/proto")


def _event(number, body):
    return envelope(field(1, field(number, body)))


def _rpc_error(code, status):
    return web.json_response({"code": code, "message": f"the gateway says {code}"}, status=status)


def _repeated(message, wanted):
    """All values of a field, which `fields` has the last one of."""
    found = []
    while wanted in fields(message):
        found.insert(0, fields(message)[wanted])
        message = message[: message.rindex(field(wanted, found[0]))]
    return found
