"""The command `sandboxd`: where it listens, what it refuses, how it ends."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.support.nodes import STEADY, TOKEN, Daemon, alive_with
from tests.support.sandbox_providers import until
from verifiers.cli.sandboxd import run
from verifiers.errors import ExitCode
from verifiers.sandboxes.node.client import NodeProvider
from verifiers.sandboxes.spec import SandboxSpec, command


async def test_a_signal_drains_and_leaves_nothing(tmp_path):
    """At SIGTERM it lets its sandboxes end for a while, deletes what is left and ends with 0."""
    word = f"77{os.getpid()}"
    (tmp_path / "token").write_text("another token\n")
    async with (
        Daemon("--token-file", str(tmp_path / "token"), "--drain", "0.2") as daemon,
        NodeProvider(daemon.url, "another token", patience=STEADY) as provider,
    ):
        sandbox = await provider.create(SandboxSpec())
        await sandbox.start(command(f"sleep {word}", timeout=None))
        await until(partial(asyncio.to_thread, alive_with, word))
        assert b"another token" not in Path(f"/proc/{daemon.process.pid}/cmdline").read_bytes()
        assert await daemon.end(signal.SIGTERM) == ExitCode.OK
        assert alive_with(word) == []


async def test_it_listens_on_a_socket(tmp_path):
    """On a unix socket it needs no token."""
    path = tmp_path / "socket"
    async with Daemon("--socket", str(path)) as daemon, NodeProvider(f"unix:{path}", TOKEN) as provider:
        assert daemon.url == f"unix:{path}"
        assert (await (await provider.create(SandboxSpec())).exec("echo hi")).stdout == b"hi\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "0"], "no token"),
        (["--token-file", "/no/such/file"], "can not read the token"),
        (["--tokn", "x"], "--tokn"),
        (["--capacity", "many"], "--capacity"),
    ],
    ids=["no-token", "no-file", "unknown", "no-number"],
)
def test_what_it_refuses(arguments, told, capsys):
    """Without a token on TCP, or with an option that makes no sense, it says so and listens nowhere."""
    assert run(arguments) == ExitCode.USAGE
    assert told in capsys.readouterr().err


def test_help_is_quick_and_says_how(capsys):
    """`--help` names the ways to start it."""
    assert run(["--help"]) == ExitCode.OK
    assert "--token-file token" in capsys.readouterr().out
