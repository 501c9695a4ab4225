"""Many nodes as one provider: spread, sticky, and independent of each other's ends."""

import asyncio
import contextlib
import os
import signal
import socket
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.nodes import STEADY, TOKEN, Daemon, alive_with, serving
from tests.support.sandbox_providers import until
from verifiers.errors import (
    ConfigError,
    SandboxBusyError,
    SandboxDiedError,
    SandboxSettingsError,
    SandboxUnreachableError,
    SandboxUnsupportedError,
)
from verifiers.sandboxes.node.client import NodeProvider
from verifiers.sandboxes.node.cluster import NodesProvider
from verifiers.sandboxes.spec import SandboxSpec


@contextlib.asynccontextmanager
async def nodes(*capacities, token=TOKEN, **options):
    """Nodes in this process, and the provider over them."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(capacity=one)) for one in capacities]
        urls = [server.url for server in servers]
        yield servers, await stack.enter_async_context(NodesProvider(urls, token, patience=STEADY, **options))


async def test_sandboxes_go_where_there_is_room_and_stay():
    """They are spread by the room that nodes have; each is found, listed and deleted wherever it is."""
    async with nodes(2, 4) as (servers, provider):
        made = [await provider.create(SandboxSpec(labels={"n": str(n % 2)})) for n in range(6)]
        assert Counter(one.link.node for one in made) == {servers[0].url: 2, servers[1].url: 4}
        results = await asyncio.gather(*(one.exec(f"echo {n}") for n, one in enumerate(made)))
        assert [result.stdout for result in results] == [b"%d\n" % n for n in range(6)]
        assert (await (await provider.get(made[0].id)).exec("echo found")).ok
        with pytest.raises(KeyError):
            await provider.get("nobody")
        with pytest.raises(SandboxBusyError) as busy:
            await provider.create(SandboxSpec())
        assert busy.value.retry_after == 1.0
        assert len(await provider.list()) == 6
        assert await provider.delete_many({"n": "0"}) == 3
        assert len(await provider.list({"n": "1"})) == 3
        assert (await provider.create(SandboxSpec())).id


async def test_a_busy_or_draining_node_is_passed_over():
    """What one node refuses another makes; only when all refuse is that told, with the reason."""
    async with nodes(1, 8, look_s=0.05) as (servers, provider):
        async with NodeProvider(servers[0].url, TOKEN) as other:
            await provider.list()
            await other.create(SandboxSpec())  # behind the provider's back
            made = await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(3)))
            assert {one.link.node for one in made} == {servers[1].url}
        draining = asyncio.create_task(servers[1].drain(30))
        await asyncio.sleep(0)
        assert (await provider.create(SandboxSpec())).link.node == servers[0].url
        assert (await made[0].exec("echo goes on")).ok
        with pytest.raises(SandboxBusyError):
            await provider.create(SandboxSpec())
        await asyncio.gather(*(one.delete() for one in made))
        assert await draining
        await provider.delete_many({})
        with pytest.raises(SandboxUnsupportedError):
            await provider.create(SandboxSpec(image="no-such-image"))


async def test_images_and_keys_have_their_nodes():
    """An image goes to the same node every time; a repeated key gives the same sandbox."""
    async with nodes(8, 8, 8) as (_, provider):
        first = await provider.create(SandboxSpec(idempotency_key="k"))
        await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(4)))
        assert (await provider.create(SandboxSpec(idempotency_key="k"))).id == first.id
        spec = SandboxSpec(image="python:3.11-slim")
        assert len({(await provider.create(spec)).link.node for _ in range(3)}) == 1


@pytest.mark.allow_hosts(["127.0.0.1", "127.0.0.2", "127.0.0.3"])
async def test_one_name_is_many_nodes(monkeypatch):
    """A host name with several numbers is as many nodes; those that come later are found."""
    async with serving(host="127.0.0.1") as one:
        port = int(one.url.rsplit(":", 1)[1])
        known = ["127.0.0.1", "127.0.0.3"]  # nothing listens at the last
        resolve = asyncio.get_running_loop().getaddrinfo

        async def numbers(host, port, **options):
            if host != "nodes.test":
                return await resolve(host, port, **options)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port)) for number in known]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", numbers)
        async with NodesProvider([f"http://nodes.test:{port}"], TOKEN, patience=STEADY, look_s=0.05) as provider:
            made = [await provider.create(SandboxSpec()) for _ in range(2)]
            assert {sandbox.link.node for sandbox in made} == {one.url}
            async with serving(host="127.0.0.2", port=port) as two:
                known.append("127.0.0.2")

                async def found():
                    return two.url in {node.url for node in provider.nodes() if not node.why}

                await until(found)
                assert (await provider.create(SandboxSpec())).link.node == two.url


async def test_a_refusal_by_all_is_the_reason():
    """A wrong token and silence everywhere are told as what they are."""
    async with nodes(1, token="wrong") as (_, provider):
        with pytest.raises(ConfigError, match="token"):
            await provider.create(SandboxSpec())
    async with NodesProvider(["http://127.0.0.1:9", "http://127.0.0.1:10"], TOKEN, patience=STEADY) as nobody:
        with pytest.raises(SandboxSettingsError, match=r"127\.0\.0\.1:9.*127\.0\.0\.1:10") as never:
            await nobody.create(SandboxSpec())
        assert never.value.fatal and "sandboxd" in (never.value.hint or "")
    async with NodesProvider(["unix:nothere.sock"], TOKEN, patience=STEADY) as nobody:
        with pytest.raises(SandboxSettingsError, match=r"nothere\.sock"):
            await nobody.create(SandboxSpec())
    with pytest.raises(ConfigError):
        NodesProvider("http://127.0.0.1:9", TOKEN)


@pytest.mark.slow
async def test_one_daemon_of_three_is_killed_under_load():
    """Only the work on that daemon ends, with an error that names it; new work goes to the others, nothing is left."""
    word = f"79{os.getpid()}"
    async with Daemon() as one, Daemon() as two, Daemon() as three:
        urls = [daemon.url for daemon in (one, two, three)]
        async with NodesProvider(urls, TOKEN, patience=STEADY, look_s=0.2) as provider:
            made = await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(12)))
            assert set(Counter(sandbox.link.node for sandbox in made).values()) == {4}

            async def rollout(sandbox):
                for turn in range(1000):
                    result = await sandbox.exec(f"echo {turn}; sleep 0.01; : {word}")
                    assert result.stdout == b"%d\n" % turn
                    if stop.is_set():
                        return turn
                return None

            stop = asyncio.Event()
            running = [asyncio.create_task(rollout(sandbox)) for sandbox in made]
            lasting = asyncio.create_task(made[0].exec(f"sleep {word}", timeout=None))

            async def busy():
                return bool(alive_with(word))

            await until(busy)
            victim = next(daemon for daemon in (one, two, three) if daemon.url == made[0].link.node)
            await victim.end(signal.SIGKILL)
            again = await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(4)))
            assert victim.url not in {sandbox.link.node for sandbox in again}
            stop.set()
            outcomes = await asyncio.gather(*running, return_exceptions=True)
            for sandbox, outcome in zip(made, outcomes, strict=True):
                if sandbox.link.node == victim.url:
                    assert isinstance(outcome, (SandboxUnreachableError, SandboxDiedError)), outcome
                    assert victim.url in str(outcome)
                else:
                    assert isinstance(outcome, int), outcome
            with pytest.raises(SandboxUnreachableError):
                await lasting
            assert len(await provider.list()) == 12
            assert [node.url for node in provider.nodes() if node.why] == [victim.url]

        async def gone():
            return not alive_with(word)

        await until(gone)


@pytest.mark.slow
async def test_a_frozen_node_is_left_for_another():
    """A sandbox asked of a node that stands still is made by another as soon as the first is known to be lost."""
    async with Daemon() as daemon, serving() as server:
        urls = [daemon.url, server.url]
        async with NodesProvider(urls, TOKEN, patience=STEADY, look_s=0.2) as provider:
            await provider.list()
            daemon.process.send_signal(signal.SIGSTOP)
            for node in provider.nodes():
                node.provider.link.patience = replace(STEADY, probe=1.0)  # but a minute for an answer
            async with asyncio.timeout(30):  # a test that hangs is a failure
                made = await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(4)))
            assert {sandbox.link.node for sandbox in made} == {server.url}
            daemon.process.send_signal(signal.SIGCONT)

            async def back():
                return not any(node.why for node in provider.nodes())

            await until(back)
            assert {(await provider.create(SandboxSpec())).link.node for _ in range(2)} == {daemon.url}
