"""`kill -9` of a real process, anywhere in a step: its checkpoint goes on to train what an unbroken run does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = Path(__file__).with_name("killed_main.py")
POINTS = ("step", "report", "save", "saved")


def train(folder: Path, kind: str, *at: str) -> dict[str, object] | None:
    """A process from its newest checkpoint on: what it trained, None if it was killed."""
    command = [sys.executable, str(MAIN), str(folder), kind, *at]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    if at:
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        return None
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What an unbroken run trains."""
    return train(tmp_path_factory.mktemp("whole"), "simulated")


def test_a_run_that_was_killed_trains_every_rollout_once(tmp_path, whole):
    """While it saved, and then again after a report that nothing was saved of."""
    for at in ("2:save", "4:report"):
        train(tmp_path, "simulated", at)
    assert train(tmp_path, "simulated") == whole
    assert len(whole["trained"]) == len(set(whole["trained"])) == 6 * 2 * 4


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_killed_at_every_boundary(tmp_path, whole, step, point):
    """Each boundary of each step but the last, alone."""
    train(tmp_path, "simulated", f"{step}:{point}")
    assert train(tmp_path, "simulated") == whole


@pytest.mark.slow
@pytest.mark.train
@pytest.mark.timeout(400)
def test_without_lag_the_weights_are_those_of_an_unbroken_run(tmp_path):
    """Bit for bit, with a real model, engine and learner, killed twice."""
    pytest.importorskip("torch")
    for at in ("3:step", "4:save"):
        train(tmp_path / "broken", "torch", at)
    assert train(tmp_path / "broken", "torch") == train(tmp_path / "whole", "torch")
