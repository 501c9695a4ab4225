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
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

from verifiers.grading.code_names import is_judged

_PURE = "abs all any bool complex float frozenset int isinstance len list max min round set sorted str sum tuple"
_MATH = "ceil e exp fabs floor inf isclose isfinite isinf isnan log log10 log2 nan pi sqrt trunc"
_NAMES: dict[str, Any] = {name: getattr(builtins, name) for name in _PURE.split()}
_NAMES |= {"math": math, "isclose": math.isclose}
_SHAPES = (
    *(ast.Expression, ast.Constant, ast.Name, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Subscript, ast.Slice),
    *(ast.Attribute, ast.keyword),
    *(ast.Load, ast.UnaryOp, ast.USub, ast.UAdd, ast.Not, ast.BoolOp, ast.And, ast.Or, ast.Compare, ast.cmpop),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow),
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


def assert_test(
    statement: str | ast.Assert, names: dict[str, str] | None = None, tests: Collection[str] = ()
) -> AssertTest | None:
    """Read one assert; None if it is no assert of the simple form.

    Args:
        statement: its text, or its parse tree.
        names: what functions of the submission are called in the test, and what they are called in the submission.
            None: every name that is not built in is the submission's.
        tests: names that the tests give: what begins with one of them is no submission's to evaluate.

    Raises SyntaxError for what is no Python.
    """
    if isinstance(statement, str):
        body = ast.parse(statement.strip()).body
        if len(body) != 1 or not isinstance(body[0], ast.Assert):
            return None
        statement = body[0]
    holes, condition = _taken_apart(statement, names)
    if any(is_judged(node, tests) for node in holes.nodes):
        return None
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
        self.nodes: list[ast.AST] = []

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Call | ast.Attribute | ast.Name) and self._is_theirs(root := _root(node)):
            self.nodes.append(node)
            if self.names is not None:
                node = _Renamed(self.names).visit(node)
            self.calls.append(ast.unparse(node))
            return ast.copy_location(ast.Name(f"{_HOLE}{len(self.calls) - 1}", ast.Load()), root)
        return self.generic_visit(node)

    def _is_theirs(self, root: ast.AST) -> bool:
        if not isinstance(root, ast.Name):
            return False
        if self.names is None:
            return root.id not in _NAMES and not hasattr(builtins, root.id)
        return root.id in self.names


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
    """Whether a part of the condition is harmless and quick to evaluate here, whatever the submission gives."""
    if isinstance(node, ast.Name):
        return node.id in _NAMES or node.id.startswith(_HOLE)
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "math" and node.attr in _MATH.split()
    if isinstance(node, ast.Call):
        return _is_quick_call(node)
    return _is_quick_operation(node) if isinstance(node, ast.BinOp) else isinstance(node, _SHAPES)


def _is_quick_call(node: ast.Call) -> bool:
    if isinstance(node.func, ast.Name) and node.func.id in ("round", "sum"):  # to many places, or of lists: slow
        return not node.keywords and all(_is_number(arg, 20) for arg in node.args[1:])
    return isinstance(node.func, ast.Name | ast.Attribute)


def _is_quick_operation(node: ast.BinOp) -> bool:
    """Whether neither the test nor the submission can make a bomb of it: repetition, formatting, huge powers."""
    below = list(ast.walk(node.left)) + list(ast.walk(node.right))
    given = any(isinstance(one, ast.Name) and one.id.startswith(_HOLE) for one in below)
    if isinstance(node.op, ast.Pow):
        return _is_number(node.left, 1000) and _is_number(node.right, 1000)
    if isinstance(node.op, ast.Mult):
        limit = 100 if given else _LARGEST_FACTOR
        once = not any(isinstance(one, ast.Mult) for one in below)
        return once and (_is_number(node.left, limit) or _is_number(node.right, limit))
    if isinstance(node.op, ast.Mod):  # of a text it is formatting, with any width
        return not given and _is_number(node.left, math.inf) and _is_number(node.right, math.inf)
    if isinstance(node.op, ast.Div | ast.FloorDiv):
        return _is_number(node.right, math.inf)
    return isinstance(node.op, ast.Add | ast.Sub)


def _is_number(node: ast.AST, limit: float) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and abs(node.value) <= limit
