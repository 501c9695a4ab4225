"""Deleting sandboxes together: what is asked for within a moment is one request, of at most 100."""

from __future__ import annotations

import asyncio

from verifiers.errors import SandboxError
from verifiers.sandboxes.prime.api import Api

MOST = 100
MOMENT_S = 0.01


class Deleter:
    """Deletes by id, many at once. One that is not there any more is deleted."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._asked: dict[str, asyncio.Future[None]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def delete(self, sandbox_id: str) -> None:
        """Returns when the service has taken it back."""
        future = self._asked.get(sandbox_id)
        if future is None:
            if not self._asked:
                task = asyncio.ensure_future(self._soon())
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            future = self._asked[sandbox_id] = asyncio.get_running_loop().create_future()
        await asyncio.shield(future)

    async def _soon(self) -> None:
        await asyncio.sleep(MOMENT_S)
        asked, self._asked = self._asked, {}
        ids = list(asked)
        groups = [ids[at : at + MOST] for at in range(0, len(ids), MOST)]
        await asyncio.gather(*(self._group({one: asked[one] for one in group}) for group in groups))

    async def _group(self, asked: dict[str, asyncio.Future[None]]) -> None:
        done: set[str] = set()
        if len(asked) > 1:
            try:
                _, told = await self._api.ask("DELETE", "/sandbox", body={"sandbox_ids": list(asked)})
                done = set((told or {}).get("succeeded") or ())
            except SandboxError:
                pass  # each by itself tells more
        await asyncio.gather(*(self._one(one, future, one in done) for one, future in asked.items()))

    async def _one(self, sandbox_id: str, future: asyncio.Future[None], done: bool) -> None:
        try:
            if not done:
                await self._api.ask("DELETE", f"/sandbox/{sandbox_id}", also=(404,))
            future.set_result(None)
        except SandboxError as error:
            future.set_exception(error)
            future.exception()  # it may be that nobody asks
