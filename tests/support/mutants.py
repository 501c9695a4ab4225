"""Small mistakes in a program: one mutant for each place where an operator, a number or a condition can be wrong."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def mutants(program: str) -> Iterator[str]:
    """Every mutant of the program, in the order of its parse tree."""
    tree = ast.parse(program)
    for position in range(sum(1 for _ in ast.walk(tree))):
        other = copy.deepcopy(tree)
        node = next(found for at, found in enumerate(ast.walk(other)) if at == position)
        if _mutate(node):
            yield ast.unparse(ast.fix_missing_locations(other))


def _mutate(node: ast.AST) -> bool:
    """Make one mistake at this node; False if there is none to make."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPPED:
        node.ops[0] = SWAPPED[type(node.ops[0])]()  # type: ignore[call-overload]
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPPED:
        node.op = SWAPPED[type(node.op)]()  # type: ignore[assignment]
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        node.value += 1
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        node.value = not node.value
    elif isinstance(node, ast.If | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Return) and node.value is not None:
        node.value = ast.Constant(None)
    else:
        return False
    return True
