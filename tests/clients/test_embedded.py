"""The embedded model: it answers, reports token ids, bounds itself, and never outlives its parent."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from verifiers.clients import embedded
from verifiers.clients.client import as_client, probe
from verifiers.clients.embedded import EmbeddedServer
from verifiers.errors import (
    ConfigError,
    EndpointUnavailableError,
    MissingExtraError,
    OverlongPromptError,
)
from verifiers.types import Tool

needs_llama = pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None, reason="needs the extra `local` (xllamacpp)"
)


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """One running server for the tests that only ask it."""
    with EmbeddedServer(slots=2, context=512, max_tokens=8) as running:
        yield running


async def ask(server: EmbeddedServer, prompt: Any, sampling_args: Any = None, **config: Any) -> Any:
    """One reply of the server."""
    client = as_client(server.client_config().model_copy(update=config))
    try:
        return await client.get_response(prompt, server.model, sampling_args)
    finally:
        await client.close()


def is_alive(pid: int) -> bool:
    """Whether the process is there and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def ends(pid: int, limit_s: float = 10.0) -> bool:
    """Whether the process ends, waiting for it if need be."""
    deadline = time.monotonic() + limit_s
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not is_alive(pid)


# --- answering --------------------------------------------------------------------------------------------------


@needs_llama
@pytest.mark.local
async def test_it_answers_with_usage_and_token_ids(server: EmbeddedServer) -> None:
    """A chat reply comes with usage and, if asked for, with the completion's ids and logprobs."""
    assert await probe(server.client_config()) == [server.model] == ["SmolLM2-135M-Instruct"]
    got = await ask(server, "Say hello.", {"max_tokens": 4, "logprobs": True, "temperature": 0})
    assert got.message.content and got.usage.completion_tokens == 4 and got.message.is_truncated
    tokens = got.message.tokens
    assert (
        len(tokens.completion_ids) == len(tokens.completion_logprobs) == 4 and tokens.exactness == "rendered"
    )


@needs_llama
@pytest.mark.local
async def test_token_ids_as_a_prompt(server: EmbeddedServer) -> None:
    """The completions route takes token ids and reports those of its reply."""
    got = await ask(
        server, [1, 2683, 359], {"max_tokens": 2, "logprobs": 1}, client_type="openai_completions"
    )
    assert len(got.message.tokens.completion_ids) == 2 and got.usage.prompt_tokens == 3


@needs_llama
@pytest.mark.local
async def test_more_requests_than_slots(server: EmbeddedServer) -> None:
    """Requests beyond the slots wait their turn; a reply without a bound of its own is bounded by the server."""
    client = as_client(server.client_config())
    got = await asyncio.gather(*(client.get_response(f"Count to {i}.", server.model) for i in range(6)))
    await client.close()
    assert all(0 < reply.usage.completion_tokens <= 8 for reply in got)


@needs_llama
@pytest.mark.local
async def test_prompts_beyond_the_context(server: EmbeddedServer) -> None:
    """A prompt longer than a slot's context is an OverlongPromptError."""
    with pytest.raises(OverlongPromptError):
        await ask(server, "word " * 600)


@needs_llama
@pytest.mark.local
async def test_offered_tools_are_no_error(server: EmbeddedServer) -> None:
    """Tools may be offered, and earlier calls and results sent back, though so small a model calls none."""
    call = {"id": "c", "name": "add", "arguments": '{"a": 1}'}
    conversation = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "c"},
    ]
    client = as_client(server.client_config())
    tool = Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
    got = await client.get_response(conversation, server.model, {"max_tokens": 8, "temperature": 0.0}, [tool])
    await client.close()
    assert got.message.content


# --- starting and stopping --------------------------------------------------------------------------------------


@needs_llama
@pytest.mark.local
def test_stopping_leaves_nothing() -> None:
    """After stop neither process nor address is there; stopping twice, or before the start, does nothing."""
    server = EmbeddedServer(slots=1, context=256)
    server.stop()
    server.start()
    pid = server.pid
    assert pid is not None and server.start().pid == pid
    server.stop()
    server.stop()
    assert not is_alive(pid) and server.base_url == "" and server.pid is None


CHILD = """
import sys, time
from verifiers.clients.embedded import EmbeddedServer
server = EmbeddedServer(slots=1, context=256).start()
print(server.pid, flush=True)
if sys.argv[1] == "wait":
    time.sleep(60)
"""


@needs_llama
@pytest.mark.local
@pytest.mark.parametrize("how", ["killed", "exit"])
def test_it_ends_with_its_parent(how: str) -> None:
    """A parent that is killed, or ends without stopping the server, leaves no server process behind."""
    command = [sys.executable, "-c", CHILD, "wait" if how == "killed" else "exit"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if how == "killed":
            assert is_alive(pid)
            parent.send_signal(signal.SIGKILL)
    assert ends(pid)


@needs_llama
@pytest.mark.local
async def test_a_killed_server_is_an_unavailable_endpoint() -> None:
    """A server that dies is an EndpointUnavailableError of the next request, and stop still cleans up.

    It was started in a thread that has ended, which must not take it along.
    """
    server = EmbeddedServer(slots=1, context=256)
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    assert (await ask(server, "Hi", {"max_tokens": 1})).message.content
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    assert ends(server.pid)
    with pytest.raises(EndpointUnavailableError):
        await ask(server, "Hi", max_retries=0)
    server.stop()


@needs_llama
@pytest.mark.local
def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    """A file that is no GGUF is an EndpointUnavailableError with llama.cpp's reason, and no process is left."""
    path = tmp_path / "no.gguf"
    path.write_text("this is no model")
    server = EmbeddedServer(path)
    with pytest.raises(EndpointUnavailableError, match="magic"):
        server.start()
    assert server.pid is None


@needs_llama
def test_a_path_that_is_no_file(tmp_path: Path) -> None:
    """A path without a file is a ConfigError before anything is started."""
    with pytest.raises(ConfigError, match=r"absent\.gguf"):
        EmbeddedServer(tmp_path / "absent.gguf").start()


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra the error holds the command that installs it."""
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError) as caught:
        EmbeddedServer().start()
    assert "pip install 'verifiers[local]>=1'" in caught.value.hint


def test_settings_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers below 1 and a variable that is no number are ConfigErrors that name them."""
    with pytest.raises(ConfigError, match="slots"):
        EmbeddedServer(slots=0)
    monkeypatch.setenv("VF_LOCAL_THREADS", "many")
    with pytest.raises(ConfigError, match="VF_LOCAL_THREADS"):
        EmbeddedServer()
