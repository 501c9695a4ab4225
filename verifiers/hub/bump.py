"""The next version of a project, written into `[project]` of its pyproject.toml and nowhere else.

    check_can_bump(folder)                      # before anything is published
    bump(folder, "0.1.0", "patch")              '0.1.1'
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

from packaging.version import Version

from verifiers.errors import ConfigError, MissingExtraError, StoreError
from verifiers.settings import read_toml, table_at

Part = Literal["patch", "minor", "major"]


def next_version(version: str, part: Part) -> str:
    """The next final version: `0.1.0rc1` and `0.1.0` are followed by `0.1.0` and `0.1.1` as a patch."""
    now = Version(version)
    major, minor, micro = now.major, now.minor, now.micro
    epoch = f"{now.epoch}!" if now.epoch else ""
    if part == "major":
        return f"{epoch}{major + 1}.0.0"
    if part == "minor":
        return f"{epoch}{major}.{minor + 1}.0"
    return f"{epoch}{major}.{minor}.{micro if now.is_prerelease else micro + 1}"


def check_can_bump(folder: Path) -> None:
    """MissingExtraError without tomlkit; ConfigError where the version is not written in `[project]`."""
    try:
        import tomlkit  # noqa: F401 - the extra is there
    except ImportError:
        raise MissingExtraError("hub", "hub push --bump") from None
    path = folder / "pyproject.toml"
    if not isinstance(table_at(read_toml(path), "project", where=str(path)).get("version"), str):
        raise ConfigError(
            f"{path} has no version in [project] that could be raised", hint="Leave --bump out, and raise it by hand."
        )


def bump(folder: Path, version: str, part: Part) -> str:
    """Write the version after `version`, and return it. Comments and order of the file stay."""
    import tomlkit

    path = folder / "pyproject.toml"
    document = tomlkit.parse(path.read_text(encoding="utf-8"))
    raised = next_version(version, part)
    document["project"]["version"] = raised
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".pyproject-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(tomlkit.dumps(document))
        os.chmod(name, path.stat().st_mode & 0o777)
        os.replace(name, path)
    except OSError as error:
        os.unlink(name)
        raise StoreError(f"can not write {path}: {error.strerror}", cause=error) from error
    return raised
