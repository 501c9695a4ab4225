"""Whose a name in test code is: the submission's, or that of the tests, which the submission must not answer for.

A submission that evaluated `Counter("aab")`, `WANT` or `near(f(1), 2)` could say what it is compared with: it may put
anything at these names. So only what nobody else gives is the submission's.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Collection, Iterator

from verifiers.grading.code_data import PREDICATES

_OTHERS = {"np": "numpy", "pd": "pandas", **dict.fromkeys(("numpy", "pandas", "pytest", "scipy", "sympy", "torch"), "")}
"""What test code calls libraries that are not Python's own, and their names where those are others."""
_CLASSES = dict.fromkeys(("Counter", "OrderedDict", "defaultdict", "deque"), "collections")
_CLASSES |= {"Decimal": "decimal", "Fraction": "fractions", "timedelta": "datetime"}


def bound(tree: ast.AST) -> set[str]:
    """The names that code gives by itself."""
    given: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            given.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            given.add(node.name)
        elif isinstance(node, ast.alias):
            given.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            given.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            given.add(node.name)
    return given


def used(tree: ast.AST) -> set[str]:
    """All names in it."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def free(tree: ast.AST) -> set[str]:
    """The names that code uses and nobody gives."""
    return used(tree) - bound(tree) - set(vars(builtins))


def imports(tree: ast.AST) -> dict[str, str]:
    """The import that gives it, by each free name of libraries: published tests rely on those of the solution.

    A class that is known from a library may be what is asked for, if the code uses nothing else.
    """
    found = {name: _import(name) for name in free(tree) & _modules(tree)}
    classes = free(tree) & _CLASSES.keys()
    if free(tree) - found.keys() - classes:
        found |= {name: f"from {_CLASSES[name]} import {name}" for name in classes}
    return found


def _modules(tree: ast.AST) -> set[str]:
    """Names that are used as modules are: with an attribute, and never called."""
    nodes = list(ast.walk(tree))
    called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    dotted = {node.value.id for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)}
    return (dotted - called) & (sys.stdlib_module_names | _OTHERS.keys())


def _import(name: str) -> str:
    return f"import {_OTHERS[name]} as {name}" if _OTHERS.get(name) else f"import {name}"


def is_judged(node: ast.AST, tests: Collection[str]) -> bool:
    """Whether what belongs to the submission by its beginning is the tests' to evaluate after all: what `tests` names,
    and what says yes or no about the result of a function. Of an object of a class under test, it is the class's."""
    chain = list(_chain(node))
    if isinstance(chain[-1], ast.Name) and chain[-1].id in tests:
        return True
    asks = any(isinstance(one, ast.Attribute) and one.attr in PREDICATES for one in chain)
    calls = [one for one in chain if isinstance(one, ast.Call)]
    return asks and any(not _makes_object(call) for call in calls if call is not node)


def _chain(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
        yield node


def _makes_object(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id[:1].isupper()
