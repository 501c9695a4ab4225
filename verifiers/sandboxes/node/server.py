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
    PUT  /sandboxes/ID/tree?path=P        the rows of `verifiers.sandboxes.host.trees`; GET: a message, then the same

Every request but /health carries the token. What changes something carries a key: a request that is repeated with its
key is the same request (`once`). While work goes on the answer has a sign of life every few seconds, as often as the
client asks for it. A sandbox belongs to owners; when none of them has been heard of for the lease, it is deleted.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import ExitStack
from pathlib import Path

from aiohttp import web

from verifiers.errors import ConfigError
from verifiers.sandboxes.node.routes import Routes
from verifiers.sandboxes.node.scratch import scratch
from verifiers.sandboxes.sandbox import Provider

LARGEST_BODY = 1 << 30
LEASE_S = 60.0


class NodeServer:
    """Serves one provider, which stays the caller's to close.

    token: asked of everybody; None only where the socket itself says who may connect.
    capacity: sandboxes at a time, those being made included; starting: of these being made at once.
    lease: seconds without a word of its owners after which a sandbox is deleted.
    images: a folder whose sub-folders are the root file systems that may be asked for by name.
    mounts: whether clients may have folders of this machine mounted.
    scratch: where files lie on their way in and out; None: the system's folder for temporary files.
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
        scratch: Path | None = None,
    ) -> None:
        self.url = ""
        self._token = token
        self._scratch = scratch
        self._open = ExitStack()
        self._routes = Routes(
            provider,
            token=token,
            capacity=capacity,
            starting=starting,
            lease=lease,
            images=images,
            mounts=mounts,
        )
        self._runner: web.AppRunner | None = None
        self._keeping: asyncio.Task[None] | None = None

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
        if await _somebody_listens(path):  # asyncio takes the place of a socket that is there
            raise ConfigError(f"somebody listens at {path} already", hint="Take another path, or end that daemon.")
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
        routes = self._routes
        routes.draining = True
        end = None if seconds is None else time.monotonic() + seconds
        while len(routes.held) or routes.starting:
            if end is not None and time.monotonic() >= end:
                return False
            await asyncio.sleep(0.05)
        return True

    async def stop(self) -> None:
        """Delete the sandboxes and listen no more."""
        self._routes.draining = True
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        await self._routes.once.cancel_all()
        await self._routes.held.delete_all("the node was stopped")
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        self._open.close()

    async def _set_up(self) -> web.AppRunner:
        self._routes.scratch = self._open.enter_context(scratch(self._scratch))
        app = web.Application(middlewares=[self._routes.checked], client_max_size=LARGEST_BODY)
        app.add_routes(self._routes.table())
        # A client that hangs up waits no more: `once` decides what becomes of what it began.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        self._keeping = asyncio.create_task(self._routes.held.keep_order())
        return self._runner


async def _somebody_listens(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        return False
    writer.close()
    return True
