"""The project of an environment: what its pyproject and its card say, from a folder or from an installed package.

Nothing of the environment is run here.
"""

from __future__ import annotations

import email.message
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from verifiers.envs.installed import homes_of_modules, installed_package, told_by
from verifiers.errors import ConfigError
from verifiers.evals.lookup import FoundEnvironment
from verifiers.settings import read_toml, table_at

CARD = "README.md"


@dataclass(frozen=True, slots=True)
class Project:
    """What a project says about itself. `readme` is the card's text, None if there is none.

    dependencies are those of a plain installation; optional_dependencies those of the extras, together.
    sources: the Python files that belong to the environment, tests left out.
    settings: the table `[tool.verifiers.validate]`.
    """

    name: str | None
    version: str | None
    dependencies: Sequence[str] = ()
    optional_dependencies: Sequence[str] = ()
    keywords: Sequence[str] = ()
    licence: bool = False
    readme: str | None = None
    sources: Sequence[Path] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)


def read_project(found: FoundEnvironment, module: str) -> Project | None:
    """The project of an environment that was found; None if nothing describes one. Raises ConfigError."""
    return _of_folder(found.path, module) if found.local else _of_package(found, module)


# --- a folder -------------------------------------------------------------------------------------------------


def _of_folder(folder: Path, module: str) -> Project | None:
    path = folder / "pyproject.toml"
    if not path.is_file():
        return None
    document = read_toml(path)
    project = table_at(document, "project", where=str(path))
    dynamic = project.get("dynamic") or []
    return Project(
        name=project.get("name"),
        version=None if "version" in dynamic else project.get("version", ""),
        dependencies=tuple(project.get("dependencies") or ()),
        optional_dependencies=tuple(
            one for extra in table_at(project, "optional-dependencies", where=str(path)).values() for one in extra
        ),
        keywords=tuple(project.get("keywords") or project.get("tags") or ()),
        licence=bool(project.get("license") or project.get("license-files")),
        readme=_text(folder / CARD),
        sources=_sources(folder, module),
        settings=table_at(document, "tool", "verifiers", "validate", where=str(path)),
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _sources(folder: Path, module: str) -> tuple[Path, ...]:
    for base in (folder, folder / "src"):
        if (base / f"{module}.py").is_file():
            return (base / f"{module}.py",)
        if (base / module / "__init__.py").is_file():
            return tuple(sorted(path for path in (base / module).rglob("*.py") if not _is_test(path, base)))
    return ()


def _is_test(path: Path, base: Path) -> bool:
    parts = path.relative_to(base).parts
    return path.name.startswith("test_") or path.name == "conftest.py" or "tests" in parts


# --- an installed package -------------------------------------------------------------------------------------


def _of_package(found: FoundEnvironment, module: str) -> Project | None:
    name = next(iter(homes_of_modules().get(module, [])), found.env_id.rpartition("/")[2])
    distribution = installed_package(name)
    if distribution is None:
        return None
    text = distribution.read_text("extra_metadata/pyproject.toml")
    settings: Mapping[str, Any] = {}
    if text is not None:
        settings = _settings_in(text, name)
    needs = list(distribution.requires or ())
    told = partial(told_by, distribution)
    body = _body(distribution)
    origin = found.path
    return Project(
        name=told("Name"),
        version=told("Version"),
        dependencies=tuple(one for one in needs if "extra ==" not in one),
        optional_dependencies=tuple(one for one in needs if "extra ==" in one),
        keywords=tuple((told("Keywords") or "").replace(",", " ").split()),
        licence=bool(told("License") or told("License-Expression")),
        readme=body if body.strip() else None,
        sources=_sources(origin.parent if origin.stem == module else origin.parent.parent, module),
        settings=settings,
    )


def _body(distribution: metadata.Distribution) -> str:
    """The text below the fields of METADATA, where a package's description stands; of old ones a field of its own."""
    fields = distribution.metadata
    body = fields.get_payload() if isinstance(fields, email.message.Message) else None
    return body if isinstance(body, str) and body.strip() else told_by(distribution, "Description") or ""


def _settings_in(text: str, name: str) -> Mapping[str, Any]:
    import tomllib

    try:
        return table_at(tomllib.loads(text), "tool", "verifiers", "validate", where=f"the pyproject of {name}")
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the pyproject that {name} ships is no valid TOML: {error}", cause=error) from error


# --- requirements ---------------------------------------------------------------------------------------------


def requirement(text: str) -> Requirement | None:
    """A requirement that can be read, else None."""
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def closure(requirements: Sequence[str]) -> tuple[set[str], set[str]]:
    """The canonical names of what the requirements bring with them, as far as it is installed, and those that are
    not installed, of which nobody can say what they bring."""
    waiting = list(requirements)
    seen: set[str] = set()
    absent: set[str] = set()
    while waiting:
        wanted = requirement(waiting.pop())
        if wanted is None:
            continue
        name = canonicalize_name(wanted.name)
        if name in seen:
            continue
        seen.add(name)
        distribution = installed_package(name)
        if distribution is None:
            absent.add(name)
            continue
        needs = distribution.requires or []
        # An extra brings its own; which ones were asked for is known only for what is named directly.
        waiting += [need for need in needs if _applies(need, wanted.extras)]
    return seen, absent


def _applies(need: str, extras: set[str]) -> bool:
    wanted = requirement(need)
    if wanted is None or wanted.marker is None:
        return wanted is not None
    return any(wanted.marker.evaluate({"extra": extra}) for extra in {"", *extras})
