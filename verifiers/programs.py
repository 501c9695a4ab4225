"""Programs that run where this package is not, in a sandbox: modules of it, joined to one text.

    source = joined(folder / "code_data.py", folder / "code_judge.py")

Joined, modules share their names: what one imports from another is there already, and that line is left out.
"""

from __future__ import annotations

import ast
from pathlib import Path


def joined(*paths: Path) -> str:
    """The modules as one, each after those that it needs. Beside them they import the standard library only."""
    return "\n".join(_without_imports(path.read_text(), first=path == paths[0]) for path in paths)


def _without_imports(text: str, *, first: bool) -> str:
    """Leave out what comes from this package. What the first module takes from `__future__` counts for all."""
    lines = text.splitlines()
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            future = node.module == "__future__" and not first
            if future or node.module.startswith("verifiers."):
                del lines[node.lineno - 1 : node.end_lineno]
    return "\n".join(lines) + "\n"
