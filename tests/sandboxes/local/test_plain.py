"""The launcher of the level without namespaces: what a process can no longer do once it is the agent."""

from __future__ import annotations

import json
import os
import py_compile
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from verifiers.errors import SandboxUnsupportedError
from verifiers.sandboxes.local import identity, plain, probe

try:
    probe.require("landlock")
except SandboxUnsupportedError as error:
    pytest.skip(f"no landlock here: {error}", allow_module_level=True)

AGENT = '''
import json, os, signal, socket, sys
HOST, SECRET, PID = {host!r}, {secret!r}, {pid!r}

def tried(action):
    try:
        return action() or "done"
    except OSError as error:
        return type(error).__name__

def write(path):
    with open(path, "w") as file:
        file.write("x")

def read(path):
    with open(path, "rb") as file:
        file.read(1)

def main():
    answers = {{
        "write here": tried(lambda: write("mine")),
        "read here": tried(lambda: read("mine")),
        "run": tried(lambda: os.spawnlp(os.P_WAIT, "sh", "sh", "-c", "exit 0")),
        "null": tried(lambda: write("/dev/null")),
        "write there": tried(lambda: write(HOST + "/planted")),
        "read there": tried(lambda: read(SECRET)),
        "truncate there": tried(lambda: os.truncate(SECRET, 0)),
        "signal": tried(lambda: os.kill(PID, signal.SIGTERM)),
        "environ": tried(lambda: read("/proc/%d/environ" % PID)),
        "shadow": tried(lambda: read("/etc/shadow")),
        "udp": tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        "tcp": tried(lambda: socket.socket(socket.AF_INET6)),
        "unix": tried(lambda: socket.socket(socket.AF_UNIX)),
        "pair": tried(lambda: bool(socket.socketpair()) and None),
        "root again": tried(lambda: os.setuid(0)) if os.getuid() else "PermissionError",
    }}
    socket.socket(fileno=int(sys.argv[1])).send(json.dumps(answers).encode())
'''


def _compiled(folder: Path, source: str) -> Path:
    (folder / "agent.py").write_text(source)
    return Path(py_compile.compile(str(folder / "agent.py"), str(folder / "agent.pyc"), doraise=True))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that other users can enter, unlike `tmp_path`: what stops the process is not what stops them."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_confined_process_writes_to_one_directory_and_reaches_nobody(folder: Path) -> None:
    """Files, signals, memory of other processes and sockets of every kind; programs and pairs of sockets work."""
    secret, own = folder / "secret", folder / "own"
    secret.write_text("secret")
    secret.chmod(0o666)
    own.mkdir()
    uid = identity.blocks_here()[0] + 5 if identity.blocks_here()[1] else None
    if uid is not None:
        os.chown(own, uid, uid)
    agent = _compiled(folder, AGENT.format(host=str(folder), secret=str(secret), pid=os.getpid()))
    limits = plain.confined(own, uid=uid, network=False, version=plain.abi()[0])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        line = plain.launcher(sys.executable, agent, limits, str(theirs.fileno()))
        done = subprocess.run(line, pass_fds=[theirs.fileno()], env={}, capture_output=True, timeout=60, check=False)
        theirs.close()
        answers = json.loads(ours.recv(1 << 16) or b"{}")
    allowed = {"write here", "read here", "run", "null", "pair"}
    assert {name for name, answer in answers.items() if answer == "done"} == allowed, (answers, done.stderr)
    assert answers["udp"] == answers["unix"] == "OSError"
    assert secret.read_text() == "secret"


def test_what_cannot_be_given_up_stops_the_start(tmp_path: Path) -> None:
    """A process that is not confined never becomes the agent."""
    agent = _compiled(tmp_path, "def main():\n    print('ran')\n")
    limits = plain.Confined(directory=str(tmp_path), rules=((str(tmp_path), 1 << 40),), handled=1 << 40)
    line = plain.launcher(sys.executable, agent, limits)
    done = subprocess.run(line, env={}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "landlock" in done.stderr
