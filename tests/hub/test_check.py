"""`hub check` says what the hub will say, and whether an environment plays from its wheel alone."""

import hashlib
import json
import os
import sys

import pytest

from tests.support.archives import (
    MODULE,
    make_sdist,
    make_wheel,
    pyproject_text,
    sdist_name,
    wheel_name,
    write_sdist,
    write_wheel,
)
from verifiers.cli.hub.main import run as hub
from verifiers.errors import EnvironmentNotFoundError
from verifiers.hub.build import BuildError, Built, build, project_folder
from verifiers.hub.check import check_wheel, report_path
from verifiers.hub.check_run import PLAYED, run_checks
from verifiers.hub.package.facts import Policy

BACKEND = '''
import pathlib, shutil

def build_sdist(folder, config_settings=None):
    return shutil.copy(next(pathlib.Path().glob("made/*.tar.gz")), folder).rpartition("/")[2]

def build_wheel(folder, config_settings=None, metadata_directory=None):
    return shutil.copy(next(pathlib.Path().glob("made/*.whl")), folder).rpartition("/")[2]
'''
BUILD_SYSTEM = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def project(folder, name="demo-env", backend=BACKEND, **content):
    """A project that uv builds without a network: its backend hands out what was made before."""
    home = folder / "environments" / name.replace("-", "_")
    (home / "made").mkdir(parents=True)
    pyproject = BUILD_SYSTEM + pyproject_text(name, "0.1.0").partition("\n\n")[2]
    wheel = make_wheel(name, **content)
    sdist = make_sdist(name, pyproject=pyproject, files={"backend.py": backend, f"made/{wheel_name(name)}": wheel})
    (home / "pyproject.toml").write_text(pyproject)
    (home / "backend.py").write_text(backend)
    (home / "made" / sdist_name(name)).write_bytes(sdist)
    return home


def statuses(report):
    return {check.id: check.status for check in report.checks}


# --- the rules --------------------------------------------------------------------------------------------------


def test_a_report_is_bound_to_the_bytes_of_its_wheel(tmp_path):
    """It lies beside the wheel, and names it by its digest."""
    built = Built(write_wheel(tmp_path), write_sdist(tmp_path))
    report = check_wheel(built, static_only=True)
    assert report.passed
    assert statuses(report) == dict.fromkeys(["wheel-rules", "sdist-rules", "agreement"], "ok")
    written = json.loads(report_path(built.wheel).read_text())
    digest = hashlib.sha256(built.wheel.read_bytes()).hexdigest()
    assert (written["schema_version"], written["wheel_sha256"], report.wheel_sha256) == (1, digest, digest)


def test_a_broken_rule_is_told_as_the_hub_tells_it(tmp_path):
    """With its code and hint; what would run is skipped."""
    heard = []
    report = check_wheel(Built(write_wheel(tmp_path, module="x = 1\n")), listen=heard.append)
    assert not report.passed
    assert heard == report.checks
    first = report.checks[0]
    assert (first.id, first.status) == ("wheel-rules", "failed")
    assert first.detail.endswith("binds no load_environment at its top level [load-environment]")
    assert "Define load_environment" in first.hint
    assert {name: statuses(report)[name] for name in ("install", *PLAYED)} == dict.fromkeys(
        ("install", *PLAYED), "skipped"
    )


def test_a_private_project_may_have_what_a_public_one_may_not(tmp_path):
    """The policy is the hub's."""
    built = Built(write_wheel(tmp_path, version="0.1.0+mine"))
    assert not check_wheel(built, static_only=True).passed
    assert check_wheel(built, static_only=True, policy=Policy(private=True)).passed


def test_what_is_worth_knowing_is_told(tmp_path):
    """A rule that only warns does not fail the check."""
    report = check_wheel(Built(write_wheel(tmp_path, module="from x import *\n")), static_only=True)
    assert report.passed
    assert "[star-import]" in report.checks[0].detail


@pytest.mark.parametrize(
    ("sdist", "says"),
    [
        ({"version": "0.2.0"}, "the source archive demo-env 0.2.0"),
        (
            {
                "tool": '[tool.verifiers.hub]\ndependencies = ["alice/base"]\n',
                "headers": {"Requires-Dist": ["verifiers", "base"]},
            },
            "alice/base is not among",
        ),
    ],
)
def test_wheel_and_source_archive_are_held_to_each_other(tmp_path, sdist, says):
    """A release is one version, and what it stands on is asked for by its wheel."""
    report = check_wheel(Built(write_wheel(tmp_path), write_sdist(tmp_path, **sdist)), static_only=True)
    assert statuses(report)["agreement"] == "failed"
    assert says in report.checks[-1].detail


# --- building ---------------------------------------------------------------------------------------------------


def test_a_project_is_built_into_its_dist_folder(tmp_path):
    """The wheel is built from the source archive."""
    home = project(tmp_path)
    built = build(home)
    assert (built.wheel, built.sdist) == (home / "dist" / wheel_name(), home / "dist" / sdist_name())
    assert check_wheel(built, static_only=True).passed
    assert build(home, tmp_path / "out").wheel.parent == tmp_path / "out"


@pytest.mark.parametrize("backend", ["raise SystemExit('no luck')", BACKEND.replace("*.whl", "*.none")])
def test_a_project_that_can_not_be_built_says_so(tmp_path, backend):
    """With what uv says."""
    with pytest.raises(BuildError, match="can not be built") as caught:
        build(project(tmp_path, backend=backend))
    assert "uv build" in str(caught.value)


def test_a_folder_is_found_by_name_and_by_path(tmp_path, monkeypatch):
    """A name is one below the folder of environments, unless a folder of that name is here."""
    monkeypatch.chdir(tmp_path)
    home = project(tmp_path)
    assert project_folder("demo-env", tmp_path / "environments") == home
    assert project_folder("environments/demo_env", tmp_path / "none").samefile(home)
    with pytest.raises(EnvironmentNotFoundError, match="there is no folder"):
        project_folder("other", tmp_path / "environments")
    (tmp_path / "demo-env").mkdir()  # what `vf-train … -o demo-env` left
    assert project_folder("demo-env", tmp_path / "environments") == home
    with pytest.raises(EnvironmentNotFoundError, match=r"no pyproject\.toml"):
        project_folder(str(tmp_path), tmp_path)


# --- what runs --------------------------------------------------------------------------------------------------


@pytest.fixture
def played(tmp_path, monkeypatch):
    """Plays a module as if it were installed, with this Python: making virtual environments takes long."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -P "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))

    def play(source, seconds=100.0, **env_args):
        (tmp_path / "demo_env.py").write_text(source)
        results = []
        run_checks(str(python), "demo-env", env_args, tmp_path, seconds, results.append)
        return results

    return play


def test_a_sound_environment_plays(played):
    """Import, load and two rollouts with a scripted model."""
    results = played(MODULE)
    assert [(result.id, result.status) for result in results] == [(name, "ok") for name in PLAYED]
    assert results[-1].detail == "1 rollouts with a scripted model, rewards 0"


FAILING = {
    "import": ("raise RuntimeError('broken')", "broken"),
    "import ": ("import nowhere_at_all", "nowhere_at_all"),
    "import  ": ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
    "import   ": ("import os\nprint('on my way', flush=True)\nos._exit(3)", "status 3; it said last: on my way"),
    "import    ": ("import sys\nsys.exit(0)", "SystemExit"),
    "load": ("def load_environment(**kwargs):\n    return 1\n", "returned int"),
    "load ": ("def load_environment(**kwargs):\n    open('tasks.json')\n", "tasks.json"),
    "load  ": (MODULE.replace("(**kwargs", "(level, **kwargs"), "level"),
    "evaluate": (MODULE.replace("return float(", "raise KeyError("), "KeyError"),
    "load   ": (MODULE.replace('[{"question": "What is 2 + 2?", "answer": "4"}]', "[]"), "no rows"),
}


@pytest.mark.parametrize("name", FAILING)
def test_the_first_check_that_fails_says_why(played, name):
    """What comes after it is skipped."""
    source, says = FAILING[name]
    results = played(source)
    assert [result.id for result in results] == list(PLAYED)
    failed = [result for result in results if result.status == "failed"]
    assert [result.id for result in failed] == [name.strip()]
    assert says in failed[0].detail
    assert {result.status for result in results[results.index(failed[0]) + 1 :]} <= {"skipped"}


def test_what_an_environment_writes_among_the_results_is_none(played):
    """It may find the pipe; it can not end the command with it."""
    noise = "import os\nfor number in range(3, 20):\n    try:\n        os.write(number, b'x\\n{\"id\": \"y\"}\\n')\n"
    results = played(f"{noise}    except OSError:\n        pass\n{MODULE}")
    assert [(result.id, result.status) for result in results] == [(name, "ok") for name in PLAYED]


def test_what_hangs_is_ended(played):
    """Also what keeps the pipe open and ignores the end of its parent."""
    results = played("import time\ntime.sleep(600)\n", seconds=2.0)
    assert [result.status for result in results] == ["failed", "skipped", "skipped"]
    assert results[0].detail.startswith("it did not end within 2 s")


KEYS = [
    "import verifiers as vf\ndef load_environment():\n    vf.ensure_keys(['NO_SUCH_API_KEY'])\n",
    "import os\ndef load_environment():\n    return os.environ['NO_SUCH_API_KEY']\n",
]


@pytest.mark.parametrize("source", KEYS)
def test_what_needs_a_key_that_is_not_here_is_no_failure(played, source):
    """The check can not be made on this machine, and says so."""
    results = played(source)
    assert [result.status for result in results] == ["ok", "skipped", "skipped"]
    assert "NO_SUCH_API_KEY" in results[1].detail


def test_arguments_reach_the_environment(played):
    """An environment may need them."""
    source = MODULE.replace("(**kwargs):\n", "(level, **kwargs):\n    assert level == 3\n")
    assert [result.status for result in played(source, level=3)] == ["ok"] * 3


# --- the command ------------------------------------------------------------------------------------------------


def test_the_command_tells_each_check_and_the_verdict(tmp_path, capsys, monkeypatch):
    """Data on stdout, talk on stderr, exit code 1 for a check that fails."""
    project(tmp_path)
    project(tmp_path, "broken-env", module="x = 1\n")
    monkeypatch.chdir(tmp_path)
    assert hub(["check", "demo-env", "--static-only"]) == 0
    out = capsys.readouterr()
    assert "demo_env-0.1.0-py3-none-any.whl passed" in out.out
    assert "building" in out.err
    assert hub(["check", "broken-env", "--static-only"]) == 1
    out = capsys.readouterr().out
    assert "[load-environment]" in out
    assert "hint: Define load_environment" in out


def test_the_report_is_what_json_prints(tmp_path, capsys):
    """One object, the one that is saved."""
    wheel, sdist = write_wheel(tmp_path), write_sdist(tmp_path)
    assert hub(["check", str(wheel), "--sdist", str(sdist), "--static-only", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(report_path(wheel).read_text())


@pytest.mark.parametrize(
    "arguments", [["nothing.whl"], ["nothing"], ["x.whl", "--timeout", "0"], ["x.whl", "-a", "[]"], []]
)
def test_what_can_not_be_checked_is_told(arguments, tmp_path, monkeypatch, capsys):
    """A usage error, or a project that is not there."""
    monkeypatch.chdir(tmp_path)
    assert hub(["check", *arguments]) in (1, 2)
    assert "hint:" in capsys.readouterr().err


@pytest.mark.slow
def test_what_an_environment_stands_on_comes_from_its_hub(tmp_path, sqlite_hub, publishers, capsys, monkeypatch):
    """From the index of that package alone, with the user's token, and first; without a hub the check says so."""
    owner = sqlite_hub.owner()
    base = write_wheel(tmp_path, "check-base-env", "1.0", module=MODULE)
    assert publishers.uv_publish(sqlite_hub.url, owner.token, base).code == 0
    tool = f'[tool.verifiers.hub]\ndependencies = ["{owner.slug}/check-base-env>=1.0"]\n'
    headers = {"Requires-Dist": ["verifiers", "check-base-env>=1.0"]}
    source = "from check_base_env import load_environment\n"
    wheel = write_wheel(
        tmp_path, headers=headers, module=source, dist_info={"extra_metadata/pyproject.toml": tool}
    )
    sdist = write_sdist(tmp_path, headers=headers, tool=tool)
    monkeypatch.setenv("VF_HUB_TOKEN", owner.token)
    files = ["check", str(wheel), "--sdist", str(sdist)]
    assert hub([*files, "--hub-url", sqlite_hub.url]) == 0, capsys.readouterr()
    assert "rollouts with a scripted model" in capsys.readouterr().out
    tool = tool.replace("base-env", "other-env")
    sdist.write_bytes(make_sdist(headers={"Requires-Dist": ["check-other-env>=1.0"]}, tool=tool))
    wheel.write_bytes(make_wheel(headers={"Requires-Dist": ["check-other-env>=1.0"]}, module=source))
    assert hub([*files, "--hub-url", sqlite_hub.url]) == 1
    out = capsys.readouterr().out
    assert "check-other-env was not found" in out
    assert owner.token not in out + report_path(wheel).read_text()
    monkeypatch.delenv("VF_HUB_URL", raising=False)
    assert hub(files) == 1
    assert "no hub was named to install from" in capsys.readouterr().out


@pytest.mark.slow
def test_an_environment_that_leans_on_its_folder_fails_where_only_its_wheel_is(tmp_path, capsys):
    """With the real uv: the sound one plays in a virtual environment of its own, the other one misses its data."""
    sound = project(tmp_path)
    assert hub(["check", str(sound), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {check["id"]: check["status"] for check in report["checks"]} == dict.fromkeys(
        ["wheel-rules", "sdist-rules", "agreement", "install", *PLAYED], "ok"
    )
    assert len(report["lock_sha256"]) == 64
    reading = "import pathlib\n" + MODULE.replace("    tasks =", "    pathlib.Path('t.json').read_text()\n    tasks =")
    leaning = project(tmp_path, "leaning-env", module=reading)
    (leaning / "t.json").write_text("[]")
    assert hub(["check", str(leaning)]) == 1
    out = capsys.readouterr().out
    assert "t.json" in out
    assert "✗ failed" in out
