"""The programs of this folder, each as one text: a sandbox may have no `verifiers`, and another Python."""

from __future__ import annotations

import importlib.util
import marshal
from functools import cache
from pathlib import Path

from verifiers.programs import joined

GUEST = Path(__file__).parent
AGENT = (
    *("wire", "processes", "files", "trees", "starting", "job"),
    *("connection", "streams", "supervision", "agent", "main"),
)
"""Modules of the agent, each after those that it needs."""
OWN_MEMORY = 32
"""MiB that a sandbox has beyond its limit, for its own first process: that goes on when the limit is met."""
OWN_PIDS = 8
"""The same of processes: bubblewrap, the agent and its supervisors."""


@cache
def agent_source() -> bytes:
    """The agent, for Python 3.9 and later."""
    return joined(*(GUEST / "agent" / f"{name}.py" for name in AGENT)).encode()


@cache
def agent_code() -> bytes:
    """The agent as a .pyc of this interpreter: compiling it takes longer than starting it."""
    code = compile(agent_source(), "agent.py", "exec", dont_inherit=True, optimize=2)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


@cache
def keeper_source(worker: str) -> bytes:
    """The keeper of a session: with the shell, or with the interpreter."""
    return joined(GUEST / "keeper.py", GUEST / f"{worker}.py").encode()
