"""Real uv, pip and twine that see nothing of this machine: no configuration, index, cache, login or PYTHONPATH.

    def test_something(hub, installers):
        ended = installers.uv_publish(hub.url, owner.token, wheel)              # or twine_upload
        assert ended.code == 0, ended.said
        python = installers.venv("second")
        installers.uv("pip", "install", "--python", python, "--index", url, "demo-env")
        installers.pip(python, "install", "--index-url", url, "demo-env")       # a current pip

A machine's settings let a missing package be "found" elsewhere, so every tool here starts from an empty home.
`--default-index`, `--index-url` and the like are for the test to give: without them a tool asks the public index.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from uv import find_uv_bin

from tests.support.variables import variables

PATIENCE = 100.0
"""Seconds after which an installer is killed, so that a failing test ends."""

_HIDDEN = ("PIP_", "UV_", "TWINE_", "PYTHON", "VIRTUAL_ENV", "XDG_", "NETRC", "HOME")


@dataclass(frozen=True)
class Ended:
    """How a tool ended. `said` is all that it printed."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err


class Installers:
    """The tools, in a folder of their own."""

    def __init__(self, folder: Path, pip: Path | None = None) -> None:
        self.folder = folder
        self._pip = pip
        for name in ("home", "work"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.variables = clean_variables(folder)

    def run(self, *line: Any, cwd: Path | None = None, **variables: str) -> Ended:
        """Any program in the clean environment."""
        ended = subprocess.run(
            [str(part) for part in line], cwd=cwd or self.folder / "work", env={**self.variables, **variables},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def uv(self, *arguments: Any, **options: Any) -> Ended:
        """`uv …`."""
        return self.run(find_uv_bin(), *arguments, **options)

    def twine(self, *arguments: Any, **options: Any) -> Ended:
        """`twine …`."""
        return self.run(sys.executable, "-m", "twine", *arguments, **options)

    def pip(self, python: Path, *arguments: Any, **options: Any) -> Ended:
        """`pip …` of the newest release, for the environment of `python`."""
        assert self._pip is not None, "take the fixture `installers`"
        return self.run(self._pip, "-m", "pip", "--isolated", "--python", python, *arguments, **options)

    def venv(self, name: str = "venv") -> Path:
        """An empty virtual environment; its Python."""
        made = self.uv("venv", "--quiet", "--python", sys.executable, self.folder / name)
        assert made.code == 0, made.said
        return self.folder / name / "bin" / "python"

    def uv_publish(self, hub: str, token: str, *files: Path, owner: str | None = None, flags: Any = ()) -> Ended:
        """`uv publish` to a hub: to the token's owner, or to another one."""
        return self.uv("publish", "--publish-url", upload_url(hub, owner), *flags, *files, UV_PUBLISH_TOKEN=token)

    def twine_upload(self, hub: str, token: str, *files: Path, owner: str | None = None, flags: Any = ()) -> Ended:
        """`twine upload` to a hub."""
        login = {"TWINE_USERNAME": "__token__", "TWINE_PASSWORD": token}
        line = ("upload", "--non-interactive", "--disable-progress-bar", "--repository-url", upload_url(hub, owner))
        return self.twine(*line, *flags, *files, **login)


def upload_url(hub: str, owner: str | None = None) -> str:
    """Where installers upload to."""
    return f"{hub}/{owner}/legacy/" if owner else f"{hub}/legacy/"


def clean_variables(folder: Path) -> dict[str, str]:
    """The environment variables of a machine on which nothing was ever configured."""
    own = {
        "HOME": str(folder / "home"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_CACHE_DIR": str(folder / "pip-cache"),
        "PYTHON_KEYRING_BACKEND": "keyring.backends.null.Keyring",
        "UV_NO_CONFIG": "1",
        "UV_CACHE_DIR": str(folder / "uv-cache"),
        "UV_PYTHON_DOWNLOADS": "never",
        "UV_NO_PROGRESS": "1",
        "NO_COLOR": "1",
        "COLUMNS": "200",  # twine wraps what it says
    }
    return variables(own, *_HIDDEN)


@pytest.fixture(scope="session")
def current_pip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has the newest pip: the one that comes with a virtual environment is years old."""
    folder = tmp_path_factory.mktemp("pip")
    uv, python = find_uv_bin(), folder / "bin" / "python"
    made = ("venv", "--quiet", "--python", sys.executable, folder)
    for line in (made, ("pip", "install", "--quiet", "--python", python, "pip>=25.3")):
        subprocess.run([uv, *map(str, line)], check=True, capture_output=True, timeout=PATIENCE)
    return python


@pytest.fixture
def installers(tmp_path: Path, request: pytest.FixtureRequest) -> Installers:
    """uv, twine and pip in a folder of this test."""
    return Installers(tmp_path / "installers", request.getfixturevalue("current_pip"))


@pytest.fixture
def publishers(tmp_path: Path) -> Installers:
    """uv and twine only, which needs no network to set up."""
    return Installers(tmp_path / "installers")
