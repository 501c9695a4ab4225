"""Records and errors arrive as what they were, whatever they hold."""

import asyncio

import pytest
from hypothesis import given, settings, strategies as st

from verifiers.errors import ConfigError, ProtocolError, SandboxBusyError, SandboxDiedError, SandboxError
from verifiers.sandboxes.node import wire
from verifiers.sandboxes.results import Capabilities, ExecResult
from verifiers.sandboxes.spec import Command, Mount, SandboxSpec, Secret

WORDS = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1, max_size=8)
TEXTS = st.dictionaries(WORDS, WORDS, max_size=2)
AMOUNTS = st.none() | st.integers(1, 1 << 40)


def sent(answer):
    """What arrives of an answer, after a sign of life."""

    async def read():
        stream = asyncio.StreamReader()
        stream.feed_data(wire.HEARTBEAT + wire.pack(answer))
        stream.feed_eof()
        return await wire.receive(stream)

    return asyncio.run(read())


@settings(max_examples=25)
@given(
    st.builds(
        SandboxSpec, image=WORDS, cpu=st.none() | st.floats(0.1, 8), memory=AMOUNTS, env=TEXTS, labels=TEXTS,
        network=st.sampled_from(["none", "open"]) | st.tuples(WORDS), idempotency_key=st.none() | WORDS,
        mounts=st.lists(st.builds(Mount, WORDS, WORDS), max_size=2).map(tuple),
    ),
    TEXTS,
)  # fmt: skip
def test_specifications_arrive(spec, secrets):
    """A specification arrives equal, its secrets revealed to the node alone."""
    record = wire.spec_record(spec) | {"secrets": secrets}
    arrived = wire.spec_of(sent(wire.Answer(record)).header)
    assert {name: secret.reveal() for name, secret in arrived.secrets.items()} == secrets
    assert wire.spec_record(arrived) == record
    assert repr(Secret("x")) not in repr(wire.spec_record(spec))


@settings(max_examples=25)
@given(
    st.builds(Command, command=WORDS | st.lists(WORDS, min_size=1, max_size=3).map(tuple), env=TEXTS,
              stdin=st.none() | st.binary(max_size=20), timeout=st.none() | st.floats(0.1, 9), cwd=st.none() | WORDS)
)  # fmt: skip
def test_commands_arrive(command):
    """A command arrives equal, with no input told from an empty one, and words that are no UTF-8."""
    record, stdin = wire.command_record(command)
    answer = sent(wire.Answer(record, (stdin, b"x")))
    assert wire.command_of(answer.header, answer.blobs[0]) == command


@settings(max_examples=25)
@given(st.builds(ExecResult, exit_code=st.none() | st.integers(0, 255), stdout=st.binary(max_size=9)))
def test_results_arrive(result):
    """How a command ended arrives equal."""
    assert wire.result_of(sent(wire.result_answer(result))) == result


def test_capabilities_arrive_from_newer_nodes():
    """What a provider can do arrives equal; a field that is not known here is passed over."""
    found = Capabilities(isolation="landlock", limits=frozenset({"memory"}), weak={"pids": "by user"})
    assert wire.capabilities_of(wire.capabilities_record(found) | {"later": 1}) == found


@pytest.mark.parametrize("error", wire.STATUS, ids=lambda one: one.__name__)
def test_errors_are_raised_as_they_were(error):
    """Each class of error arrives as itself with its message, and a platform's names its node."""
    status, answer = wire.error_answer(error("what it says"))
    assert (status >= 400, status) == (True, wire.STATUS[error])
    arrived = wire.error_of(sent(answer).header["error"], "http://node")
    assert type(arrived) is error
    assert "what it says" in str(arrived)
    assert ("http://node" in str(arrived)) == issubclass(error, SandboxError)


def test_details_of_errors_arrive():
    """Hints and times arrive; a class that does not travel comes as the nearest that does, a bug as a SandboxError."""
    busy = wire.error_of(wire.error_answer(SandboxBusyError("x", retry_after=2.5, hint="h"))[1].header["error"], "n")
    assert (busy.retry_after, busy.hint) == (2.5, "h")

    class LostError(SandboxDiedError):
        """Nobody else knows it."""

    assert type(wire.error_of(wire.error_answer(LostError("x"))[1].header["error"], "n")) is SandboxDiedError
    bug = wire.error_of(wire.error_answer(ZeroDivisionError("by zero"))[1].header["error"], "n")
    assert type(bug) is SandboxError
    assert "ZeroDivisionError: by zero" in str(bug)


def test_what_is_no_message_is_refused():
    """A header that is too long, no JSON or no object, and a specification of something else, have their errors."""
    for text in (b"{", b"[]", b"\xff"):
        with pytest.raises(ProtocolError):
            wire.unpack(len(text).to_bytes(4, "big") + text)

    async def read():
        stream = asyncio.StreamReader()
        stream.feed_data(b"\xff\xff\xff\xff")
        await wire.receive(stream)

    with pytest.raises(ProtocolError):
        asyncio.run(read())
    for record in ({"colour": 1}, {"mounts": [1]}, {"secrets": 5}, {"cpu": -1}, {"workdir": 5}):
        with pytest.raises(ConfigError):
            wire.spec_of(record)
