"""`metrics.jsonl` holds each step once, whatever happened to the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from verifiers.errors import StoreError
from verifiers.train.observers.metrics_file import MetricsFile, read_metrics
from verifiers.train.report import StepReport


def report(step: int, **figures: float) -> StepReport:
    """A step that trained."""
    return StepReport(step, step, True, 0.5, figures)


def steps(path: Path) -> list[int]:
    return [row["step"] for row in read_metrics(path)]


def test_reports_become_flat_lines(tmp_path: Path) -> None:
    """Figures keep their names, beside what every report has."""
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics(report(1, **{"reward/mean": 0.25}))
    own = {"step": 1, "version": 1, "trained": True, "seconds": 0.5}
    assert read_metrics(path) == [{**own, "reward/mean": 0.25}]
    assert read_metrics(tmp_path / "absent") == []


def test_a_run_that_goes_on_makes_no_step_twice(tmp_path: Path) -> None:
    """What was told after the checkpoint is told again; an unlimited continuation keeps all."""
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        for step in (1, 2, 3, 4):
            metrics(report(step))
    with MetricsFile(path, after=2) as metrics:
        metrics(report(3))
    assert steps(path) == [1, 2, 3]
    with MetricsFile(path) as metrics:
        metrics(report(4))
    assert steps(path) == [1, 2, 3, 4]
    with MetricsFile(path, after=0):
        assert steps(path) == []


def test_an_evaluation_that_ended_late_keeps_no_step_and_is_kept(tmp_path: Path) -> None:
    """The line of an evaluation stands behind steps that are made again: these go, it stays."""
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        for told in (report(0), report(1), report(2), report(3), report(2, **{"eval/q/reward": 0.5}), report(4)):
            metrics(told)
    with MetricsFile(path, after=2) as metrics:
        metrics(report(3))
    assert steps(path) == [0, 1, 2, 2, 3]
    assert read_metrics(path)[3]["eval/q/reward"] == 0.5
    with MetricsFile(path, after=-1):
        assert steps(path) == []


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_line_is_cut_off(tmp_path: Path, cut: int) -> None:
    """The next line begins where the last whole one ended."""
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        metrics(report(1))
        metrics(report(2))
    path.write_bytes(path.read_bytes()[:-cut])
    with MetricsFile(path, after=2) as metrics:
        metrics(report(3))
    whole = [1, 2, 3] if cut == 1 else [1, 3]  # without its newline only, a line is whole
    assert steps(path) == whole and path.read_bytes().count(b"\n") == len(whole)


def test_a_run_is_written_by_one_process(tmp_path: Path) -> None:
    """A second one is told at once, and the first goes on."""
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path) as metrics:
        with pytest.raises(StoreError, match="another process"):
            MetricsFile(path)
        metrics(report(1))
    assert steps(path) == [1]
