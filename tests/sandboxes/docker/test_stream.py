"""The streams that an engine attaches are put together again, however they are cut, and what is none ends them."""

import asyncio
import struct

import pytest
from hypothesis import given, settings, strategies as st

from verifiers.errors import SandboxCreationError, SandboxDiedError
from verifiers.sandboxes.docker.stream import Attached
from verifiers.sandboxes.host.channel import OUT, READY, Channel

HEAD = b"HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.multiplexed-stream\r\nUpgrade: tcp\r\n\r\n"


class Heard:
    """Keeps the frames of an id."""

    def __init__(self):
        self.frames = []

    def frame(self, kind, body):
        self.frames.append((kind, body))

    def lost(self, error):
        self.frames.append(error)


def framed(kind, number, body):
    return struct.pack("<IIB", len(body), number, kind) + body


def piece(stream, data):
    return struct.pack(">BxxxI", stream, len(data)) + data


@given(bodies=st.lists(st.binary(max_size=50), max_size=6), sizes=st.lists(st.integers(1, 40), min_size=1),
       cuts=st.lists(st.integers(1, 60)))  # fmt: skip
@settings(max_examples=60)
def test_frames_survive_any_cut(bodies, sizes, cuts):
    """Frames, the engine's pieces and what the network delivers are cut in ways that know nothing of each other."""

    async def play():
        channel, heard = Channel(), Heard()
        attached = Attached(channel)
        number = channel.open(heard)
        said = framed(READY, 0, b"1 1") + b"".join(framed(OUT, number, body) for body in bodies)
        stream, at, turn = HEAD, 0, 0
        while at < len(said):
            size = sizes[turn % len(sizes)]
            stream += piece(1, said[at : at + size]) + piece(2, b"w")
            at, turn = at + size, turn + 1
        at = 0
        for cut in [*cuts, len(stream)]:
            attached.data_received(stream[at : at + cut])
            at += cut
        assert attached.open.done() and channel.started.done()
        assert heard.frames == [(OUT, body) for body in bodies]
        assert attached.words == "w" * turn

    asyncio.run(play())


async def test_an_engine_that_refuses_is_quoted():
    """An answer that is no yes is a failed creation with the engine's words."""
    attached = Attached(Channel())
    attached.data_received(b'HTTP/1.1 404 Not Found\r\nContent-Length: 30\r\n\r\n{"message": "No such container"}')
    with pytest.raises(SandboxCreationError, match=r"404 Not Found.*No such container"):
        await attached.open
    attached = Attached(Channel())
    attached.connection_lost(None)
    with pytest.raises(SandboxCreationError, match="hung up"):
        await attached.open


@pytest.mark.parametrize("garbage", [b"\x07\0\0\0\0\0\0\x01x", b"\x01\0\0\0\xff\xff\xff\xff", b"HTTP/1.1 200"])
async def test_a_stream_that_is_none_ends_the_sandbox(garbage):
    """A piece of no known stream, or of gigabytes, is the end; nothing is waited for or kept."""
    channel, heard = Channel(), Heard()
    attached = Attached(channel)
    channel.open(heard)
    attached.data_received(HEAD + garbage)
    assert isinstance(heard.frames[0], SandboxDiedError)
