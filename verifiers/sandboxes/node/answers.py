"""How a node answers: what is asked for is done once for each key, and the client hears that work goes on."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import web

from verifiers.sandboxes.node.once import Once, Undo
from verifiers.sandboxes.node.wire import BEAT, FRAMES, HEARTBEAT, KEY, OWNER, Answer, pack

logger = logging.getLogger(__name__)

BEAT_S = 5.0

Work = Callable[[], Awaitable[Answer]]


def beat_of(request: web.Request) -> float:
    """Seconds between signs of life, as the client asks for them."""
    text = request.headers.get(BEAT)
    try:
        return max(0.05, float(text)) if text else BEAT_S
    except ValueError:
        return BEAT_S


class Answers:
    """Answers by work that `once` keeps; errors are counted in `counts`."""

    def __init__(self, once: Once, counts: Counter[str]) -> None:
        self._once = once
        self._counts = counts

    def failed(self, answer: Answer) -> None:
        """Count an answer that is an error, and log what no class of errors explains."""
        kind = answer.header["error"]["type"]
        self._counts[f"error {kind}"] += 1
        if kind == "SandboxError":
            logger.warning("a request failed: %s", answer.header["error"]["message"])

    async def reply(self, request: web.Request, work: Work, undo: Undo | None = None) -> web.StreamResponse:
        """Do the work once for the request's key, with signs of life while it lasts."""
        beat = beat_of(request)
        operation = self._once.begin(request.headers.get(KEY), request.headers.get(OWNER, ""), work, undo)
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
                self.failed(answer)
            await response.write(pack(answer))
            return response

    def _whole(self, status: int, answer: Answer) -> web.Response:
        if status != 200:
            self.failed(answer)
        if answer.blobs:
            return web.Response(body=pack(answer), status=status, content_type=FRAMES)
        return web.json_response(answer.header, status=status)
