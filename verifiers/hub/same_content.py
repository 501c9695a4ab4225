"""Whether a file that was built again holds what the published one holds.

Not every build tool gives the same bytes twice: times and the order of members differ, and a newer tool names itself in
WHEEL. What counts is each member's name and digest.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from verifiers.hub.fetch import fetch
from verifiers.hub.package.names import parse_sdist_name
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.tar_walk import read_members
from verifiers.hub.package.zip_walk import walk_zip

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient
    from verifiers.hub.schema import FileInfo

_OF_THE_TOOL = (".dist-info/WHEEL", ".dist-info/RECORD")


def same_content(hub: HubClient, published: FileInfo, built: Path) -> bool:
    """Compare the published file, which is downloaded, with one of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        there = fetch(hub, published, Path(folder))
        return content_of(there) == content_of(built)


def content_of(path: Path) -> dict[str, str]:
    """Member → sha256 of a wheel or a source archive, without what only names the build tool."""
    limits = Limits(file_bytes=1 << 40)
    with path.open("rb") as file:
        if path.name.endswith(".whl"):
            digests = walk_zip(file, limits).digests()
            return {name: one.sha256_hex for name, one in digests.items() if not name.endswith(_OF_THE_TOOL)}
        found = {}
        for member, parts in read_members(file, parse_sdist_name(path.name).top, limits):
            digest = hashlib.sha256()
            for part in parts:
                digest.update(part)
            found[member.name] = digest.hexdigest()
        return found
