"""Virtual environments: a wheel of what is here, made once, by whoever comes first."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import shutil
import subprocess
import sys
import zipfile

import pytest

from tests.rollouts.workers.workers_support import alive, eventually
from verifiers.errors import EnvironmentInstallError
from verifiers.evals.workers import _source
from verifiers.rollouts.workers import venv
from verifiers.rollouts.workers.uv import uv
from verifiers.rollouts.workers.venv import ensure_venv
from verifiers.rollouts.workers.wheels import Source, our_extras, our_source
from verifiers.types.config import EvalConfig

PROJECT = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "tiny"
version = "0.1.0"
dependencies = ["verifiers[local]>=0.1", 'verifiers[none] ; python_version < "3"', "pluggy"]

[tool.hatch.build.targets.wheel]
only-include = ["tiny.py"]
"""


async def test_an_installed_distribution_is_packed_again(tmp_path):
    """The wheel installs the very files, and the same files give the same wheel."""
    wheels = [await Source("pluggy").wheel(tmp_path / folder) for folder in ("a", "b")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes() and wheels[0].name.endswith("-py3-none-any.whl")
    await uv("pip", "install", "--no-deps", "--no-index", "--target", str(tmp_path / "site"), str(wheels[0]))
    for file in importlib.metadata.files("pluggy") or []:
        if file.suffix == ".py":
            assert (tmp_path / "site" / file).read_bytes() == file.locate().read_bytes()


async def test_a_distribution_that_is_not_installed_is_told(tmp_path):
    """Also one that never was a wheel."""
    with pytest.raises(EnvironmentInstallError, match="not installed"):
        await Source("nothing-of-this-name").wheel(tmp_path)


async def test_what_uv_says_is_in_the_error():
    """The last lines of its output."""
    with pytest.raises(EnvironmentInstallError, match="uv pip install ended with 2"):
        await uv("pip", "install", "--no-such-option")


async def test_cancelling_ends_uv(tmp_path):
    """A build that hangs does not outlive the command."""
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "slow"\nbackend-path = ["."]\n'
        '[project]\nname = "slow"\nversion = "1"\n'
    )
    (tmp_path / "slow.py").write_text(
        "import os, pathlib, time\n\n\ndef build_wheel(*args, **kwargs):\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\n    time.sleep(600)\n"
    )
    task = asyncio.create_task(Source("slow", tmp_path).wheel(tmp_path / "wheels"))
    pid = tmp_path / "pid"
    await eventually(lambda: pid.exists() and pid.read_text())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await eventually(lambda: not alive(int(pid.read_text())))


def test_our_own_source_changes_with_our_own_files(tmp_path):
    """The digest is that of the package, not of the checkout around it."""
    source = our_source()
    assert source.folder is not None
    for part in source.parts:
        origin = source.folder / part
        copy = shutil.copytree if origin.is_dir() else shutil.copy
        copy(origin, tmp_path / part)
    copied = Source("verifiers", tmp_path, source.parts)
    assert copied.digest() == source.digest()
    (tmp_path / "README.md").write_text("another")
    assert copied.digest() == source.digest()
    (tmp_path / "verifiers" / "errors.py").write_text("# another")
    assert copied.digest() != source.digest()


def test_where_an_environment_is_taken_from(tmp_path, monkeypatch):
    """Its folder, also behind an editable installation; otherwise the installed distribution."""
    folder = tmp_path / "environments" / "tiny"
    folder.mkdir(parents=True)
    (folder / "tiny.py").write_text("")
    (folder / "pyproject.toml").write_text(PROJECT)
    config = EvalConfig(env_id="tiny", model="m", env_dir_path=str(tmp_path / "environments"))
    assert _source(config) == Source("tiny", folder.resolve())
    site = tmp_path / "site"
    info = site / "tiny-0.1.0.dist-info"
    info.mkdir(parents=True)
    (site / "tiny.py").write_text("")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(str(site))
    installed = EvalConfig(env_id="tiny", model="m", env_dir_path=str(tmp_path / "none"))
    assert _source(installed) == Source("tiny")
    url = {"url": folder.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(url))
    assert _source(installed) == Source("tiny", folder.resolve())


async def test_one_that_is_made_again_is_not_ready_before_it_is_whole(tmp_path, monkeypatch):
    """Its interpreter was removed: it comes back before the packages do, and nobody may take it for whole then."""
    seen = []

    async def in_place_of_uv(what, *_, **__):
        (tmp_path / "venv" / "lib" / "python3" / "site-packages").mkdir(parents=True, exist_ok=True)
        (tmp_path / "venv" / "bin").mkdir(exist_ok=True)
        (tmp_path / "venv" / "bin" / "python").touch()
        seen.append((what, venv._is_ready(tmp_path)))

    monkeypatch.setattr(venv, "uv", in_place_of_uv)
    for name in ("ready.json", "requirements.lock"):
        (tmp_path / name).touch()
    await venv._make(tmp_path, Source("tiny"), our_source(), (), None)
    assert seen == [("venv", False), ("pip", False)] and venv._is_ready(tmp_path)


@pytest.mark.slow
async def test_two_that_want_the_same_one_make_it_once(tmp_path):
    """Locked with hashes, with the extras it asks for, after an interruption too; a changed file gives another."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "tiny.py").write_text("import pluggy, verifiers\n")
    (folder / "pyproject.toml").write_text(PROJECT)
    source, cache = Source("tiny", folder), tmp_path / "cache"
    told = []
    made = await asyncio.gather(*(ensure_venv(source, cache, on_log=told.append) for _ in range(2)))
    assert sorted(venv.made for venv in made) == [False, True] and made[0].home == made[1].home and len(told) == 1
    lock = made[0].lock.read_text()
    assert "pluggy==" in lock and "xllamacpp==" in lock and "verifiers @ file:" in lock
    with zipfile.ZipFile(next((made[0].home / "wheels" / "environment").glob("*.whl"))) as wheel:
        assert "tiny.py" in wheel.namelist()
    assert our_extras(next((made[0].home / "wheels" / "environment").glob("*.whl"))) == {"local"}
    code = "import tiny, sys; print(sys.prefix, tiny.verifiers.__file__)"
    printed = subprocess.run([made[0].python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.count(str(made[0].home / "venv")) == 2 and sys.prefix not in printed
    (made[0].home / "ready.json").unlink()
    assert (await ensure_venv(source, cache)).made and made[0].lock.read_text() == lock
    (folder / "tiny.py").write_text("import pluggy, verifiers  # changed\n")
    assert (await ensure_venv(source, cache)).home != made[0].home
