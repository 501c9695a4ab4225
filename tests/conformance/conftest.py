"""Fixtures of the conformance suite: the marker `rule` and a loopback endpoint that speaks OpenAI's protocol.

A test names the rules it proves, `@pytest.mark.rule("T-001")`; `rules.toml` says what each rule is, and
`test_rules.py` keeps the two in step.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncOpenAI

HERE = Path(__file__).parent
ENVIRONMENTS = HERE / "environments"
for folder in (HERE, ENVIRONMENTS):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, so that a misspelt one is an error under --strict-markers."""
    config.addinivalue_line(
        "markers", "rule(*ids): the rules of tests/conformance/rules.toml this test proves"
    )


class Endpoint:
    """A loopback endpoint: gives its replies in order, the last one for ever, and keeps what it was sent.

    A reply is a message dict, a text, or (status, body). `base_url` ends in /v1.
    """

    def __init__(self) -> None:
        self.replies: list[Any] = ["ok"]
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.base_url = ""
        self.opened: list[Any] = []

    def sdk(self, kind: type[Any] = AsyncOpenAI) -> Any:
        """An SDK client of this endpoint, closed when the test ends."""
        self.opened.append(kind(base_url=self.base_url, api_key="k", max_retries=0))
        return self.opened[-1]

    def _next(self) -> Any:
        return self.replies[min(len(self.bodies) - 1, len(self.replies) - 1)]

    async def chat(self, request: web.Request) -> web.Response:
        """POST /v1/chat/completions."""
        body = json.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        reply = self._next()
        if isinstance(reply, tuple):
            status, content = reply
            return web.json_response(content, status=status)
        message = {"role": "assistant", "content": reply} if isinstance(reply, str) else dict(reply)
        reason = message.pop("finish_reason", "tool_calls" if message.get("tool_calls") else "stop")
        message.setdefault("role", "assistant")
        return web.json_response(chat_body([{"index": 0, "message": message, "finish_reason": reason}]))

    async def complete(self, request: web.Request) -> web.Response:
        """POST /v1/completions."""
        self.bodies.append(json.loads(await request.read()))
        self.headers.append(dict(request.headers))
        choice = {"index": 0, "text": self._next(), "finish_reason": "stop", "logprobs": None}
        return web.json_response({**chat_body([choice]), "object": "text_completion"})


def chat_body(choices: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole reply of the chat protocol around these choices."""
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "served",
        "choices": choices,
        "usage": usage,
    }


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    """A running loopback endpoint."""
    served = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", served.chat)
    app.router.add_post("/v1/completions", served.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server = site._server
    assert server is not None
    port = server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    served.base_url = f"http://127.0.0.1:{port}/v1"
    try:
        yield served
    finally:
        for sdk in served.opened:
            closing = sdk.close()
            if closing is not None:
                await closing
        await runner.cleanup()


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs an environment for one test: `installed("my-env", source)` makes module my_env importable."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    modules: list[str] = []

    def install(name: str, source: str) -> None:
        module = name.replace("-", "_")
        (site / f"{module}.py").write_text(source, encoding="utf-8")
        info = site / f"{module}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n", encoding="utf-8"
        )
        (info / "RECORD").write_text(
            f"{module}.py,,\n{info.name}/METADATA,,\n{info.name}/RECORD,,\n", "utf-8"
        )
        (info / "top_level.txt").write_text(f"{module}\n", encoding="utf-8")
        modules.append(module)

    yield install
    for module in modules:
        sys.modules.pop(module, None)


@pytest.fixture
async def provider() -> AsyncIterator[Any]:
    """Sandboxes of this machine, without a pool. In CI a machine that can make none is a failure."""
    from tests.support.namespaces import need_namespaces
    from verifiers.sandboxes.local.provider import LocalProvider

    need_namespaces()
    async with LocalProvider() as provider:
        yield provider


@pytest.fixture
def watched(provider: Any) -> Any:
    """The same, watched."""
    from sandbox_harness import Watched

    return Watched(provider)
