"""The programs that run in sandboxes, joined from their modules."""

import ast
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from verifiers.sandboxes.guest.program import agent_source, keeper_source

SOURCES = {
    "agent": agent_source,
    "shell": lambda: keeper_source("shell"),
    "interpreter": lambda: keeper_source("interpreter"),
}
ALLOWED = {"agent": {"_ctypes", "_signal", "_socket", "errno", "gc", "posix", "resource", "select", "sys", "time"}}
"""What costs nearly nothing to import. The agent's start is most of a sandbox's."""


def imported(tree: ast.Module) -> Iterator[str]:
    """The modules that a program imports, anywhere in it; not for the type checker."""
    run = [node for node in tree.body if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")]
    for node in (below for above in run for below in ast.walk(above)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)


def defined(tree: ast.Module) -> Iterator[str]:
    """The functions, classes and constants of a program."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (name.id for name in ast.walk(node) if isinstance(name, ast.Name) and name.id.isupper()
                        if isinstance(name.ctx, ast.Store))  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_a_program_is_one_text_of_the_standard_library(name):
    """Old versions of Python can read it, and it imports nothing of this package and nothing slow."""
    found = set(imported(ast.parse(SOURCES[name](), feature_version=(3, 9))))
    assert found and found <= ALLOWED.get(name, sys.stdlib_module_names)


@pytest.mark.parametrize("name", SOURCES)
def test_modules_of_a_program_have_no_name_in_common(name):
    """Joined they share one namespace: a second `send` would replace the first."""
    names = Counter(defined(ast.parse(SOURCES[name]())))
    assert len(names) > 20
    assert not [one for one, times in names.items() if times > 1 and one != "TYPE_CHECKING"]
