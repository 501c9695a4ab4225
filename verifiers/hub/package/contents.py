"""What an archive holds, for a person to look at before it is published."""

from __future__ import annotations

from pathlib import Path

from verifiers.hub.package.names import parse_sdist_name
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.tar_walk import walk_tar
from verifiers.hub.package.zip_walk import walk_zip


def contents(path: Path) -> dict[str, int]:
    """Name → bytes of every file of a wheel or a source archive, sorted; without the latter's top folder."""
    limits = Limits(file_bytes=1 << 40)
    with path.open("rb") as file:
        if path.name.endswith(".whl"):
            found = {member.name: member.size for member in walk_zip(file, limits).members if not member.is_dir}
        else:
            top = parse_sdist_name(path.name).top
            members = walk_tar(file, top, limits, keep=lambda _name: False).members
            found = {one.name.removeprefix(f"{top}/"): one.size for one in members if not one.is_dir}
    return dict(sorted(found.items()))
