"""The interface of sandboxes without an event loop, written from the asynchronous one."""

import inspect
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from verifiers.errors import SandboxFileNotFoundError
from verifiers.sandboxes import sandbox, sessions, sync
from verifiers.sandboxes.local.provider import LocalProvider
from verifiers.sandboxes.spec import SandboxSpec, command

PAIRS = {
    getattr(module, name): getattr(sync, f"Sync{name}")
    for module, names in ((sandbox, ("Process", "Sandbox", "Provider")), (sessions, ("Session", "Interpreter")))
    for name in names
}


def methods(kind):
    """The public methods of instances, as name → names and defaults of their parameters."""
    return {
        name: [(one.name, one.kind, one.default) for one in inspect.signature(function).parameters.values()]
        for name, function in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize("kind", PAIRS, ids=lambda kind: kind.__name__)
def test_every_method_is_there_without_an_event_loop_with_the_same_signature(kind):
    """The two have the same public methods, parameters and defaults, and none of the second is a coroutine."""
    assert methods(kind) == methods(PAIRS[kind])
    assert methods(kind)
    assert not any(inspect.iscoroutinefunction(getattr(PAIRS[kind], name)) for name in methods(kind))
    assert ("__aexit__" in dir(kind)) == ("__exit__" in dir(PAIRS[kind]))


def test_the_file_is_what_its_script_writes():
    """Writing it again changes nothing."""
    script = Path(__file__).parents[2] / "scripts" / "sandboxes_sync.py"
    assert subprocess.run([sys.executable, script, "--check"]).returncode == 0


def test_sandboxes_are_used_without_an_event_loop(tmp_path):
    """Commands, processes, sessions, files and errors; the thread ends with the provider."""
    before = set(threading.enumerate())
    with sync.SyncProvider(LocalProvider(root=tmp_path)) as provider:
        level = provider.capabilities().isolation
        with provider.create(SandboxSpec(isolation=level, labels={"a": "b"})) as box:
            assert box.exec("echo hi").stdout_text == "hi\n"
            process = box.start(command("cat; echo end >&2"))
            process.write(b"in")
            process.close_stdin()
            assert {chunk.stream: chunk.data for chunk in process.output()} == {"stdout": b"in", "stderr": b"end\n"}
            with box.session() as session, box.interpreter() as python:
                session.run("A=1")
                assert session.run("echo $A").stdout == b"1\n"
                assert python.run("1 + 1").value == "2"
            with pytest.raises(SandboxFileNotFoundError):
                box.read("nowhere")
            assert [info.id for info in provider.list({"a": "b"})] == [box.id]
            claimed = provider.claim(box, SandboxSpec(isolation=level, labels={"c": "d"}))
            assert (claimed.id, provider.delete_many({"c": "d"})) == (box.id, 1)
            assert not box.alive()
    assert set(threading.enumerate()) <= before
