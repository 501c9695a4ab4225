"""How a training run looks while it goes on: on a terminal, without one, and for programs."""

from __future__ import annotations

import io
import json
import sys

import pytest

from verifiers.cli import training_view
from verifiers.cli.output import Output, shown
from verifiers.cli.training_view import EventView, LiveView, PlainView, choose, facts, line, sparkline
from verifiers.train.report import StepReport

FIGURES = {
    "batch/groups": 8.0,
    "reward/mean": 0.5,
    "reward/std": 0.1,
    "reward/sums": 0.25,
    "reward/words": 0.75,
    "lag/mean": 1.25,
    "lag/max": 3.0,
    "loss/mismatch_kl": 0.0012,
    "loss/mismatch_kl/max": 0.4,
    "loss/entropy": 1.5,
    "tokens/sampled": 2000.0,
    "tokens/trained": 1500.0,
    "wait/trainer_share": 0.25,
    "wait/sampler_share": 0.0,
    "outcomes/ok": 60.0,
    "outcomes/failed": 4.0,
    "errors/sandbox": 4.0,
    "groups/stale": 1.0,
    "groups/in_flight": 3.0,
    "groups/few": 0.75,
    "groups/zero_std": 1.0,
    "groups/signal": 0.25,
    "eval/sums/reward": 0.625,
}
REPORT = StepReport(3, 3, True, 2.0, FIGURES)


def test_the_figures_that_matter_are_told() -> None:
    """Reward by environment, lag, mismatch, entropy, tokens, waits of each side, outcomes and errors by kind."""
    told = dict(facts(REPORT))
    assert told["reward"] == "0.500 (sums 0.250, words 0.750)"
    assert told["lag"] == "1.2, at most 3" and told["mismatch KL"] == "0.0012, at most 0.4"
    assert told["tokens"] == "2.0 k sampled, 1.5 k trained, 1,000 sampled a second"
    assert told["waits"] == "trainer 25%, sampler 0%"
    assert told["outcomes"] == "ok 60, failed 4" and told["errors"] == "sandbox 4" and told["groups"] == "stale 1"
    assert told["signal"] == "in 25% of groups"
    assert told["eval sums"] == "0.625"


def test_what_was_not_measured_is_left_out() -> None:
    """A step without figures is told as one that trained nothing, never as zeros; an evaluation by itself."""
    empty = StepReport(1, 0, False, 0.1, {"batch/groups": 0.0})
    assert facts(empty) == [("not trained", "(this batch had nothing to train on)")]
    broken = StepReport(1, 0, False, 0.1, {"batch/groups": 2.0, "rows/trained": 4.0, "trainer/skipped": 1.0})
    assert "not finite" in line(broken, 9)
    assert line(empty, 9).startswith("step 1/9 · not trained")
    assert line(StepReport(1, 0, False, 0.1, {"eval/a/reward": 0.5}), 9) == "step 1/9 · eval a 0.500"


def test_without_a_terminal_there_are_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """The first step, evaluations and the last, and some in between."""
    view = choose(Output(), 50)
    assert isinstance(view, PlainView)
    for step in range(1, 51):
        view(StepReport(step, step, True, 0.1, {"batch/groups": 4.0, "reward/mean": 0.5}))
        if step == 20:
            view(StepReport(step, step, False, 0.1, {"eval/a/reward": 0.9}))
    shown = [text.split(" · ")[0] for text in capsys.readouterr().err.splitlines()]
    assert shown == ["step 1/50", "step 20/50", "step 50/50"]


def test_a_run_that_is_slow_tells_what_it_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between two reports, at most every so often; nobody has to guess whether it hangs."""
    now = [100.0]
    monkeypatch.setattr(training_view.time, "monotonic", lambda: now[0])
    view = choose(Output(), 50, doing=lambda: "groups: 0 ready, 16 in flight")
    for now[0] in (101.0, 119.0, 121.0, 122.0):
        view.tick()
    view(REPORT)
    for now[0] in (141.0, 143.0):
        view.tick()
    shown = capsys.readouterr().err.splitlines()
    assert shown == ["… groups: 0 ready, 16 in flight", line(REPORT, 50), "… groups: 0 ready, 16 in flight"]


def test_programs_get_the_lines_of_the_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    """One JSON object a step on stdout."""
    view = choose(Output(json=True), 50)
    assert isinstance(view, EventView)
    view(REPORT)
    event = json.loads(capsys.readouterr().out)
    assert event["event"] == "step" and event["step"] == 3 and event["reward/mean"] == 0.5


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redrawn with each step; at the end one line stays."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    view = choose(Output(), 50, doing=lambda: "groups: 16 in flight")
    assert isinstance(view, LiveView)
    view.tick()
    assert "at the first batch" in terminal.getvalue() and "groups: 16 in flight" in terminal.getvalue()
    view(REPORT)
    assert "mismatch KL" in terminal.getvalue() and "3/50" in terminal.getvalue()
    view.close()
    view.close()
    assert terminal.getvalue().count("step 3/50 · reward") == 1


def test_a_course_is_bars() -> None:
    """Low is low, high is high, equal is the lowest; only the newest are shown."""
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.3, 0.3]) == "▁▁" and sparkline([]) == ""
    assert len(sparkline([float(n) for n in range(100)])) == 40
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert shown(training_view.BARS, ascii_only) == "_.:-=+*#"
