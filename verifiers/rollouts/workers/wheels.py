"""Wheels of what is here already: a project's folder is built by uv, an installed distribution is packed again.

A wheel is what can be locked by its hash. Packing again means that a worker gets the very files that are installed,
whichever index, repository or folder they came from, and that no index is asked for them.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

import verifiers.rollouts
from verifiers.envs.installed import installed_package
from verifiers.envs.provenance import project_digest, tree_digest
from verifiers.errors import EnvironmentInstallError
from verifiers.rollouts.workers.uv import uv
from verifiers.settings import read_toml, table_at
from verifiers.types.config import HubWheel

_NOT_OF_A_WHEEL = {"INSTALLER", "RECORD", "REQUESTED", "direct_url.json", "uv_cache.json"}
"""What an installer adds to a distribution's metadata folder."""

_LONG_AGO = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file knows: the same files give the same bytes."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a wheel is made of: the folder of a project, or the installed distribution `name`; or it is made already:
    `file`, or those of a hub.

    parts: what of the folder goes into the wheel, if that is not all of it. hub_wheels: that of `name` first, then
    those that it needs from the hub.
    """

    name: str
    folder: Path | None = None
    parts: tuple[str, ...] = ()
    file: Path | None = None
    hub_wheels: tuple[HubWheel, ...] = ()

    def digest(self) -> str:
        """Changes whenever the wheel would."""
        if self.file is not None:
            return hashlib.sha256(self.file.read_bytes()).hexdigest()
        if self.hub_wheels:
            return " ".join(wheel.sha256 for wheel in self.hub_wheels)
        if self.folder is not None:
            return " ".join(str(project_digest(self.folder / part)) for part in self.parts or ("",))
        distribution = _distribution(self.name)
        return f"{distribution.version} {tree_digest(_files(distribution))}"

    async def wheel(self, into: Path) -> Path:
        """Make the wheel in an empty or absent folder. EnvironmentInstallError if that fails."""
        if self.file is not None:
            return self.file.absolute()
        if self.hub_wheels:
            return Path(self.hub_wheels[0].path)
        if self.folder is None:
            return _packed(_distribution(self.name), into)
        await uv("build", "--wheel", "--quiet", "--out-dir", str(into), str(self.folder))
        return _only_wheel(into)


def our_source() -> Source:
    """This package: its checkout if it runs from one, otherwise what is installed."""
    root = Path(verifiers.rollouts.__path__[0]).parents[1]
    project = root / "pyproject.toml"
    if project.is_file() and table_at(read_toml(project), "project", where=str(project)).get("name") == "verifiers":
        return Source("verifiers", root, ("verifiers", "pyproject.toml"))
    return Source("verifiers")


def our_extras(wheel: Path) -> set[str]:
    """The extras of this package that a wheel requires."""
    from packaging.requirements import Requirement

    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
    requirements = [Requirement(text) for text in headers.get_all("Requires-Dist") or []]
    return {
        extra
        for requirement in requirements
        if requirement.name.lower() == "verifiers"
        and (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
        for extra in requirement.extras
    }


def _only_wheel(folder: Path) -> Path:
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise EnvironmentInstallError(f"building made {len(wheels)} wheels in {folder}, not one")
    return wheels[0]


def _distribution(name: str) -> metadata.Distribution:
    if (distribution := installed_package(name)) is None:
        raise EnvironmentInstallError(f"{name} is not installed")
    return distribution


def _files(distribution: metadata.Distribution) -> list[tuple[str, Path]]:
    """The files that belong into the wheel: not the scripts, which installers make, nor bytecode."""
    files = []
    for file in distribution.files or []:
        outside = ".." in file.parts or file.is_absolute()
        added = ".dist-info" in file.parts[0] and file.name in _NOT_OF_A_WHEEL
        if not outside and not added and file.suffix != ".pyc":
            files.append((file.as_posix(), Path(str(file.locate()))))
    return sorted(files)


def _packed(distribution: metadata.Distribution, into: Path) -> Path:
    headers = HeaderParser().parsestr(distribution.read_text("WHEEL") or "")
    files = _files(distribution)
    info = next((name.partition("/")[0] for name, _ in files if name.endswith(".dist-info/METADATA")), None)
    if info is None or headers["Tag"] is None:
        raise EnvironmentInstallError(
            f"{distribution.name} was not installed from a wheel, so it can not be packed again",
            hint="Install it anew (vf-install), or play it without --isolated.",
        )
    path = into / f"{info.removesuffix('.dist-info')}-{headers['Tag']}.whl"
    try:
        into.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
            rows = list(_written(wheel, files))
            record = io.StringIO()
            csv.writer(record, lineterminator="\n").writerows([*rows, (f"{info}/RECORD", "", "")])
            wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD", _LONG_AGO), record.getvalue())
    except OSError as error:
        raise EnvironmentInstallError(f"can not pack {distribution.name}: {error}", cause=error) from error
    return path


def _written(wheel: zipfile.ZipFile, files: list[tuple[str, Path]]) -> Iterator[tuple[str, str, int]]:
    for name, path in files:
        content = path.read_bytes()
        entry = zipfile.ZipInfo(name, _LONG_AGO)
        entry.external_attr = (0o755 if path.stat().st_mode & 0o100 else 0o644) << 16
        wheel.writestr(entry, content, zipfile.ZIP_DEFLATED)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        yield name, f"sha256={digest}", len(content)
