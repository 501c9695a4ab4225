"""`vf-train`: what its line means, what it says before it trains, and how it ends."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.support.toy_environments import SOUND, Environments
from verifiers.cli.train import HERE, run, settings_of, with_bare_resume
from verifiers.errors import ExitCode
from verifiers.train.config_files import load_config


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environments:
    """A folder `environments` below the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "environments").mkdir()
    return Environments(tmp_path / "environments")


def test_dotted_flags_are_settings() -> None:
    """With `=`, with a value behind, or alone for true; the rest of the line stays in order."""
    line = ["a.toml", "--trainer.lr", "1e-5", "-v", "--trainer.packing", "--loop.steps=3", "--json", "b.toml"]
    settings, rest = settings_of(line)
    assert settings == ["trainer.lr=1e-5", "trainer.packing=true", "loop.steps=3"]
    assert rest == ["a.toml", "-v", "--json", "b.toml"]


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        (["--resume"], ["--resume", HERE]),
        (["--resume", "x.toml"], ["--resume", HERE, "x.toml"]),
        (["--resume", "outputs/one", "a.b=1"], ["--resume", "outputs/one", "a.b=1"]),
        (["-R", "--json"], ["-R", HERE, "--json"]),
    ],
    ids=["alone", "before-file", "folder", "before-flag"],
)
def test_resume_needs_no_folder(line: list[str], whole: list[str]) -> None:
    """A file or a setting behind it is no folder."""
    assert with_bare_resume(line) == whole


def test_dry_run_prints_a_file_that_gives_the_same(
    environments: Environments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """stdout is TOML: every setting, and in comments what would be run, with the environment's digest."""
    name = environments.write(SOUND)
    settings = [f"env={name}", "model.path=m", "loop.steps=7"]
    assert run([*settings, "--dry-run", "--trainer.lr", "1e-3"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert f"# environment: {name} " in shown and "tree:" in shown
    assert "# 7 steps of 8 groups × 8 rollouts = 448 rollouts" in shown
    (tmp_path / "again.toml").write_text(shown)
    assert load_config(["again.toml"]) == load_config([], [*settings, "trainer.lr=1e-3"])
    assert tomllib.loads(shown)["trainer"]["lr"] == 1e-3


def test_dry_run_as_json(environments: Environments, capsys: pytest.CaptureFixture[str]) -> None:
    """One event with the plan and every setting."""
    name = environments.write(SOUND)
    assert run([f"env={name}", "model.path=m", "--dry-run", "--json"]) == ExitCode.OK
    [event] = map(json.loads, capsys.readouterr().out.splitlines())
    assert event["event"] == "plan" and event["config"]["env"][0]["id"] == name
    assert event["environments"][0]["tasks"] > 0 and event["rollouts_per_batch"] == 64


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ([], "nothing says what to train"),
        (["absent.toml"], "can not read absent.toml"),
        (["model.path=m", "env=nowhere", "--dry-run"], "no environment 'nowhere'"),
        (["model.path=m", "env=e", "--trainer.lrr", "1"], "Did you mean 'lr'"),
        (["--dryrun"], "--dry-run"),
    ],
    ids=["nothing", "file", "environment", "setting", "flag"],
)
def test_mistakes_are_told_before_anything_is_loaded(
    environments: Environments, capsys: pytest.CaptureFixture[str], line: list[str], told: str
) -> None:
    """With a hint, and an exit code that is no success."""
    assert run(line) != ExitCode.OK
    shown = capsys.readouterr()
    assert told in shown.err and "hint:" in shown.err and not shown.out
