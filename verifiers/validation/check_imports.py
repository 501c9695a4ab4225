"""Checks of what an environment's files import: would a clean installation have it?

Read from the source, so that imports inside functions count too. An import below `try: … except ImportError` is
optional, one below `if TYPE_CHECKING` is never run.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from packaging.utils import canonicalize_name

from verifiers.envs.installed import homes_of_modules
from verifiers.validation.findings import Findings, NotCheckedError, Severity, check
from verifiers.validation.project import closure, requirement
from verifiers.validation.subject import Subject

PROMISED = frozenset({"datasets", "openai", "httpx", "requests", "numpy", "pydantic"})
"""Packages that every installation of ours has, and that environments may use without declaring them."""

_CATCHES_ABSENCE = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


@check(
    "undeclared-imports",
    Severity.ERROR,
    why="Where only what the project declares is installed, the import fails: on a hub, in a fresh environment.",
    fix="Add the package to the dependencies in pyproject.toml.",
)
def undeclared_imports(subject: Subject) -> Findings:
    """What the files import comes with what the project declares."""
    missing, _ = _beyond_declared(subject)
    for package, place in missing.items():
        yield f"{package} is imported ({place}), but neither declared nor brought by what is declared"


@check(
    "borrowed-imports",
    Severity.WARNING,
    why="It is there only because another package needs it today; a later release may not.",
    fix="Add the package to the dependencies in pyproject.toml.",
)
def borrowed_imports(subject: Subject) -> Findings:
    """What the files import is declared, not only brought along by another package."""
    _, borrowed = _beyond_declared(subject)
    for package, place in borrowed.items():
        yield f"{package} is imported ({place}) and only comes with another package"


def _beyond_declared(subject: Subject) -> tuple[dict[str, str], dict[str, str]]:
    """Distributions that the files import without declaring them, each with its first place: those that a clean
    installation would lack, and those that come along with others."""
    project = subject.project
    if not project.sources:
        raise NotCheckedError("the source files are not at hand")
    # Whatever lies beside the module is the environment's own.
    beside = {path for source in project.sources for path in (source, *source.parent.glob("*"))}
    own = {path.name.removesuffix(".py") for path in beside} | {path.parent.name for path in project.sources}
    always = own | sys.stdlib_module_names | PROMISED | {"verifiers"}
    found = [(name, place) for name, place in _imports(project.sources) if name not in always]
    imported = dict(reversed(found))  # each with its first place
    return _sorted_out(imported, [*project.dependencies, *project.optional_dependencies]) if imported else ({}, {})


def _sorted_out(imported: Mapping[str, str], requirements: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    declared = {canonicalize_name(wanted.name) for text in requirements if (wanted := requirement(text)) is not None}
    brought, absent = closure([*requirements, "verifiers"])
    distributions = _distributions()
    missing: dict[str, str] = {}
    borrowed: dict[str, str] = {}
    for name, place in imported.items():
        homes = {canonicalize_name(home) for home in distributions.get(name, ())}
        if not homes and absent:
            continue  # not installed here, and one of the declared packages that are not either may hold it
        homes = homes or {canonicalize_name(name)}
        if not homes & (declared | PROMISED):
            table = borrowed if homes & brought else missing
            table.setdefault(min(homes), place)
    return missing, borrowed


_distributions = cache(homes_of_modules)  # reads every installed package: once is enough


def _imports(sources: Sequence[Path]) -> Iterator[tuple[str, str]]:
    """The top-level names that are imported for good, with `file:line`."""
    for path in sources:
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError, OSError):  # the import check tells
            continue
        for node in _run_nodes(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.name.partition(".")[0], f"{path.name}:{node.lineno}"
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module.partition(".")[0], f"{path.name}:{node.lineno}"


def _run_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of optional imports and of code for type checkers."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children: list[ast.AST] = list(node.orelse)
    elif isinstance(node, ast.Try) and any(_tolerates(handler) for handler in node.handlers):
        children = [*node.handlers, *node.orelse, *node.finalbody]
        children += [statement for statement in node.body if not isinstance(statement, ast.Import | ast.ImportFrom)]
    else:
        yield node
        children = list(ast.iter_child_nodes(node))
    for child in children:
        yield from _run_nodes(child)


def _tolerates(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {part.id for part in ast.walk(handler.type) if isinstance(part, ast.Name)}
    return bool(names & _CATCHES_ABSENCE)
