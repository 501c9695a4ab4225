"""The programs that run in sandboxes (`guest/`), each joined from its modules to one file without the package.

A sandbox may have no `verifiers`, another Python and nowhere to put files: what enters it is one text. Joined, modules
share their names, so that what one imports from another is there already, and that line is left out.
"""

from __future__ import annotations

import ast
import importlib.util
import marshal
from functools import cache
from pathlib import Path

GUEST = Path(__file__).parent
AGENT = (
    *("wire", "processes", "files", "trees", "starting", "job"),
    *("connection", "streams", "supervision", "agent", "main"),
)
"""Modules of the agent, each after those that it needs."""


@cache
def agent_source() -> bytes:
    """The agent, for Python 3.9 and later."""
    return _joined([GUEST / "agent" / f"{name}.py" for name in AGENT])


@cache
def agent_code() -> bytes:
    """The agent as a .pyc of this interpreter: compiling it takes longer than starting it."""
    code = compile(agent_source(), "agent.py", "exec", dont_inherit=True, optimize=2)
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


@cache
def keeper_source(worker: str) -> bytes:
    """The keeper of a session: with the shell, or with the interpreter."""
    return _joined([GUEST / "keeper.py", GUEST / f"{worker}.py"])


def _joined(paths: list[Path]) -> bytes:
    return "\n".join(_without_imports(path.read_text(), first=path == paths[0]) for path in paths).encode()


def _without_imports(text: str, *, first: bool) -> str:
    """Leave out what comes from other modules of the guest. What the first takes from `__future__` counts for all."""
    lines = text.splitlines()
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            future = node.module == "__future__" and not first
            if future or node.module.startswith("verifiers."):
                del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines) + "\n"
