"""Every example runs offline, is short, and shows what it says it shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.namespaces import need_namespaces

FOLDER = Path(__file__).parent.parent.parent / "examples"
EXAMPLES = sorted(FOLDER.glob("[0-9]*.py"))
SHOWN = {
    "01_first_evaluation": ["mean reward 0.60 over 20 rollouts of scripted"],
    "02_own_environment": ["reward 1.25", "reward 0.25", "reward 0.05"],
    "03_rubric_with_judge": [
        "blue?       1.50",
        "seasons?    0.50",
        "unscored, JudgeError",
        "quota exceeded",
    ],
    "04_tools": ["no product 'lamps'; there are kettle, stool, lamp", "reward 1.0, 2 calls"],
    "05_evaluate_from_a_script": [
        "Double 2. 1.0 1.0 1.0 1.0",
        "failed",
        "mean 0.800",
        "saved in",
    ],
    "06_sandbox": ["tool       9", "reward 1.0, printed ['6', '10', '0']"],
}


def run(path: Path, *arguments: str, cwd: Path) -> str:
    """What an example prints; it must end well."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(path), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_shows_what_it_says(path: Path, tmp_path: Path) -> None:
    """It runs from any folder, without a network, and prints the lines expected."""
    if "sandbox" in path.stem:
        need_namespaces()
    printed = run(path, cwd=tmp_path)
    for line in SHOWN[path.stem]:
        assert line in printed


@pytest.mark.local
@pytest.mark.slow
def test_the_first_example_runs_the_embedded_model(tmp_path: Path) -> None:
    """With --local a real model answers."""
    assert "rollouts of SmolLM2-135M-Instruct" in run(EXAMPLES[0], "--local", cwd=tmp_path)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    """At most 60 lines, the first of which say what it shows and how to run it."""
    text = path.read_text()
    assert len(text.splitlines()) <= 60
    assert f"python examples/{path.name}" in text


def test_the_series_is_complete() -> None:
    """Numbered from 1, each with its expected lines above."""
    assert [path.stem for path in EXAMPLES] == sorted(SHOWN)
    assert [int(path.name[:2]) for path in EXAMPLES] == list(range(1, len(EXAMPLES) + 1))
