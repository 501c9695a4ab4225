"""Reports for TensorBoard and Weights & Biases: what arrives there, and that their failures end no run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from verifiers.errors import ConfigError
from verifiers.train.observers.dashboards import TensorBoardObserver, WandbObserver
from verifiers.train.report import StepReport

REPORT = StepReport(3, 2, True, 0.5, {"batch/groups": 4.0, "reward/mean": 0.25})
EVALUATION = StepReport(3, 2, False, 60.0, {"eval/q/reward": 0.5})


def told(step: int, reward: float) -> StepReport:
    return StepReport(step, step, True, 0.5, {"batch/groups": 4.0, "reward/mean": reward})


@pytest.mark.train
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    """With TensorBoard's own reader."""
    pytest.importorskip("torch")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with TensorBoardObserver(tmp_path) as observer:
        observer(REPORT)
        observer(EVALUATION)
    read = events.EventAccumulator(str(tmp_path))
    read.Reload()
    [scalar] = read.Scalars("reward/mean")
    assert (scalar.step, scalar.value) == (3, 0.25)
    [seconds] = read.Scalars("step/seconds")
    assert seconds.value == 0.5, "an evaluation's seconds are its own"


@pytest.mark.train
def test_tensorboard_shows_a_step_that_was_made_again_once(tmp_path: Path) -> None:
    """A run that goes on from step 2 takes back what it told of step 3, and of none before."""
    pytest.importorskip("torch")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with TensorBoardObserver(tmp_path) as observer:
        for step in (1, 2, 3):
            observer(told(step, 0.25))
    with TensorBoardObserver(tmp_path, after=2) as observer:
        observer(told(3, 0.75))
    read = events.EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(one.step, one.value) for one in read.Scalars("reward/mean")] == [(1, 0.25), (2, 0.25), (3, 0.75)]


class Library(ModuleType):
    """What WandbObserver uses of wandb."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__("wandb")
        self.broken = broken
        self.calls: list[tuple[str, object]] = []

    def init(self, **settings: object) -> SimpleNamespace:
        self.calls.append(("init", (settings["project"], settings["id"], settings["resume"])))
        finish = lambda: self.calls.append(("finish", None))  # noqa: E731
        return SimpleNamespace(log=self.log, finish=finish, define_metric=self.define_metric)

    def define_metric(self, name: str, step_metric: str) -> None:
        self.calls.append(("define_metric", (name, step_metric)))

    def log(self, figures: dict[str, float]) -> None:
        self.calls.append(("log", (figures["step"], figures["reward/mean"])))
        if self.broken:
            raise ConnectionError("no route")


def test_weights_and_biases_gets_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are a figure, which may go back, as that of an evaluation does; the library's own count may not."""
    library = Library()
    monkeypatch.setitem(sys.modules, "wandb", library)
    with WandbObserver("project", tmp_path, {"a": 1}, "0a1b") as observer:
        observer(REPORT)
    steps = ("define_metric", ("*", "step"))
    assert library.calls == [("init", ("project", "0a1b", "allow")), steps, ("log", (3, 0.25)), ("finish", None)]


def test_a_dashboard_that_fails_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, and training goes on."""
    library = Library(broken=True)
    monkeypatch.setitem(sys.modules, "wandb", library)
    with WandbObserver("project", tmp_path, {}, "0a1b") as observer:
        observer(REPORT)
        observer(REPORT)
    assert [name for name, _ in library.calls] == ["init", "define_metric", "log"]
    assert [record.message for record in caplog.records if "no further figures" in record.message] != []


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"log\.wandb") as raised:
        WandbObserver("project", tmp_path, {}, "0a1b")
    assert raised.value.hint == "Install it: pip install wandb"


@pytest.mark.slow
def test_the_library_itself_takes_a_run_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline, where it writes what it would send: both calls are of the one run that `run.json` names."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for step in (1, 2):
        with WandbObserver("project", tmp_path, {"a": 1}, "0a1b") as observer:
            observer(told(step, 0.25))
            observer(EVALUATION)
    written = [path for path in (tmp_path / "wandb").glob("offline-run-*") if not path.is_symlink()]
    assert written and {path.name.rpartition("-")[2] for path in written} == {"0a1b"}
    assert all((path / "run-0a1b.wandb").stat().st_size for path in written)
