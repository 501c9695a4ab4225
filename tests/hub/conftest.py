import subprocess
import sys
import types
from importlib import metadata
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.support.archives import write_wheel
from tests.support.hub import SLOW_ON_POSTGRESQL, running_hub
from tests.support.publish import publish_files
from verifiers.cli.hub import main as command

ALONE = {"Requires-Dist": []}
"""Headers of a package that needs nothing, so that nothing is asked of another index."""


@pytest.fixture(params=SLOW_ON_POSTGRESQL)
def hub(request):
    """A running hub: what a client does is the same on either database."""
    return request.getfixturevalue(f"{request.param}_hub")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of this test's own, and no settings of the user's."""
    monkeypatch.setenv("VF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("VF_CONFIG", str(tmp_path / "user.toml"))
    monkeypatch.setenv("VF_CREDENTIALS", str(tmp_path / "credentials.toml"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    return tmp_path / "cache"


class Place:
    """An empty virtual environment, and the `hub` command run for it."""

    def __init__(self, folder, url, capfd):
        self.folder, self.url, self._capfd = folder, url, capfd
        line = [find_uv_bin(), "venv", "--quiet", "--python", sys.executable, str(folder)]
        subprocess.run(line, check=True)
        self.site = next((folder / "lib").glob("python*/site-packages"))

    def hub(self, *arguments, python=True, url=None):
        """`hub …` to its end: its exit code and what it printed."""
        self._capfd.readouterr()
        place = ["--python", str(self.folder)] if python else []
        line = [*map(str, arguments), *place, "--hub-url", url or self.url]
        code = command.run(line)
        captured = self._capfd.readouterr()
        return types.SimpleNamespace(code=code, out=captured.out, err=captured.err)

    def uv(self, *arguments):
        """`uv pip …` for this environment."""
        line = [find_uv_bin(), "pip", arguments[0], "--python", str(self.folder), *map(str, arguments[1:])]
        return subprocess.run(line, capture_output=True, text=True)

    def installed(self):
        """Name → version of what is installed."""
        return {one.name: one.version for one in metadata.distributions(path=[str(self.site)])}

    def distribution(self, name):
        return next(iter(metadata.distributions(name=name, path=[str(self.site)])), None)


@pytest.fixture(scope="session")
def sqlite_hub(tmp_path_factory):
    """A hub without the SDK's wheel: tests elsewhere give the shared one a wheel, and locks then hold it."""
    with running_hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(scope="session")
def postgresql_hub(tmp_path_factory, postgresql):
    """The same on PostgreSQL."""
    with running_hub(tmp_path_factory.mktemp("hub"), database_url=postgresql()) as hub:
        yield hub


@pytest.fixture
def place(tmp_path, hub, cache, capfd):
    """A virtual environment beside a live hub."""
    return Place(tmp_path / "venv", hub.url, capfd)


@pytest.fixture
def release(hub, tmp_path):
    """Publishes a wheel that needs nothing; its path."""

    def make(owner, name="demo-env", version="0.1.0", **content):
        folder = tmp_path / "dist" / owner.slug
        folder.mkdir(parents=True, exist_ok=True)
        wheel = write_wheel(folder, name, version, **{"headers": ALONE, **content})
        publish_files(hub, owner, wheel)
        return Path(wheel)

    return make
