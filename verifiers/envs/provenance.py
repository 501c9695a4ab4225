"""Which exact bits a score depends on: versions and digests of the environment and of this package.

An environment that was installed from a wheel is known by that wheel's sha256 where the installer noted it, and by
its owner where that wheel is a hub's; any other by `tree:` and the SHA-256 over the sorted (path, NUL, sha256) of its
files.
"""

from __future__ import annotations

import hashlib
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from verifiers.envs.installed import installed_package
from verifiers.envs.load import module_name, split_id
from verifiers.envs.origin import direct_url, hub_origin, noted_digest
from verifiers.types import VersionInfo

_IGNORED = {"__pycache__", "outputs", "dist", "build"}
"""Folders that tools leave in an environment's folder, besides the hidden ones (.git, .venv, .pytest_cache …)."""

def environment_ref(env_id: str) -> dict[str, Any]:
    """`{"name", "version", "digest"}` of a loaded environment; version and digest are None where unknown."""
    owner, name, _ = split_id(env_id)
    module = sys.modules.get(module_name(env_id))
    file = getattr(module, "__file__", None)  # a session at a prompt or in a notebook has none
    location = Path(file) if file else None
    distribution = _owning_distribution(name, location)
    if distribution is not None:
        version: str | None = distribution.version
        if (origin := hub_origin(distribution)) is not None:
            owner = origin.owner
        digest = _wheel_digest(distribution) or tree_digest(_files_of(distribution))
    else:
        version = _local_version(location)
        digest = tree_digest(_local_files(location))
    return {"name": f"{owner}/{name}" if owner else name, "version": version, "digest": digest}


def version_info(env_id: str, data_digest: Any = None) -> VersionInfo:
    """The versions for a run's metadata."""
    ref = environment_ref(env_id)
    info = VersionInfo(vf_version=package_version(), env_version=ref["version"], env_digest=ref["digest"])
    if data_digest:
        info["data_digest"] = data_digest
    return info


def facts_of(env: Any, env_id: str) -> dict[str, Any]:
    """What the metadata of a run say of its environment: versions, digest and tools."""
    return {
        "version_info": version_info(env_id, getattr(env, "data_digest", None)),
        "environment": environment_ref(env_id),
        "tools": [dict(tool) for tool in env.tool_defs] or None,
    }


@cache
def package_version() -> str:
    """The version of this package."""
    return metadata.version("verifiers")


def _owning_distribution(name: str, location: Path | None) -> metadata.Distribution | None:
    """The installed distribution of that name, if the module really comes from it."""
    distribution = installed_package(name)
    if distribution is None or location is None:
        return None
    owns = any(Path(str(file.locate())) == location for file in distribution.files or [])
    return distribution if owns else None


def _wheel_digest(distribution: metadata.Distribution) -> str | None:
    """The sha256 of the wheel that was installed from a file or URL, where it is known."""
    origin = hub_origin(distribution)
    digest = origin.sha256 if origin is not None else noted_digest(direct_url(distribution))
    return f"sha256:{digest}" if digest else None


def _files_of(distribution: metadata.Distribution) -> list[tuple[str, Path]]:
    return [
        (file.as_posix(), Path(str(file.locate())))
        for file in distribution.files or []
        if ".dist-info/" not in file.as_posix() and not _is_ignored(file.parts)
    ]


def _local_files(location: Path | None) -> list[tuple[str, Path]]:
    if location is None:
        return []
    folder = location.parent
    is_package = location.name == "__init__.py"
    if not is_package and not (folder / "pyproject.toml").is_file():
        return [(location.name, location)]
    return _files_below(folder)


def _files_below(folder: Path) -> list[tuple[str, Path]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return [
        (path.relative_to(folder).as_posix(), path)
        for path in files
        if not _is_ignored(path.relative_to(folder).parts)
    ]


def _is_ignored(parts: Iterable[str]) -> bool:
    return any(part in _IGNORED or part.startswith(".") for part in parts)


def _local_version(location: Path | None) -> str | None:
    for folder in list(location.parents)[:2] if location else []:
        try:
            project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8")).get(
                "project", {}
            )
        except (OSError, tomllib.TOMLDecodeError):
            continue
        version = project.get("version")
        return str(version) if version else None
    return None


def project_digest(folder: Path) -> str | None:
    """`tree:` and the SHA-256 over the files of a project's folder, or of one file."""
    return tree_digest([(folder.name, folder)] if folder.is_file() else _files_below(folder))


def tree_digest(files: Iterable[tuple[str, Path]]) -> str | None:
    """`tree:` and the SHA-256 over the sorted (name, NUL, sha256) of files; None if there are none."""
    total = hashlib.sha256()
    found = False
    for name, path in sorted(files):
        if path.is_file():
            found = True
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{name}\0{digest}\n".encode())
    return f"tree:{total.hexdigest()}" if found else None
