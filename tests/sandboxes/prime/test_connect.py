"""Messages of the gateway are those of protocol buffers, and streams are cut where they should be."""

import json

import pytest
from hypothesis import example, given, strategies as st

from verifiers.sandboxes.prime import connect
from verifiers.sandboxes.prime.connect import Envelopes, RpcError, envelope

SCHEMA = {
    "Spec": [("cmd", 1, "string"), ("args", 2, "string*"), ("envs", 3, "Pair*"), ("cwd", 4, "string")],
    "Pair": [("key", 1, "string"), ("value", 2, "string")],
    "Start": [("command", 1, "Spec"), ("stdin", 4, "bool")],
    "Selector": [("pid", 1, "uint32")],
    "Input": [("stdin", 1, "bytes")],
    "SendInput": [("session", 1, "Selector"), ("input", 2, "Input")],
    "StartEvent": [("pid", 1, "uint32")],
    "Data": [("stdout", 1, "bytes"), ("stderr", 2, "bytes")],
    "End": [("exit_code", 1, "sint32"), ("exited", 2, "bool"), ("status", 3, "string"), ("load", 9, "double")],
    "Event": [("start", 1, "StartEvent"), ("data", 2, "Data"), ("end", 3, "End"), ("keepalive", 4, "Selector")],
    "Response": [("event", 1, "Event")],
}
"""What is used of `command_session.proto`, and a field more, of a kind that we do not read."""


@pytest.fixture(scope="module")
def messages():
    """The same by the real library: classes by name."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    for name, parts in SCHEMA.items():
        message = file.message_type.add(name=name)
        for part, number, kind in parts:
            made = message.field.add(name=part, number=number, label=3 if kind.endswith("*") else 1)
            kind = kind.rstrip("*")
            if kind in SCHEMA:
                made.type, made.type_name = kinds.TYPE_MESSAGE, f".t.{kind}"
            else:
                made.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in SCHEMA}


@given(words=st.lists(st.text(max_size=300), min_size=1), env=st.dictionaries(st.text(), st.text()),
       pid=st.integers(1, 2**32 - 1), data=st.binary(max_size=1000))  # fmt: skip
def test_requests_are_read_by_the_real_library(messages, words, env, pid, data):
    """What we write is what it reads."""
    read = messages["Start"].FromString(connect.start_request(words[0], words[1:], env))
    assert (read.command.cmd, list(read.command.args), read.stdin) == (words[0], words[1:], True)
    assert {pair.key: pair.value for pair in read.command.envs} == env
    sent = messages["SendInput"].FromString(connect.input_request(pid, data))
    assert (sent.session.pid, sent.input.stdin) == (pid, data)


@given(pid=st.integers(0, 2**32 - 1), status=st.integers(-(2**31), 2**31 - 1), data=st.binary(max_size=1000))
def test_events_of_the_real_library_are_read(messages, pid, status, data):
    """What it writes is what we read, fields that we do not know included."""
    event, response = messages["Event"], messages["Response"]
    said = [
        event(start=messages["StartEvent"](pid=pid)), event(data=messages["Data"](stdout=data)),
        event(data=messages["Data"](stderr=b"x" + data)), event(keepalive=messages["Selector"]()),
        event(end=messages["End"](exit_code=status, exited=True, status="exit", load=0.5)),
    ]  # fmt: skip
    read = [connect.event(response(event=one).SerializeToString()) for one in said]
    assert read == [("start", pid), ("stdout", data), ("stderr", b"x" + data), ("", 0), ("end", status)]


@given(parts=st.lists(st.binary(max_size=40), max_size=6), cuts=st.lists(st.integers(1, 30)), failed=st.booleans())
def test_streams_are_cut_anywhere(parts, cuts, failed):
    """However the bytes come, the messages are the same, and the end is told after the last of them."""
    last = {"error": {"code": "not_found", "message": "m"}} if failed else {}
    stream = b"".join(map(envelope, parts)) + envelope(json.dumps(last).encode(), 2)
    cutter, found, at, pieces = Envelopes(), [], 0, []
    for cut in cuts:
        pieces.append(stream[at : at + cut])
        at += cut
    told = None
    for piece in [*pieces, stream[at:], b""]:
        try:
            found += cutter.feed(piece)
        except (RpcError, EOFError) as error:
            told = error
            break
    assert found == parts
    assert (type(told), getattr(told, "code", None)) == ((RpcError, "not_found") if failed else (EOFError, None))


@given(st.binary(max_size=60))
@example(b"\x08\x01")
@example(b"\x0a\x02\x10\x01")
def test_what_is_no_message_is_refused(data):
    """Any bytes are a message or `ValueError`."""
    try:
        kind, value = connect.event(data)
    except ValueError:
        return
    wanted = {"start": int, "stdout": bytes, "stderr": bytes, "end": int, "": int}
    assert isinstance(value, wanted[kind])
