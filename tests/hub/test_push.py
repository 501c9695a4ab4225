"""`hub push`: build, check, plan, upload, and nothing done twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.support.archives import (
    make_sdist,
    make_wheel,
    pyproject_text,
    sdist_name,
    wheel_name,
    write_large_wheel,
)
from verifiers.cli.hub.main import run as hub_command
from verifiers.cli.hub.push import show
from verifiers.cli.init import Scaffold, write
from verifiers.cli.output import Output
from verifiers.errors import ConfigError, ExitCode, HubRefusedError, HubUnavailableError
from verifiers.hub import push as push_module
from verifiers.hub.build import Built
from verifiers.hub.bump import bump, check_can_bump, next_version
from verifiers.hub.push import carry_out, make_plan, wait_until_visible
from verifiers.hub.schema import ReleaseInfo

PROJECT = pyproject_text("demo-env", "0.1.0").replace('version = "0.1.0"', 'version = "0.1.0"  # raised by hub push')


def built(folder: Path, name="demo-env", version="0.1.0", **content) -> Built:
    folder.mkdir(exist_ok=True)
    wheel, sdist = folder / wheel_name(name, version), folder / sdist_name(name, version)
    wheel.write_bytes(make_wheel(name, version, **content))
    sdist.write_bytes(make_sdist(name, version, **content))
    return Built(wheel, sdist)


@pytest.fixture
def author(hub):
    """A client of the hub, of a fresh owner."""
    with hub.client(hub.owner().token) as client:
        yield client


@pytest.fixture
def project(tmp_path) -> Path:
    folder = tmp_path / "environments" / "demo_env"
    folder.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "README.md").write_text("# An environment for tests\n")
    (folder / "demo_env.py").write_text(
        "import verifiers as vf\n\n\ndef load_environment(**kwargs):\n"
        '    rows = [{"question": "2 + 2?", "answer": "4"}]\n'
        "    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[lambda **_: 1.0]), **kwargs)\n"
    )
    return folder


def hub_push(hub, owner, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "verifiers.cli.hub.main", "push", "demo-env", "--static-only", *flags]
    variables = {**os.environ, "VF_HUB_URL": hub.url, "VF_HUB_TOKEN": owner.token, "NO_COLOR": "1"}
    place = {"cwd": folder.parent.parent, "env": variables, "stdin": subprocess.DEVNULL}
    return subprocess.run(line, capture_output=True, text=True, timeout=100, **place)


@pytest.mark.slow
def test_push_publishes_once_and_raises_the_version(hub, project):
    """A dry run changes nothing; a push publishes both files, then raises the version; a repeat is a no-op."""
    owner = hub.owner()
    dry = hub_push(hub, owner, project, "--dry-run", "--json")
    assert dry.returncode == 0, dry.stderr
    plan = json.loads(dry.stdout)
    assert plan["state"] == "new project"
    inside = {row["name"]: row["size"] for row in plan["files"][1]["contents"]}
    assert inside["demo_env.py"] == (project / "demo_env.py").stat().st_size
    unasked = hub_push(hub, owner, project)
    assert (unasked.returncode, "--yes" in unasked.stderr) == (2, True), unasked.stderr
    with hub.client(owner.token) as client:
        assert client.http.get(f"/api/v1/{owner.slug}/demo-env").status_code == 404
        done = hub_push(hub, owner, project, "--yes", "--json")
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        release = client.get(f"/api/v1/{owner.slug}/demo-env/0.1.0", ReleaseInfo)
    assert {file.filename: file.sha256 for file in release.files} == {f["name"]: f["sha256"] for f in told["files"]}
    again = hub_push(hub, owner, project, "--yes", "--bump", "minor")
    assert (again.returncode, "already published, same bytes" in again.stdout) == (0, True), again.stderr
    (project / "demo_env.py").write_text((project / "demo_env.py").read_text() + "\n# another thought\n")
    other = hub_push(hub, owner, project, "--yes")
    assert (other.returncode, "Raise version" in other.stderr) == (1, True), other.stderr
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(text.replace("0.1.0", "0.2.0"))
    raised = hub_push(hub, owner, project, "--yes", "--bump", "minor")
    assert raised.returncode == 0, raised.stderr
    assert 'version = "0.3.0"  # raised by hub push' in (project / "pyproject.toml").read_text()
    assert "--hub-url" not in raised.stdout
    elsewhere = hub.url.replace("127.0.0.1", "localhost")
    assert f"@0.3.0 --hub-url {elsewhere}" in hub_push(hub, owner, project, "--yes", "--hub-url", elsewhere).stdout


@pytest.mark.slow
def test_an_evaluation_between_two_pushes_changes_nothing(sqlite_hub, tmp_path):
    """What an evaluation leaves in the folder of an environment from vf-init is no part of its release."""
    owner, folder = sqlite_hub.owner(), tmp_path / "environments"
    write(Scaffold("demo-env"), folder)
    first = hub_push(sqlite_hub, owner, folder / "demo_env", "--yes")
    assert first.returncode == 0, first.stderr
    results = folder / "demo_env" / "outputs" / "evals" / "demo-env--m" / "1" / "results.jsonl"
    results.parent.mkdir(parents=True)
    results.write_text('{"reward": 1.0}\n')
    again = hub_push(sqlite_hub, owner, folder / "demo_env", "--yes")
    assert (again.returncode, "already published, same bytes" in again.stdout) == (0, True), again.stderr


@pytest.mark.slow
def test_what_breaks_a_rule_is_not_sent(sqlite_hub, project):
    """A module without load_environment fails the check, with exit code 1, before the hub hears of it."""
    owner = sqlite_hub.owner()
    (project / "demo_env.py").write_text("def load():\n    return None\n")
    failed = hub_push(sqlite_hub, owner, project, "--yes")
    assert (failed.returncode, "load_environment" in failed.stderr) == (1, True), failed.stderr
    with sqlite_hub.client(owner.token) as client:
        assert client.http.get(f"/api/v1/{owner.slug}/demo-env").status_code == 404


def test_without_a_token_nothing_is_built(sqlite_hub, project, monkeypatch, capsys):
    """The hub is asked first who publishes."""
    monkeypatch.setenv("VF_HUB_TOKEN", "")
    monkeypatch.setenv("VF_CREDENTIALS", str(project / "none.toml"))
    for more in ([], ["--owner", "alice"]):
        line = ["push", str(project), "--yes", "--hub-url", sqlite_hub.url, *more]
        assert hub_command(line) == ExitCode.DENIED
        told = capsys.readouterr().err
        assert "hub login" in told and "building" not in told


def test_a_plan_shows_what_is_in_both_archives(author, tmp_path, capsys):
    """Names and sizes, the first of very many and how many more there are."""
    files = {f"demo_env_data/{number:03}.txt": b"x" * 1234 for number in range(60)}
    plan = make_plan(author, built(tmp_path / "one", files=files))
    show(plan, Output())
    told = capsys.readouterr().out
    wheel, sdist = told.split("in demo_env-0.1.0.tar.gz:")
    assert "in demo_env-0.1.0-py3-none-any.whl:" in wheel
    for text in (wheel, sdist):
        assert ["demo_env_data/000.txt", "1,234"] in map(str.split, text.splitlines())
        assert "more; --dry-run --json lists all" in text
    for file in plan.to_dict()["files"]:
        assert {"name": "demo_env_data/059.txt", "size": 1234} in file["contents"]


def test_a_plan_says_what_is_new(author, tmp_path):
    """A project, then a version is new; the same bytes are published; a source archive may follow its wheel."""
    first = built(tmp_path / "one")
    alone = make_plan(author, Built(first.wheel))
    assert alone.state == "new project"
    carry_out(author, alone)
    both = make_plan(author, first)
    assert (both.state, [file.state for file in both.files]) == ("new files", ["same", "new"])
    assert carry_out(author, both).created
    wait_until_visible(author, both, 30)
    assert make_plan(author, first).state == "published"
    assert make_plan(author, built(tmp_path / "two", version="0.2.0")).state == "new version"


def test_other_content_is_refused_and_another_build_is_not(author, tmp_path):
    """A file with other times in it holds what is published; one with another line does not."""
    first = built(tmp_path / "one")
    plan = make_plan(author, first)
    carry_out(author, plan)
    again = tmp_path / "again"
    again.mkdir()
    wheel = again / first.wheel.name
    with zipfile.ZipFile(first.wheel) as old, zipfile.ZipFile(wheel, "w") as new:
        for name in reversed(old.namelist()):
            new.writestr(zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0)), old.read(name))
    assert wheel.read_bytes() != first.wheel.read_bytes()
    assert make_plan(author, Built(wheel, first.sdist)).state == "published"
    with pytest.raises(HubRefusedError, match="differs") as refused:
        make_plan(author, built(tmp_path / "other", description="# Other\n"))
    assert refused.value.code == "file-exists"


def test_a_broken_upload_goes_on_where_it_was(author, tmp_path):
    """The connection breaks in the middle of a large file; the next try sends only the rest."""
    wheel = write_large_wheel(tmp_path, "demo-env", "0.1.0", 3 << 20)
    sent: list[int] = []
    breaks = [True]

    def listen(_name: str, at: int, _total: int) -> None:
        sent.append(at)
        if at > 2 << 20 and breaks:
            breaks.clear()
            raise httpx.WriteError("the cable was pulled")

    published = carry_out(author, make_plan(author, Built(wheel)), listen=listen)
    assert published.created
    assert sent.count(sent[0]) == 1, "the first bytes were sent again"


def test_a_session_that_was_left_open_is_gone_on_with(author, tmp_path, monkeypatch):
    """A push that was killed after its bytes were sent leaves a session; the next push publishes that."""
    files = built(tmp_path / "one")
    plan = make_plan(author, files)
    session = push_module._session(author, plan)
    for file in session.files:
        place = f"/api/v1/{plan.owner}/{plan.name}/releases/{session.id}/{file.name}"
        author.request("PUT", place, content={one.name: one.path for one in plan.files}[file.name].read_bytes())
    sent: list[str] = []
    assert carry_out(author, make_plan(author, files), listen=lambda name, *_: sent.append(name)).created
    assert sent == []


def test_a_session_of_an_earlier_build_makes_way(author, tmp_path):
    """What was built since is published, and not what an unfinished push had promised."""
    push_module._session(author, make_plan(author, built(tmp_path / "one", description="# Draft\n")))
    files = built(tmp_path / "two")
    published = carry_out(author, make_plan(author, files))
    assert published.digest == push_module.sha256_of(files.wheel)


def test_an_index_that_does_not_show_it_is_said(author, tmp_path):
    """Waiting for a release that is not published ends with exit code 4."""
    plan = make_plan(author, built(tmp_path / "one"))
    with pytest.raises(HubUnavailableError, match="does not show it"):
        wait_until_visible(author, plan, 0)


@pytest.mark.parametrize(
    ("version", "part", "raised"),
    [
        ("0.1.0", "patch", "0.1.1"), ("0.1.0", "minor", "0.2.0"), ("0.1.0", "major", "1.0.0"),
        ("1.2", "patch", "1.2.1"), ("1.2.3rc1", "patch", "1.2.3"), ("1!2.3.4.post1", "minor", "1!2.4.0"),
    ],
)  # fmt: skip
def test_the_next_version(version, part, raised):
    """One part goes up, those after it are 0, and what is no final version goes."""
    assert next_version(version, part) == raised


def test_only_the_project_table_is_changed(tmp_path):
    """Another table's version, comments and order stay."""
    text = '[tool.other]\nversion = "0.1.0"\n\n[project]  # ours\nname = "x"\nversion = "0.1.0" # now\n'
    (tmp_path / "pyproject.toml").write_text(text)
    check_can_bump(tmp_path)
    assert bump(tmp_path, "0.1.0", "patch") == "0.1.1"
    assert (tmp_path / "pyproject.toml").read_text() == text.replace('"0.1.0" # now', '"0.1.1" # now')


def test_a_version_that_is_computed_can_not_be_raised(tmp_path):
    """A dynamic version is refused before anything is published."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\ndynamic = ["version"]\n')
    with pytest.raises(ConfigError, match="no version"):
        check_can_bump(tmp_path)
