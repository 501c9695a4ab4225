"""The host's side of the connection against an agent that lies."""

import asyncio
import contextlib
import os
import socket
import struct

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from verifiers.errors import SandboxDiedError, SandboxError, SandboxPathError
from verifiers.sandboxes.guest.agent import wire
from verifiers.sandboxes.host.channel import Channel
from verifiers.sandboxes.host.sandbox import GuestSandbox
from verifiers.sandboxes.spec import SandboxSpec


class Lied(GuestSandbox):
    """A sandbox whose agent is `say`: bytes that are sent for every frame that comes."""

    def judge(self, result):
        return result

    async def usage(self):
        raise NotImplementedError

    async def delete(self):
        self.channel.fail(SandboxDiedError("deleted"))


def frame(kind, number, body=b""):
    return struct.pack("<IIB", len(body), number, kind) + body


async def lied(answers):
    """A sandbox whose agent answers the n-th request with the n-th of `answers`, then hangs up."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    channel = Channel()
    await loop.create_unix_connection(lambda: channel, sock=ours)

    async def agent():
        with theirs:
            for answer in answers:
                if not await loop.sock_recv(theirs, 1 << 20):
                    return
                await loop.sock_sendall(theirs, answer)

    task = asyncio.create_task(agent())
    return Lied("lied", SandboxSpec(), channel, {}), task


async def outcome(use, *answers):
    """What becomes of `use(sandbox)`."""
    sandbox, task = await lied(answers)
    try:
        async with asyncio.timeout(20):
            return await use(sandbox)
    finally:
        await sandbox.delete()
        await asyncio.gather(task, return_exceptions=True)


END = b"0 0 0 5 5 5 0 0 0"
BROKEN = {
    "a length of gigabytes": struct.pack("<IIB", 1 << 31, 1, wire.OUT),
    "an unknown kind": frame(77, 1),
    "a kind that only the host sends": frame(wire.RUN, 1),
    "an answer for a file": frame(wire.REPLY, 1),
    "an end without numbers": frame(wire.END, 1, b"none"),
    "an end with too few": frame(wire.END, 1, b"0 0"),
    "an end with a negative": frame(wire.END, 1, b"-1 0 0 5 5 5 0 0 0"),
    "an unknown reason": frame(wire.END, 1, b"0 0 0 5 5 5 99 0 0"),
    "a huge number": frame(wire.END, 1, b"9" * 500 + b" 0 0 5 5 5 0 0 0"),
    "a second end": frame(wire.END, 1, b"0 0 0 5 5 5 0 1 0") + frame(wire.END, 1, END),
    "more output than asked for": frame(wire.OUT, 1, b"x" * 101),
    "a handshake of a later version": frame(wire.READY, 0, b"999 1"),
    "nothing at all": b"",
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
async def test_what_is_no_message_ends_the_sandbox(answer):
    """It is a dead sandbox, an error of the platform: never a result, never a hang, and no other exception."""
    with pytest.raises(SandboxDiedError):
        await outcome(_twice, answer)


async def _twice(sandbox):
    await sandbox.exec("true", max_output=100)
    await sandbox.exec("true", max_output=100)


async def test_frames_for_nobody_are_dropped():
    """An id that nobody waits for is nobody's output."""
    answer = frame(wire.OUT, 4711, b"forged") + frame(wire.END, 4711, END) + frame(wire.OUT, 1, b"x")
    result = await outcome(lambda sandbox: sandbox.exec("true"), answer + frame(wire.END, 1, END))
    assert (result.stdout, result.ok) == (b"x", True)


async def test_counts_are_no_smaller_than_what_came():
    """An agent cannot make kept output look like none."""
    answer = frame(wire.OUT, 1, b"x" * 10) + frame(wire.END, 1, END)
    assert (await outcome(lambda sandbox: sandbox.exec("true"), answer)).stdout_bytes == 10


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pieces=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.builds(frame, st.integers(0, 30), st.integers(0, 3), st.binary(max_size=40)),
            st.builds(
                lambda kind, numbers: frame(kind, 1, b" ".join(b"%d" % one for one in numbers)),
                st.sampled_from([wire.END, wire.CREDIT, wire.FAIL, wire.STARTED]),
                st.lists(st.integers(-2, 1 << 70), max_size=10),
            ),
        ),
        min_size=1,
        max_size=6,
    ),
    use=st.sampled_from(["exec", "read", "stat", "list", "download", "alive"]),
)
def test_no_words_of_an_agent_raise_anything_else(pieces, use, tmp_path_factory):
    """Whatever bytes come, a call returns a result or raises an error of sandboxes."""
    target = tmp_path_factory.mktemp("lied") / "target"
    calls = {
        "exec": lambda sandbox: sandbox.exec("true"),
        "read": lambda sandbox: sandbox.read("x"),
        "stat": lambda sandbox: sandbox.stat("x"),
        "list": lambda sandbox: sandbox.list("x"),
        "download": lambda sandbox: sandbox.download("x", target),
        "alive": lambda sandbox: sandbox.alive(),
    }
    with contextlib.suppress(SandboxError, SandboxPathError):
        asyncio.run(outcome(calls[use], b"".join(pieces)))
    assert os.listdir(target.parent) in ([], ["target"])
