"""Reports for TensorBoard and Weights & Biases: what arrives there, and that their failures end no run."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from verifiers.errors import ConfigError
from verifiers.train.observers.dashboards import TensorBoardObserver, WandbObserver
from verifiers.train.report import StepReport

REPORT = StepReport(3, 2, True, 0.5, {"reward/mean": 0.25})


@pytest.mark.train
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    """With TensorBoard's own reader."""
    pytest.importorskip("torch")
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with TensorBoardObserver(tmp_path) as observer:
        observer(REPORT)
    read = events.EventAccumulator(str(tmp_path))
    read.Reload()
    [scalar] = read.Scalars("reward/mean")
    assert (scalar.step, scalar.value) == (3, 0.25)


class Library(ModuleType):
    """What WandbObserver uses of wandb."""

    def __init__(self, broken: bool = False) -> None:
        super().__init__("wandb")
        self.broken = broken
        self.calls: list[tuple[str, object]] = []

    def init(self, **settings: object) -> SimpleNamespace:
        self.calls.append(("init", settings["project"]))
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
    with WandbObserver("project", tmp_path, {"a": 1}) as observer:
        observer(REPORT)
    steps = ("define_metric", ("*", "step"))
    assert library.calls == [("init", "project"), steps, ("log", (3, 0.25)), ("finish", None)]


def test_a_dashboard_that_fails_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, and training goes on."""
    library = Library(broken=True)
    monkeypatch.setitem(sys.modules, "wandb", library)
    with WandbObserver("project", tmp_path, {}) as observer:
        observer(REPORT)
        observer(REPORT)
    assert [name for name, _ in library.calls] == ["init", "define_metric", "log"]
    assert [record.message for record in caplog.records if "no further figures" in record.message] != []


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"log\.wandb") as raised:
        WandbObserver("project", tmp_path, {})
    assert raised.value.hint == "Install it: pip install wandb"
