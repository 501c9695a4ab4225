"""What a wheel on this machine holds that commands ask for, without installing it.

    modules_of(wheel)              {"my_env"}: what importing finds once it is installed
    declared(wheel, "data")        the table [tool.verifiers.data] of its pyproject.toml
"""

from __future__ import annotations

import tomllib
import zipfile
from pathlib import Path
from typing import Any

_PYPROJECT = ".dist-info/extra_metadata/pyproject.toml"


def modules_of(wheel: Path) -> set[str]:
    """The top-level modules of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names if not name.startswith((".", "__pycache__/"))}
    folders = {top for top in tops if "." not in top}
    return folders | {top.partition(".")[0] for top in tops if top.endswith((".py", ".so"))}


def declared(wheel: Path, name: str) -> dict[str, Any]:
    """A table below `[tool.verifiers]` of the pyproject.toml in a wheel; empty where there is none."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if member.endswith(_PYPROJECT):
                try:
                    return dict(tomllib.loads(archive.read(member).decode())["tool"]["verifiers"][name])
                except (KeyError, TypeError, ValueError):
                    return {}
    return {}
