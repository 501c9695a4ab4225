"""The daemon's own promises: who may come in, what it tells, how it ends."""

import asyncio
import stat
from collections import Counter

import aiohttp
import pytest

from tests.support.faulty_provider import FaultyProvider
from tests.support.nodes import TOKEN, serving
from verifiers.errors import ConfigError, SandboxBusyError, SandboxDiedError, SandboxUnsupportedError
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.node.client import NodeProvider, NodeSandbox
from verifiers.sandboxes.node.holdings import Holdings
from verifiers.sandboxes.node.once import Once
from verifiers.sandboxes.node.server import NodeServer
from verifiers.sandboxes.node.wire import BEAT, KEY, Answer, receive
from verifiers.sandboxes.sandbox import Provider
from verifiers.sandboxes.spec import Mount, SandboxSpec


async def get(url, path, token=TOKEN, method="GET", **options):
    """Status and JSON (or text) of an answer."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, url + path, **options) as reply,
    ):
        return reply.status, (await reply.json() if reply.content_type == "application/json" else await reply.text())


async def test_health_tells_strangers_nothing(server, provider):
    """Without the token a node says only that it is there; with it, how much room it has."""
    await provider.create(SandboxSpec())
    assert await get(server.url, "/health", token=None) == (200, {"status": "ok"})
    status, found = await get(server.url, "/health")
    assert (status, found["alive"], found["starting"], found["capacity"]) == (200, 1, 0, 200)
    for path, method in (("/metrics", "GET"), ("/sandboxes", "GET"), ("/drain", "POST")):
        assert (await get(server.url, path, token=None, method=method))[0] == 401


async def test_any_client_can_use_it(server, provider):
    """The routes take and give plain JSON, and errors with their class."""
    sandbox = await provider.create(SandboxSpec(labels={"run": "r"}))
    path = f"/sandboxes/{sandbox.id}"
    status, made = await get(server.url, f"{path}/start", method="POST", json={"command": "sleep 1000"})
    assert (status, (await sandbox.attach(made["process"])).id) == (200, made["process"])
    status, told = await get(server.url, f"{path}/read", method="POST", json={"path": "x", "offset": 0})
    assert (status, told["error"]["type"]) == (404, "SandboxFileNotFoundError")
    for body in ({"command": 5}, {"nonsense": 1}, {}):
        status, told = await get(server.url, f"{path}/exec", method="POST", json=body)
        assert (status, told["error"]["type"]) == (400, "ConfigError"), body
    assert (await get(server.url, f"{path}/fly", method="POST", json={}))[0] == 400
    assert (await get(server.url, f"{path}/exec", method="POST", data=b"{"))[0] == 400
    assert (await get(server.url, "/nowhere"))[0] == 404
    listed = (await get(server.url, "/sandboxes"))[1]["sandboxes"]
    assert [(one["id"], one["labels"]) for one in listed] == [(sandbox.id, {"run": "r"})]


async def test_images_are_those_of_the_folder_alone(tmp_path):
    """No name leads out of it: `..` would be whatever the folder lies in, the machine's own root perhaps."""
    (tmp_path / "usr").mkdir()
    (tmp_path / "images").mkdir()
    async with serving(images=tmp_path / "images") as server, NodeProvider(server.url, token=TOKEN) as provider:
        for name in ("..", ".", "../images", str(tmp_path)):
            with pytest.raises(SandboxUnsupportedError, match="this node has no image"):
                await provider.create(SandboxSpec(image=name))


async def test_figures_are_for_prometheus(server, provider):
    """What was done, how long it took and what failed is counted."""
    sandbox = await provider.create(SandboxSpec())
    for _ in range(3):
        await sandbox.exec("true")
    with pytest.raises(FileNotFoundError):
        await sandbox.read("missing")
    lines = (await get(server.url, "/metrics"))[1].splitlines()
    assert "sandboxd_sandboxes_alive 1" in lines
    assert 'sandboxd_requests_total{what="exec"} 3' in lines
    assert 'sandboxd_errors_total{type="SandboxFileNotFoundError"} 1' in lines
    assert any(line.startswith('sandboxd_request_seconds_total{what="exec"} 0.') for line in lines)


async def test_capacity_is_a_busy_answer():
    """A node that has all its sandboxes says so, and when to ask again; one that ends makes room."""
    async with serving(capacity=2) as server, NodeProvider(server.url, TOKEN) as provider:
        outcomes = await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(5)), return_exceptions=True)
        made = [one for one in outcomes if not isinstance(one, SandboxBusyError)]
        assert len(made) == 2
        await made[0].delete()
        assert (await provider.create(SandboxSpec())).id


async def test_draining_waits_and_then_ends(server, provider):
    """A draining node makes no more, lets what is there work, and is done when that has ended."""
    sandbox = await provider.create(SandboxSpec())
    assert not await server.drain(0.05)
    with pytest.raises(SandboxBusyError, match="shut down"):
        await provider.create(SandboxSpec())
    assert (await provider.health())["status"] == "draining"
    working = asyncio.create_task(sandbox.exec("sleep 0.2; echo done"))
    draining = asyncio.create_task(server.drain(30))
    assert (await working).stdout == b"done\n"
    await sandbox.delete()
    assert await draining


async def test_a_client_that_leaves_takes_its_sandboxes_only(server, provider):
    """Two clients of one node see and end their own sandboxes; either can be handed the other's by its id."""
    mine = await provider.create(SandboxSpec())
    async with NodeProvider(server.url, TOKEN) as other:
        theirs = await other.create(SandboxSpec())
        shared = await other.get(mine.id)
        assert {info.id for info in await other.list()} == {theirs.id, shared.id}
        assert await provider.delete_many({}) == 1
        mine = await provider.create(SandboxSpec())
    with pytest.raises(SandboxDiedError, match="owner has left"):
        await NodeSandbox(provider.link, theirs.id, theirs.spec, theirs.isolation).exec("true")
    assert (await mine.exec("echo on")).ok


async def test_a_sandbox_that_is_asked_for_outlives_the_owner_who_leaves_meanwhile(server, provider, monkeypatch):
    """Who asks by its id holds it from then on, not only once it has answered."""
    sandbox = await provider.create(SandboxSpec())
    held = server._routes.held
    (owner,) = held._held[sandbox.id].owners
    inner = held.sandbox(sandbox.id)
    answers = inner.alive

    async def alive():
        await held.end(owner, "its owner has left")
        return await answers()

    monkeypatch.setattr(inner, "alive", alive)
    async with NodeProvider(server.url, TOKEN) as other:
        assert (await (await other.get(sandbox.id)).exec("echo on")).ok


async def test_a_sandbox_that_is_deleted_while_it_is_claimed_is_held_by_nobody():
    """The claim says that it is gone, and why; nothing is left that no owner could end."""
    provider, go = FaultyProvider(), asyncio.Event()

    async def claim(sandbox, spec):
        await go.wait()
        return await Provider.claim(provider, sandbox, spec)

    provider.claim = claim
    held = Holdings(provider, Once(), Counter(), lease=60)
    sandbox = await provider.create(SandboxSpec())
    held.hold(sandbox, "its owner")
    claiming = asyncio.create_task(held.claim(sandbox, SandboxSpec()))
    await asyncio.sleep(0)
    await held.delete(sandbox.id, "it was deleted")
    go.set()
    with pytest.raises(SandboxDiedError, match="it was deleted"):
        await claiming
    assert len(held) == 0 and not provider.there


async def test_paths_of_the_node_are_not_the_clients(tmp_path):
    """No mount, and no folder as an image, unless the node was started so."""
    async with serving() as server, NodeProvider(server.url, TOKEN) as provider:
        assert not (await provider.capabilities()).mounts
        for spec in (SandboxSpec(mounts=(Mount("/etc", "/data"),)), SandboxSpec(image="/"), SandboxSpec(image="../etc"),
                     SandboxSpec(image="verifiers")):  # fmt: skip
            with pytest.raises(SandboxUnsupportedError):
                await provider.create(spec)
        assert await provider.list() == []


async def test_a_unix_socket_is_its_owners(tmp_path):
    """On a unix socket no token is needed: only its owner can open it, and only one can listen. TCP needs a token."""
    async with LocalProvider() as local:
        with pytest.raises(ConfigError, match="token"):
            await NodeServer(local, token=None).start_tcp()
        server = NodeServer(local, token=None)
        url = await server.start_unix(tmp_path / "socket")
        try:
            assert stat.S_IMODE((tmp_path / "socket").stat().st_mode) == 0o600
            async with NodeProvider(url) as provider:
                sandbox = await provider.create(SandboxSpec())
                assert (await sandbox.exec("echo hi")).stdout == b"hi\n"
                with pytest.raises(ConfigError, match="listens"):
                    await NodeServer(local, token=None).start_unix(tmp_path / "socket")
                assert await sandbox.alive()
        finally:
            await server.stop()
        await server.start_unix(tmp_path / "socket")  # one that was left behind is in nobody's way
        await server.stop()


async def test_once_keeps_keys_longer_than_outcomes():
    """A key's work is done once; an outcome that had to make room is an error when asked for, never a second launch."""
    once, done = Once(kept_bytes=1000), []

    async def work():
        done.append(1)
        return Answer({}, (bytes(800),))

    for key in ("a", "a", "b", "a"):
        await asyncio.wait({once.begin(key, "", work).task})
    assert len(done) == 2
    forgotten = once.begin("a", "", work)
    await asyncio.wait({forgotten.task})
    assert forgotten.outcome()[0] == 500
    assert "no longer kept" in forgotten.outcome()[1].header["error"]["message"]
    await once.cancel("c")
    late = once.begin("c", "", work)
    await asyncio.wait({late.task})
    assert (late.outcome()[0], len(done)) == (500, 2)
    once.forget("b")
    await asyncio.wait({once.begin("b", "", work).task})
    assert len(done) == 3


async def test_a_key_is_not_forgotten_in_the_moment_of_its_end():
    """Tidying up between the end of some work and the note of when that was does not make it be done again."""
    once, done = Once(), []

    async def work():
        done.append(1)
        asyncio.get_running_loop().call_soon(once.prune)
        return Answer({})

    for _ in range(2):
        await asyncio.wait({once.begin("k", "", work).task})
    assert done == [1]


async def test_a_cancelled_create_whose_answer_is_on_its_way_is_taken_back(server, provider):
    """A sandbox that was made for somebody who has given up meanwhile is deleted."""
    link = provider.link
    await provider.health()
    key = "f" * 32

    async def create():
        headers = {"Idempotency-Key": key, "Sandbox-Owner": link.owner, "Authorization": f"Bearer {TOKEN}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(server.url + "/sandboxes", json={"spec": {}}) as reply,
        ):
            return await reply.json()

    made = await create()
    assert (await provider.health())["alive"] == 1
    await link._cancel(key)
    assert (await provider.health())["alive"] == 0
    assert (await create())["id"] == made["id"]  # the answer of then; nothing is made


async def test_signs_of_life_come_while_work_goes_on(server, provider):
    """A long answer begins with as many signs of life as were asked for; a client that hangs up kills nothing."""
    sandbox = await provider.create(SandboxSpec())
    headers = {"Authorization": f"Bearer {TOKEN}", BEAT: "0.05", KEY: "e" * 32}
    url = f"{server.url}/sandboxes/{sandbox.id}/exec"
    body = {"command": "echo x; read go < fifo; echo y", "timeout": None}
    await sandbox.exec("mkfifo fifo")
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(url, json=body) as reply:
            assert await reply.content.readexactly(12) == bytes(12)
        await sandbox.exec("echo > fifo")
        async with session.post(url, json=body) as reply:
            answer = await receive(reply.content)
    assert (answer.header["exit_code"], answer.blobs[0]) == (0, b"x\ny\n")
