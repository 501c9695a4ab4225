"""Broken packages beside good ones: whatever looks through all that is installed passes them by."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from verifiers.envs.installed import homes_of_modules, installed_package, installed_packages
from verifiers.envs.load import load_environment
from verifiers.envs.provenance import environment_ref
from verifiers.errors import EnvironmentNotFoundError
from verifiers.evals.lookup import find_environment

BROKEN = {
    "without METADATA": {"top_level.txt": "toy_ghost\n"},
    "an empty METADATA": {"METADATA": "", "top_level.txt": "toy_ghost\n"},
    "without a name": {"METADATA": "Metadata-Version: 2.4\nVersion: 1.0\n", "RECORD": "toy_ghost.py,,\n"},
    "without a version": {"METADATA": "Metadata-Version: 2.4\nName: toy-ghost\n", "RECORD": "toy_ghost.py,,\n"},
    "nothing at all": {},
}


@pytest.fixture(params=["standard-library", "backport"])
def finder(request, monkeypatch):
    """Whose finder looks for packages. Importing the backport takes the standard library's away, for good."""
    backport = pytest.importorskip("importlib_metadata")
    if request.param == "standard-library":
        monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if not _is_of(one, backport)])
        find = staticmethod(metadata.MetadataPathFinder.find_distributions)
        monkeypatch.setattr(PathFinder, "find_distributions", find, raising=False)
    else:
        assert any(_is_of(one, backport) for one in sys.meta_path)


def _is_of(finder, backport) -> bool:
    return isinstance(finder, backport.MetadataPathFinder)


@pytest.fixture(params=BROKEN.values(), ids=[name.replace(" ", "-") for name in BROKEN])
def site(request, tmp_path, monkeypatch, finder) -> Path:
    """A folder on the path with a module whose metadata are broken, and one that is as it should be."""
    (tmp_path / "toy_ghost.py").write_text("")
    (tmp_path / "toy_good").mkdir()
    (tmp_path / "toy_good" / "__init__.py").write_text("")
    broken = tmp_path / "toy_ghost-1.0.dist-info"
    good = {"METADATA": "Metadata-Version: 2.4\nName: toy-good\nVersion: 2.0\n", "RECORD": "toy_good/__init__.py,,\n"}
    for folder, files in ((broken, request.param), (tmp_path / "toy_good-2.0.dist-info", good)):
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_broken_package_is_none(site):
    """It is neither listed nor found, nor the home of a module."""
    assert "toy-good" in {name for name, _ in installed_packages()}
    assert "toy-ghost" not in {name for name, _ in installed_packages()}
    assert installed_package("toy-ghost") is None
    found = installed_package("Toy.Good")
    assert found is not None and found.version == "2.0"
    homes = homes_of_modules()
    assert homes["toy_good"] == ["toy-good"] and "toy_ghost" not in homes


def test_errors_about_environments_are_told_beside_a_broken_package(site):
    """What is near is told, and nothing else comes up."""
    with pytest.raises(EnvironmentNotFoundError, match="no module toy_goood"):
        load_environment("toy-goood")
    with pytest.raises(EnvironmentNotFoundError, match="among the installed packages"):
        find_environment("toy-goood")


def test_a_module_with_a_broken_package_has_no_version(site):
    """It can be found and played; nobody knows its version."""
    assert find_environment("toy-ghost").version is None
    assert find_environment("toy-good").version == "2.0"
    assert environment_ref("toy-ghost")["version"] is None


def test_a_module_is_at_home_where_the_standard_library_says(finder):
    """The same answer for all that is installed here, but for what has files of compiled code only."""
    script = "import json; from importlib import metadata as m; print(json.dumps(m.packages_distributions()))"
    told = json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
    ours = homes_of_modules()
    assert {"numpy", "pytest", "yaml"} <= set(ours)
    assert {name for name in told if name.isidentifier()} <= set(ours)
    assert all(set(homes) <= set(ours[name]) for name, homes in told.items() if name.isidentifier())
