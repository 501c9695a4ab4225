"""From an environment's folder to what is published: one source archive and the wheel that is built from it."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from verifiers.errors import EnvironmentInstallError, EnvironmentNotFoundError
from verifiers.rollouts.workers.uv import uv

PROJECT = "pyproject.toml"


class BuildError(EnvironmentInstallError):
    """The project could not be built."""

    hint = "See what uv says above; `uv build FOLDER` shows all of it."


@dataclass(frozen=True, slots=True)
class Built:
    """A wheel, and the source archive that it was made of, where there is one."""

    wheel: Path
    sdist: Path | None = None


def project_folder(environment: str, env_dir: Path) -> Path:
    """The folder of a local environment: a path, or a name below `env_dir`. EnvironmentNotFoundError if none.

    A folder here that only has the same name, such as a run's, is not taken for it.
    """
    named = Path(environment).expanduser()
    folder = named
    if os.sep not in environment and not (named / PROJECT).is_file():
        folder = env_dir / environment.replace("-", "_")
    if not (folder / PROJECT).is_file():
        raise EnvironmentNotFoundError(
            f"{folder} has no pyproject.toml" if folder.is_dir() else f"there is no folder {folder}",
            hint=f"Name an environment below {env_dir}, its folder, or a wheel.",
        )
    return folder


def build(folder: Path, into: Path | None = None) -> Built:
    """Build with uv, with the user's own settings and indexes, into `folder`/dist. BuildError if that fails.

    The wheel is made from the source archive, so what is missing there is missing in both.
    """
    into = folder / "dist" if into is None else into
    with tempfile.TemporaryDirectory() as scratch:
        try:
            asyncio.run(uv("build", "--quiet", "--out-dir", scratch, str(folder)))
        except EnvironmentInstallError as error:
            raise BuildError(f"{folder} can not be built: {error}", cause=error) from error
        made = {suffix: sorted(Path(scratch).glob(f"*{suffix}")) for suffix in (".whl", ".tar.gz")}
        if any(len(files) != 1 for files in made.values()):
            names = ", ".join(file.name for files in made.values() for file in files) or "nothing"
            raise BuildError(f"building {folder} made {names}, not one wheel and one .tar.gz")
        into.mkdir(parents=True, exist_ok=True)
        wheel, sdist = (Path(shutil.move(files[0], into / files[0].name)) for files in made.values())
    return Built(wheel, sdist)
