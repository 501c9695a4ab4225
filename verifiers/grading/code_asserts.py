"""Asserts of published test files, taken apart: what the submission evaluates, and what is compared with it here.

    test = assert_test("assert abs(area(2) - 12.566) < 0.01")
    test.calls                  # ("area(2)",): all that the submission's process is told
    test.holds([12.5663])       # True, decided in this process on plain data

Only the form `assert <calls and constants>` is read: comparisons, arithmetic, and a few functions without effects. What
is anything else (helpers, loops, random inputs) gives None and is left to a judge in a sandbox of its own.
"""

from __future__ import annotations

import ast
import builtins
import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

_PURE = (
    "abs all any bool complex dict float frozenset int isinstance len list max min round set sorted str sum tuple"
).split()
_NAMES: dict[str, Any] = {name: getattr(builtins, name) for name in _PURE} | {"math": math, "isclose": math.isclose}
_SHAPES = (
    *(ast.Expression, ast.Constant, ast.Name, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Subscript, ast.Slice),
    *(ast.Attribute, ast.keyword),
    *(ast.Load, ast.UnaryOp, ast.USub, ast.UAdd, ast.Not, ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.cmpop),
    *(ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.Call),
)
_LARGEST_FACTOR = 100_000
_HOLE = "_value_"


@dataclass(frozen=True)
class AssertTest:
    """One assert. calls: expressions that the submission evaluates, all of which it is told; code: the condition."""

    source: str
    calls: tuple[str, ...]
    code: CodeType

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether the assert holds if the calls gave these plain values. Raises what comparing them raises."""
        holes = {f"{_HOLE}{number}": value for number, value in enumerate(values)}
        return bool(eval(self.code, {"__builtins__": {}, **_NAMES, **holes}))  # noqa: S307 - checked against _SHAPES


def assert_test(statement: str | ast.Assert, names: dict[str, str] | None = None) -> AssertTest | None:
    """Read one assert; None if it is no assert of the simple form.

    Args:
        statement: its text, or its parse tree.
        names: what functions of the submission are called in the test, and what they are called in the submission;
            any other unknown name is then none of the submission's. None: every unknown name is.

    Raises SyntaxError for what is no Python.
    """
    if isinstance(statement, str):
        body = ast.parse(statement.strip()).body
        if len(body) != 1 or not isinstance(body[0], ast.Assert):
            return None
        statement = body[0]
    holes, condition = _taken_apart(statement, names)
    if names is None and not holes.calls:  # the submission's function has the name of a built-in one
        calls = [node.func for node in ast.walk(statement.test) if isinstance(node, ast.Call)]
        called = {function.id: function.id for function in calls if isinstance(function, ast.Name)}
        holes, condition = _taken_apart(statement, called)
    if not holes.calls or not all(map(_is_simple, ast.walk(condition))):
        return None
    return AssertTest(ast.unparse(statement), tuple(holes.calls), compile(condition, "<assert>", "eval"))


def _taken_apart(statement: ast.Assert, names: dict[str, str] | None) -> tuple[_Holes, ast.Expression]:
    holes = _Holes(names)
    condition = ast.Expression(holes.visit(copy.deepcopy(statement.test)))
    return holes, ast.fix_missing_locations(condition)


class _Holes(ast.NodeTransformer):
    """Replaces what belongs to the submission by names, and keeps the text of it."""

    def __init__(self, names: dict[str, str] | None) -> None:
        self.names = names
        self.calls: list[str] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Call | ast.Attribute | ast.Name) and self._is_theirs(root := _root(node)):
            if self.names is not None:
                node = _Renamed(self.names).visit(node)
            self.calls.append(ast.unparse(node))
            return ast.copy_location(ast.Name(f"{_HOLE}{len(self.calls) - 1}", ast.Load()), root)
        return self.generic_visit(node)

    def _is_theirs(self, root: ast.AST) -> bool:
        if not isinstance(root, ast.Name):
            return False
        return root.id not in _NAMES if self.names is None else root.id in self.names


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(self.names.get(node.id, node.id), node.ctx), node)


def _root(node: ast.AST) -> ast.AST:
    """What a chain of calls and attributes begins with: `f` of `f(1).g(2)`."""
    while isinstance(node, ast.Call | ast.Attribute | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def _is_simple(node: ast.AST) -> bool:
    """Whether a part of the condition is harmless and quick to evaluate here."""
    if isinstance(node, ast.Name):
        return node.id in _NAMES or node.id.startswith(_HOLE)
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "math" and not node.attr.startswith("_")
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name | ast.Attribute)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return _is_number(node.left, 1000) and _is_number(node.right, 1000)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        # Neither a bomb of repeated sequences nor products of huge numbers.
        return any(_is_number(side, _LARGEST_FACTOR) for side in (node.left, node.right)) and not any(
            isinstance(below, ast.Mult) for side in (node.left, node.right) for below in ast.walk(side)
        )
    return isinstance(node, _SHAPES)


def _is_number(node: ast.AST, limit: int) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and abs(node.value) <= limit
