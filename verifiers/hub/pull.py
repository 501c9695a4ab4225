"""`hub pull`: the source of a release into a folder, verified by its digest and unpacked with the hub's own care.

    pulled = pull(hub, parse_id("alice/demo@0.1.0"), Path("demo"), Wanted("3.11"))
    pulled.kind        # "sdist", or "wheel" where the release has no source archive
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verifiers.clients.model_file import cache_dir
from verifiers.errors import ConfigError
from verifiers.hub.fetch import fetch
from verifiers.hub.package.paths import Limits
from verifiers.hub.package.unpack import TargetError, unpack_sdist, unpack_wheel
from verifiers.hub.resolve import Chosen, Wanted, resolve

if TYPE_CHECKING:
    from verifiers.hub.client import HubClient
    from verifiers.hub.ids import HubId
    from verifiers.hub.schema import FileInfo


@dataclass(frozen=True, slots=True)
class Pulled:
    """A release whose files lie in a folder. `file` is the archive that they come from."""

    chosen: Chosen
    file: FileInfo
    folder: Path

    @property
    def kind(self) -> str:
        """`sdist`, or `wheel` where there is no source archive."""
        return self.file.kind


def pull(hub: HubClient, one: HubId, folder: Path | None, wanted: Wanted, *, force: bool = False) -> Pulled:
    """Unpack the source of a release. TargetError if the folder is there and `force` is not given."""
    _, releases = resolve(hub, [one], wanted)
    chosen = next(release for release in releases if (release.release.owner, release.name) == (one.owner, one.name))
    files = chosen.release.files
    file = next((file for file in files if file.kind == "sdist"), chosen.file)
    into = (folder or Path(chosen.name)).expanduser().absolute()
    if into.exists() and not force and (not into.is_dir() or any(into.iterdir())):
        raise TargetError(f"{into} is there already", hint="Name another folder, or replace this one: --force")
    archive = fetch(hub, file, cache_dir())
    unpack = unpack_sdist if file.kind == "sdist" else unpack_wheel
    limits = Limits(file_bytes=max(file.size, Limits().file_bytes))
    if force and into.exists():
        _replace(into, lambda new: unpack(archive, new, limits))
    else:
        unpack(archive, into, limits)
    return Pulled(chosen, file, into)


def _replace(into: Path, unpack: Callable[[Path], None]) -> None:
    """Unpack beside the folder first: an archive that is refused costs nothing."""
    if into == Path.cwd() or into in Path.cwd().parents or (into / ".git").exists():
        raise ConfigError(f"{into} is a repository, or the folder we are in", hint="Name another folder.")
    with tempfile.TemporaryDirectory(prefix=f".{into.name}-", dir=into.parent) as place:
        unpack(Path(place) / "new")
        into.rename(Path(place) / "old")
        (Path(place) / "new").rename(into)
