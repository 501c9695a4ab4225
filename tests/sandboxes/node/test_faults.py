"""What breaks between a client and its node: nothing is launched twice, nothing waits for ever, errors have names."""

import asyncio
import os
import signal
import sys

import pytest

from tests.support.hostile_proxy import MODES, HostileProxy
from tests.support.nodes import HASTY, STEADY, TOKEN, Daemon, alive_with, serving
from tests.support.sandbox_providers import until
from verifiers.errors import ConfigError, SandboxDiedError, SandboxUnreachableError
from verifiers.sandboxes.node.client import NodeProvider
from verifiers.sandboxes.spec import SandboxSpec, command


async def test_broken_connections_launch_once(server):
    """Wherever the connection breaks, a sandbox is made once, a command runs once, input arrives once."""
    async with HostileProxy(server.url) as proxy, NodeProvider(proxy.url, TOKEN, patience=STEADY) as provider:
        await provider.health()
        for mode in MODES:
            proxy.plan.append(mode)
            sandbox = await provider.create(SandboxSpec())
            assert len(await provider.list()) == 1, mode
            proxy.plan.append(mode)
            result = await sandbox.exec("echo ran >> log; head -c 300000 /dev/zero", stdin=bytes(300_000))
            assert (result.exit_code, len(result.stdout)) == (0, 300_000)
            proxy.plan.append(mode)
            process = await sandbox.start(command("echo ran >> log; wc -c"))
            for _ in range(2):
                proxy.plan.append(mode)
                await process.write(bytes(400_000))
            await process.close_stdin()
            assert (await process.wait()).stdout.split() == [b"800000"]
            proxy.plan.append(mode)
            assert await sandbox.read("log") == b"ran\nran\n", mode
            proxy.plan.append(mode)
            await sandbox.remove("log")
            proxy.plan.append(mode)
            await sandbox.delete()
            assert await provider.list() == []
        assert proxy.dropped == 8 * len(MODES)
        assert not proxy.plan


async def test_a_stream_that_breaks_goes_on_where_it_was(server):
    """Output that is read over connections that break comes whole and in order."""
    async with HostileProxy(server.url) as proxy, NodeProvider(proxy.url, TOKEN, patience=STEADY) as provider:
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.start(command("seq 30000; read x; seq 30000", max_output=1 << 20))
        proxy.plan.extend(("within the answer", "after", "before", "within the answer"))
        heard = b""
        async for chunk in process.output():
            assert chunk.offset == len(heard)
            heard += chunk.data
            if heard.endswith(b"\n30000\n") and heard.count(b"\n30000\n") == 1:
                await process.write(b"\n")
        assert heard == b"".join(b"%d\n" % number for number in range(1, 30001)) * 2
        assert proxy.dropped == 4


async def test_a_node_that_can_not_be_reached_is_named(server):
    """When every attempt breaks the error says which node, and whether it answers."""
    async with HostileProxy(server.url) as proxy, NodeProvider(proxy.url, TOKEN, patience=STEADY) as provider:
        sandbox = await provider.create(SandboxSpec())
        proxy.plan.extend(["before"] * STEADY.attempts)
        with pytest.raises(SandboxUnreachableError, match=f"{proxy.url} answers, but"):
            await sandbox.exec("true")
        proxy.plan.extend(["before"] * 20)
        with pytest.raises(SandboxUnreachableError, match=f"{proxy.url} does not answer"):
            await sandbox.exec("true")
        proxy.plan.clear()
        assert (await sandbox.exec("echo on")).ok
    nobody = NodeProvider("http://127.0.0.1:9", TOKEN, patience=STEADY)
    with pytest.raises(SandboxUnreachableError, match=r"127\.0\.0\.1:9"):
        await nobody.create(SandboxSpec())
    await nobody.close()


async def test_the_wrong_token_is_told(server):
    """A wrong token, none, and something else that listens there are three clear errors."""
    for token, text in (("wrong", "does not know the token"), ("", "asks for a token")):
        async with NodeProvider(server.url, token, patience=STEADY) as stranger:
            for use in (stranger.create(SandboxSpec()), stranger.list(), stranger.capabilities()):
                with pytest.raises(ConfigError, match=text) as told:
                    await use
                assert "VF_SANDBOXD_TOKEN" in told.value.hint
    with pytest.raises(ConfigError, match="no address"):
        NodeProvider("10.0.0.1:80", TOKEN)


async def test_sandboxes_of_a_silent_owner_end(tmp_path):
    """A client that is killed is noticed: its sandboxes end with the lease; those that another holds live."""
    program = (
        "import asyncio, sys\nfrom verifiers.sandboxes.node.client import NodeProvider\n"
        "from verifiers.sandboxes.spec import SandboxSpec\n"
        "async def main():\n    provider = NodeProvider(sys.argv[1], sys.argv[2])\n"
        "    for _ in range(2): print((await provider.create(SandboxSpec())).id, flush=True)\n"
        "    await asyncio.sleep(1000)\nasyncio.run(main())"
    )
    async with serving(lease=1.0) as server, NodeProvider(server.url, TOKEN, patience=STEADY) as provider:
        victim = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, server.url, TOKEN, stdout=asyncio.subprocess.PIPE
        )
        ids = [(await victim.stdout.readline()).decode().strip() for _ in range(2)]
        adopted = await provider.get(ids[0])
        assert (await provider.health())["alive"] == 2
        victim.kill()
        await victim.wait()

        async def one_is_left():
            return (await provider.health())["alive"] == 1

        await until(one_is_left)
        assert (await adopted.exec("echo on")).ok
        with pytest.raises(KeyError):
            await provider.get(ids[1])


@pytest.mark.slow
async def test_a_frozen_node_is_told_in_time_and_thaws():
    """While a daemon stands still every call ends with an error; afterwards its sandboxes are still there."""
    async with Daemon("--lease", "2") as daemon, NodeProvider(daemon.url, TOKEN, patience=STEADY) as provider:
        sandbox = await provider.create(SandboxSpec())
        process = await sandbox.start(command("echo x; sleep 7811", timeout=None))
        provider.link.patience = HASTY
        running = asyncio.create_task(sandbox.exec("sleep 7812", timeout=None))
        stream = process.output()
        await anext(stream)
        daemon.process.send_signal(signal.SIGSTOP)
        calls = [
            running,
            sandbox.exec("true"),
            sandbox.exec("true", stdin=bytes(20_000_000)),
            sandbox.read("x"),
            process.wait(),
            anext(stream),
            provider.create(SandboxSpec()),
            provider.list(),
        ]
        async with asyncio.timeout(60):  # a test that hangs is a failure
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for outcome in outcomes:
            assert isinstance(outcome, SandboxUnreachableError), outcome
            assert daemon.url in str(outcome)
        daemon.process.send_signal(signal.SIGCONT)

        async def works():
            try:
                return (await sandbox.exec("echo on")).ok
            except SandboxUnreachableError:
                return False

        await until(works)


@pytest.mark.slow
async def test_a_killed_daemon_leaves_nothing_and_its_successor_says_so():
    """After SIGKILL no process of its sandboxes lives; the daemon that follows at the same address has none of them."""
    word = f"78{os.getpid()}"
    async with Daemon() as daemon, NodeProvider(daemon.url, TOKEN, patience=STEADY) as provider:
        sandbox = await provider.create(SandboxSpec())
        running = asyncio.create_task(sandbox.exec(f"setsid sleep {word} & sleep {word}", timeout=None))

        async def seen():
            return len(alive_with(word)) >= 2

        await until(seen)
        await daemon.end(signal.SIGKILL)
        with pytest.raises(SandboxUnreachableError, match="does not answer"):
            await running

        async def gone():
            return not alive_with(word)

        await until(gone)
        async with Daemon(port=int(daemon.url.rsplit(":", 1)[1])):
            with pytest.raises(SandboxDiedError):
                await sandbox.exec("true")
            assert not await sandbox.alive()
            assert (await (await provider.create(SandboxSpec())).exec("echo on")).ok
