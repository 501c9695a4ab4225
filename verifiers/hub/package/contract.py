"""Steps on the load contract: the module named as the package binds `load_environment`, seen without running it.

Bound means at the module's top level by `def`, `async def`, an assignment or `from … import`, also inside `if`, `try`
and `with`. What only the author's machine can tell, that it imports and loads, is `hub check`'s to find out.
"""

from __future__ import annotations

import ast
import contextlib
import io
import platform
import tokenize
import warnings
from collections.abc import Iterable, Iterator

from packaging.specifiers import SpecifierSet

from verifiers.errors import NEWER_API
from verifiers.hub.package.names import module_of
from verifiers.hub.package.refusal import printable, refuse
from verifiers.hub.package.subject import Step, Subject

LOADER = "load_environment"
MAX_MODULE = 4 << 20
"""Bytes of the module. Parsing takes about a hundred times as much memory."""
ENCODINGS = ("utf-8", "utf-8-sig", "ascii", "iso-8859-1", "iso-8859-15", "cp1252")
"""Of source. Others may take minutes (punycode), or have a reader see other text than Python (utf-7)."""
MAX_LOOKED_AT = 1 << 20
"""Bytes of the package's other files that are parsed to tell which API it uses instead."""


def find_module(subject: Subject) -> None:
    """There is a module named as the package, with underscores."""
    name = module_of(subject.named.name)
    package, module = f"{name}/__init__.py", f"{name}.py"
    found = package if package in subject.installed else module  # Python, too, takes the folder first
    if found not in subject.installed:
        others = ", ".join(subject.facts.import_names) or "no module"
        refuse("load-module", f"the wheel has neither {module} nor {package}; it holds {others}")
    subject.module = subject.installed[found]


def parse_module(subject: Subject) -> None:
    """The module is Python."""
    member = subject.module
    source = subject.content(member, MAX_MODULE, "module-source")
    try:
        subject.tree = parsed(source)
    except (SyntaxError, ValueError) as error:
        _not_parsed(subject, member, error)


def parsed(source: bytes) -> ast.Module:
    """The syntax tree. An author's invalid escapes are no affair of whoever looks at them.

    SyntaxError also for an encoding that is not one of `ENCODINGS`.
    """
    encoding = tokenize.detect_encoding(io.BytesIO(source).readline)[0]
    if encoding not in ENCODINGS:
        raise SyntaxError(f"the encoding {encoding} is none of {', '.join(ENCODINGS)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source.decode(encoding))


def _not_parsed(subject: Subject, member: str, error: Exception) -> None:
    """Syntax that this Python does not know may be that of the Python which the package asks for."""
    here = platform.python_version()
    line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
    said = f"{printable(error.msg if isinstance(error, SyntaxError) else str(error))}{line}"
    try:
        meant = SpecifierSet(subject.facts.requires_python or "").contains(here, prereleases=True)
    except ValueError:  # InvalidSpecifier, or a number that Python does not read
        meant = True
    if meant:
        refuse("module-source", f"it is no Python {here}: {said}", member)
    subject.remark("module-unread", f"Python {here}, which looked at it, can not read it: {said}", member)


def check_loader(subject: Subject) -> None:
    """The module binds load_environment at its top level."""
    if subject.tree is None:
        return
    bound = set(bound_names(subject.tree.body))
    if LOADER in bound:
        if deleted_at_last(subject.tree.body):
            refuse("load-environment", f"it deletes {LOADER} again", subject.module)
        return
    if "*" in bound:
        what = f"{LOADER} can only come from a star import; nothing tells that it does"
        subject.remark("star-import", what, subject.module)
        return
    newer = newer_names(subject)
    if newer:
        used = ", ".join(f"verifiers.{name}" for name in newer)
        refuse("newer-api", f"it uses {used} of the newer upstream API (verifiers 0.4 and later)", subject.module)
    refuse("load-environment", f"it binds no {LOADER} at its top level", subject.module)


# --- what a module binds ----------------------------------------------------------------------------------------


def bound_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    """The names that statements bind at the level they are on, "*" for a star import."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)
            case ast.Assign(targets=targets):
                yield from (name for target in targets for name in _stored(target))
            case ast.AnnAssign(target=target, value=ast.expr()):
                yield from _stored(target)
            case ast.If(test=test, body=then, orelse=other):
                yield from bound_names([] if _never(test) else then)
                yield from bound_names(other)
            case ast.Try() | ast.TryStar():
                yield from bound_names(statement.body + statement.orelse + statement.finalbody)
                yield from (name for handler in statement.handlers for name in bound_names(handler.body))
            case ast.With(body=inner) | ast.AsyncWith(body=inner):
                yield from bound_names(inner)


def deleted_at_last(body: list[ast.stmt]) -> bool:
    """Whether the loader is deleted by a statement on this level after the last one that binds it."""
    for statement in reversed(body):
        if LOADER in bound_names([statement]):
            return False
        if isinstance(statement, ast.Delete) and LOADER in map(ast.unparse, statement.targets):
            return True
    return False


def _stored(target: ast.expr) -> Iterator[str]:
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))


def _never(test: ast.expr) -> bool:
    """Whether a condition holds for type checkers only, or never."""
    if isinstance(test, ast.Constant):
        return not test.value
    name = test.id if isinstance(test, ast.Name) else test.attr if isinstance(test, ast.Attribute) else ""
    return name == "TYPE_CHECKING"


# --- the newer API ----------------------------------------------------------------------------------------------


def newer_names(subject: Subject) -> list[str]:
    """The names of the newer upstream API that the package uses, sorted."""
    assert subject.tree is not None
    found = set(_newer_in(subject.tree))
    folder = subject.module.removesuffix("__init__.py")
    if folder != subject.module:
        inside = [path for path in subject.sizes if path.startswith(folder) and path.endswith(".py")]
        found.update(name for tree in _trees(subject, inside) for name in _newer_in(tree))
    return sorted(found)


def _trees(subject: Subject, members: Iterable[str]) -> Iterator[ast.Module]:
    left = MAX_LOOKED_AT
    for member in members:
        if subject.sizes[member] <= left:
            left -= subject.sizes[member]
            with contextlib.suppress(SyntaxError, ValueError):
                yield parsed(subject.read(member, MAX_LOOKED_AT))


def _newer_in(tree: ast.Module) -> Iterator[str]:
    roots = {"verifiers"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.asname for alias in node.names if alias.name == "verifiers" and alias.asname}
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("verifiers.v1"))
        elif isinstance(node, ast.ImportFrom) and node.module == "verifiers" and not node.level:
            yield from (alias.name for alias in node.names if alias.name in NEWER_API)
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("verifiers.v1") and not node.level:
            yield "v1"
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=root), attr=name) if root in roots and name in NEWER_API:
                yield name


CHECKS: list[Step] = [find_module, parse_module, check_loader]
