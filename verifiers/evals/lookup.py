"""Where a command finds an environment: first in the folder of local ones, then among the installed packages.

A local environment's folder is put on `sys.path`, so that `load_environment`, which finds installed packages only,
finds it too. Nothing of the environment is imported here: version and evaluation defaults are read from its
`pyproject.toml`.

    found = find_environment("my-env", "./environments")
    found.path, found.version, found.defaults
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verifiers.envs.installed import installed_package, installed_packages
from verifiers.envs.load import module_name, split_id
from verifiers.envs.origin import direct_url, hub_origin
from verifiers.errors import ConfigError, EnvironmentLoadError, EnvironmentNotFoundError
from verifiers.settings import near_misses, read_toml, table_at
from verifiers.types.config import HubWheel


@dataclass(frozen=True, slots=True)
class FoundEnvironment:
    """An environment that can be imported. `defaults` is `[tool.verifiers.eval]` of its own pyproject.

    `hub_wheels` are set for one that is not installed but to be played from its wheel.
    """

    env_id: str
    path: Path
    version: str | None
    local: bool
    defaults: Mapping[str, Any] = field(default_factory=dict)
    hub_wheels: tuple[HubWheel, ...] = ()

    @property
    def described(self) -> str:
        """For one line on screen: name, version and place."""
        version = f" {self.version}" if self.version and "@" not in self.env_id else ""
        place = "from" if self.local else "a hub's wheel:" if self.hub_wheels else "installed:"
        return f"{self.env_id}{version} ({place} {self.path})"


def find_environment(env_id: str, env_dir: str | Path = "./environments") -> FoundEnvironment:
    """Find `name`, `owner/name[@version]` or a path to an environment's folder, and make it importable.

    An id with an owner is an installed package, never a folder: what lies there may be anything, and would be recorded
    under the hub's name. Whoever asks a hub does so before (`verifiers.hub.prepare`).

    EnvironmentNotFoundError names what is near; EnvironmentLoadError and ConfigError say what is wrong with a folder
    that was found.
    """
    if env_id.startswith((".", "/", "~")):
        folder = Path(env_id).expanduser().resolve()
        if not folder.is_dir():
            raise EnvironmentNotFoundError(f"there is no folder {env_id}")
        return _local(folder.name, folder, None)
    owner, _, wanted = split_id(env_id)
    folder = Path(env_dir) / module_name(env_id)
    if owner is None and folder.is_dir():
        return _local(env_id, folder, wanted)
    return find_installed(env_id) or _none(env_id, Path(env_dir))


# --- a local folder -------------------------------------------------------------------------------------------


def _local(env_id: str, folder: Path, wanted: str | None) -> FoundEnvironment:
    module = module_name(env_id)
    base = next((base for base in (folder, folder / "src") if _holds(base, module)), None)
    if base is None:
        raise EnvironmentLoadError(
            f"the folder {folder} holds no module {module}.py and no package {module}/",
            hint=f"vf-init {env_id} shows what belongs there.",
        )
    project, defaults = _project(folder / "pyproject.toml")
    name = project.get("name")
    if name is not None and _normal(str(name)) != _normal(split_id(env_id)[1]):
        raise ConfigError(
            f"{folder / 'pyproject.toml'} belongs to {name!r}, not to {env_id!r}",
            hint="Give the project, its folder and its module one name.",
        )
    version = str(project["version"]) if "version" in project else None
    if wanted is not None and version != wanted:
        raise EnvironmentNotFoundError(
            f"{env_id} was asked for, but the folder {folder} holds version {version}",
            hint=f"Leave the version out, or install that one: vf-install {env_id}",
        )
    place = str(base.resolve())
    if place not in sys.path:
        # First, so that the folder wins over an installed copy of the same environment.
        sys.path.insert(0, place)
        importlib.invalidate_caches()
    return FoundEnvironment(env_id, folder, version, True, defaults)


def _holds(base: Path, module: str) -> bool:
    return (base / f"{module}.py").is_file() or (base / module / "__init__.py").is_file()


# --- an installed package -------------------------------------------------------------------------------------


def find_installed(env_id: str) -> FoundEnvironment | None:
    """The installed package of an id, None if there is none. EnvironmentNotFoundError if it is another one's.

    With an owner, what is on `sys.path` only, or was installed from a folder, is none.
    """
    owner, name, wanted = split_id(env_id)
    spec = importlib.util.find_spec(module_name(env_id))
    if spec is None:
        return None
    origin = Path(spec.origin) if spec.origin and spec.has_location else None
    distribution = installed_package(name)
    if owner is not None and (distribution is None or "dir_info" in direct_url(distribution)):
        return None
    if distribution is None:
        return FoundEnvironment(env_id, origin or Path(), None, False, _defaults_beside(origin, name))
    version, hub = distribution.version, hub_origin(distribution)
    if owner is not None and hub is not None and hub.owner != owner:
        raise EnvironmentNotFoundError(
            f"{env_id} was asked for, but {hub.id} is installed",
            hint=f"Install the other one in its place: vf-install {env_id}",
        )
    if wanted is not None and version != wanted:
        raise EnvironmentNotFoundError(
            f"{env_id} was asked for, but {name} {version} is installed",
            hint=f"Install that version: vf-install {env_id}",
        )
    return FoundEnvironment(env_id, origin or Path(), version, False, _defaults_beside(origin, name))


def _defaults_beside(module: Path | None, name: str) -> dict[str, Any]:
    """`[tool.verifiers.eval]` of the pyproject that ships with a module, if it is that project's own.

    Single-file environments of v0 all install their `pyproject.toml` at the top of site-packages, where the last one
    overwrites the others: the project's name decides.
    """
    for path in _shipped_projects(module, name):
        if path.is_file():
            project, defaults = _project(path)
            return defaults if _normal(str(project.get("name"))) == _normal(name) else {}
    return {}


def _shipped_projects(module: Path | None, name: str) -> Iterator[Path]:
    """Where an installed pyproject may be: in the wheel's own metadata folder (ours), otherwise beside the module."""
    distribution = installed_package(name)
    files = (distribution.files if distribution is not None else None) or []
    yield from (Path(str(file.locate())) for file in files if file.match("*.dist-info/extra_metadata/pyproject.toml"))
    if module is not None:
        yield from (folder / "pyproject.toml" for folder in (module.parent, module.parent.parent))


def _none(env_id: str, env_dir: Path) -> FoundEnvironment:
    known = sorted({*_local_names(env_dir), *_installed_names()})
    listed = f"There are: {', '.join(known[:12])}{' …' if len(known) > 12 else ''}." if known else ""
    hint = near_misses(env_id.replace("_", "-"), known) or listed
    place = f"in {env_dir}{'' if env_dir.is_dir() else ' (there is no such folder)'} or"
    start = (
        f"Install it (vf-install {env_id}), name its folder (--env-dir-path), or start it: vf-init {env_id}"
    )
    if "/" in env_id:
        place = "of that owner"
        start = "If a hub has it, name the hub: --hub-url URL, or export VF_HUB_URL=URL"
        if Path(env_id).is_dir():
            start = f"The folder is: ./{env_id}"
    raise EnvironmentNotFoundError(
        f"no environment {env_id!r} {place} among the installed packages", hint=f"{hint} {start}".strip()
    )


def _local_names(env_dir: Path) -> Iterator[str]:
    for path in env_dir.iterdir() if env_dir.is_dir() else ():
        if path.is_dir() and (_holds(path, path.name) or _holds(path / "src", path.name)):
            yield path.name.replace("_", "-")


def _installed_names() -> Iterator[str]:
    """Installed distributions that say they are environments, or that need this package."""
    for name, distribution in installed_packages():
        needs = any(re.match(r"verifiers\b", requirement) for requirement in distribution.requires or ())
        if needs or distribution.entry_points.select(group="verifiers.environments"):
            yield name


# --- projects -------------------------------------------------------------------------------------------------


def _project(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    if not path.is_file():
        return {}, {}
    document = read_toml(path)
    where = str(path)
    return table_at(document, "project", where=where), table_at(
        document, "tool", "verifiers", "eval", where=where
    )


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
