"""How a training run looks: a live display, plain lines, or JSON events. Observers of the loop, and what ticks them.

The loop knows nothing of this: it calls the view with each report, in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

from verifiers.cli.output import Output, is_terminal, shown
from verifiers.cli.progress import clock
from verifiers.train.observers.metrics_file import flat
from verifiers.train.plan import counted
from verifiers.train.report import StepReport

TICK_SECONDS = 0.25

LINE_SECONDS = 10.0
"""A run that is no terminal tells about a step at most this often, and about each evaluation."""

QUIET_SECONDS = 20.0
"""After so long without a line, it tells what goes on."""

Doing = Callable[[], str]
"""What goes on between two reports, in words."""

SHORT = ("reward", "loss", "validation", "epoch", "not trained", "lag", "errors")
"""What a line tells of a step."""

GROUP_SHARES = ("few", "zero_std", "signal")
"""Figures of groups that are shares, among counts of what became of them."""

BARS = "▁▂▃▄▅▆▇█"


class View(Protocol):
    """What a command tells about a training run."""

    def __call__(self, report: StepReport) -> None:
        """A step was made."""

    def tick(self) -> None:
        """Time has passed."""

    def close(self) -> None:
        """The run is over, or the command ends. Closing twice is fine."""


def choose(output: Output, steps: int, *, plain: bool = False, doing: Doing | None = None) -> View:
    """JSON events with --json, a live display on a terminal, plain lines elsewhere or if asked for."""
    if output.json:
        return EventView(output)
    if plain or not is_terminal(sys.stderr):
        return PlainView(output, steps, doing)
    return LiveView(output, steps, doing)


@asynccontextmanager
async def shown_view(
    output: Output, steps: int, *, plain: bool = False, doing: Doing | None = None
) -> AsyncIterator[View]:
    """A view, redrawn as time passes, for as long as the block lasts."""
    view = choose(output, steps, plain=plain, doing=doing)

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            view.tick()

    task = asyncio.create_task(tick())
    try:
        yield view
    finally:
        task.cancel()
        view.close()


# --- what is told ---------------------------------------------------------------------------------------------


def facts(report: StepReport) -> list[tuple[str, str]]:
    """The figures that say whether a run is well, in words, by name. What was not measured is left out."""
    figures = report.figures
    told = [
        ("reward", _by_environment(figures)),
        ("loss", _text(figures, "{:.4f}", "loss/cross_entropy")),
        ("validation", _text(figures, "{:.4f}", "validation/cross_entropy")),
        ("epoch", _text(figures, "{:.2f}", "sft/epoch")),
        ("lag", _text(figures, "{:.1f}, at most {:.0f}", "lag/mean", "lag/max")),
        ("mismatch KL", _text(figures, "{:.2g}, at most {:.2g}", "loss/mismatch_kl", "loss/mismatch_kl/max")),
        ("entropy", _text(figures, "{:.3f}", "loss/entropy")),
        ("gradient", _text(figures, "{:.3g}", "trainer/grad_norm")),
        ("tokens", _tokens(report)),
        ("waits", _waits(figures)),
        ("outcomes", _named(figures, "outcomes/")),
        ("errors", _named(figures, "errors/")),
        ("groups", _named(figures, "groups/", leave_out=("ended", "in_flight", "ready", *GROUP_SHARES))),
        ("signal", _text(figures, "in {:.0%} of groups", "groups/signal")),
    ]
    told += [(f"eval {name}", f"{value:.3f}") for name, value in evaluations(figures).items()]
    if report.is_step and not report.trained:
        told.insert(0, ("not trained", _why_untrained(figures)))
    return [(name, text) for name, text in told if text]


def _why_untrained(figures: Mapping[str, float]) -> str:
    if figures.get("trainer/skipped"):
        return "(the gradient was not finite: the weights stay)"
    return "(the gradient was 0)" if figures.get("rows/trained") else "(this batch had nothing to train on)"


def evaluations(figures: Mapping[str, float]) -> dict[str, float]:
    """The rewards of evaluations, by environment."""
    ends = ("eval/", "/reward")
    return {
        name.removeprefix(ends[0]).removesuffix(ends[1]): value
        for name, value in figures.items()
        if name.startswith(ends[0]) and name.endswith(ends[1])
    }


def line(report: StepReport, steps: int) -> str:
    """A step in one line."""
    named = dict(facts(report))
    short = [f"{name} {named[name]}" for name in named if name in SHORT]
    short += [f"{name} {text}" for name, text in named.items() if name.startswith("eval ")]
    kl = _text(report.figures, "KL {:.2g}", "loss/mismatch_kl")
    seconds = f"{report.seconds:.1f} s" if report.is_step else ""
    return " · ".join(filter(None, [f"step {report.step}/{steps}", *short, kl, seconds]))


def _text(figures: Mapping[str, float], form: str, *names: str) -> str:
    values = [figures[name] for name in names if name in figures]
    return form.format(*values) if len(values) == len(names) else ""


def _by_environment(figures: Mapping[str, float]) -> str:
    rewards = {name.removeprefix("reward/"): value for name, value in figures.items() if name.startswith("reward/")}
    mean, _ = rewards.pop("mean", None), rewards.pop("std", None)
    if mean is None:
        return ""
    each = ", ".join(f"{name} {value:.3f}" for name, value in rewards.items()) if len(rewards) > 1 else ""
    return f"{mean:.3f}" + (f" ({each})" if each else "")


def _tokens(report: StepReport) -> str:
    sampled, trained = (report.figures.get(f"tokens/{side}") for side in ("sampled", "trained"))
    sides = [f"{counted(value)} {side}" for side, value in (("sampled", sampled), ("trained", trained)) if value]
    if sampled and report.seconds > 0:
        sides.append(f"{sampled / report.seconds:,.0f} sampled a second")
    return ", ".join(sides)


def _waits(figures: Mapping[str, float]) -> str:
    sides = ("trainer", "sampler", "update")
    found = {side: figures[f"wait/{side}_share"] for side in sides if f"wait/{side}_share" in figures}
    return ", ".join(f"{side} {share:.0%}" for side, share in found.items())


def _named(figures: Mapping[str, float], prefix: str, leave_out: tuple[str, ...] = ()) -> str:
    found = {name.removeprefix(prefix): value for name, value in figures.items() if name.startswith(prefix)}
    return ", ".join(f"{name} {value:.0f}" for name, value in found.items() if value and name not in leave_out)


def sparkline(values: list[float], width: int = 40) -> str:
    """The last values as bars of eight heights."""
    last = values[-width:]
    low, high = min(last, default=0.0), max(last, default=0.0)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in last)


# --- backends -------------------------------------------------------------------------------------------------


class PlainView:
    """Lines on stderr. They come from reports; where those are slow, from `doing` too."""

    def __init__(self, output: Output, steps: int, doing: Doing | None = None) -> None:
        self.output = output
        self.steps = steps
        self._doing = doing
        self._told = float("-inf")
        self._heard = time.monotonic()

    def __call__(self, report: StepReport) -> None:
        self._heard = time.monotonic()
        due = self._heard - self._told >= LINE_SECONDS or report.step == self.steps
        if not report.is_step:
            self.output.note(line(report, self.steps))
        elif due:
            self._told = self._heard
            self.output.note(line(report, self.steps))

    def tick(self) -> None:
        if self._doing is not None and time.monotonic() - self._heard >= QUIET_SECONDS:
            self._heard = time.monotonic()
            self.output.note(f"… {self._doing()}")

    def close(self) -> None:
        """Nothing is open."""


class EventView:
    """JSON events on stdout, for programs: the lines of `metrics.jsonl`."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def __call__(self, report: StepReport) -> None:
        self.output.event({"event": "step", **flat(report)})

    def tick(self) -> None:
        """Events come from steps, not from time."""

    def close(self) -> None:
        """Nothing is open."""


class LiveView:
    """A display that is redrawn in place: a bar, the reward's course, and the figures of the last step."""

    def __init__(self, output: Output, steps: int, doing: Doing | None = None) -> None:
        from rich.console import Console
        from rich.live import Live

        self.output = output
        self.steps = steps
        self._doing = doing
        self._began = time.monotonic()
        self._first = 0
        self._last: StepReport | None = None
        self._evaluated: dict[str, float] = {}
        self._course: list[float] = []
        # Redrawn by `tick`: rich's own thread would read the figures while the event loop changes them.
        self._live: Live | None = Live(console=Console(file=sys.stderr), auto_refresh=False, transient=True)
        self._live.start()

    def __call__(self, report: StepReport) -> None:
        self._evaluated |= evaluations(report.figures)
        if report.is_step:
            self._first = self._first or report.step
            self._last = report
        for name in ("reward/mean", "loss/cross_entropy"):
            if name in report.figures:
                self._course.append(report.figures[name])
        self.tick()

    def tick(self) -> None:
        if self._live is not None:
            with suppress(OSError):  # the terminal was closed
                self._live.update(self._picture(), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()
            self._live = None
            if self._last is not None:
                self.output.note(line(self._last, self.steps))

    def _picture(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        step = self._last.step if self._last is not None else 0
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(self.steps, 1), completed=step, width=30)
        head.add_row(Text("step"), bar, f"{step}/{self.steps}", Text(self._time(step)))
        grid = Table.grid(padding=(0, 1))
        for name, text in self._rows():
            # Text, not markup: names of environments may have brackets.
            grid.add_row(Text(name, style="dim"), Text(shown(text, sys.stderr)))
        return Group(head, grid)

    def _rows(self) -> Iterator[tuple[str, str]]:
        if self._doing is not None:
            yield "now", self._doing()
        if self._last is None:
            yield "", "at the first batch"
            return
        yield "course", sparkline(self._course)
        for name, text in facts(self._last):
            if not name.startswith("eval "):
                yield name, text
        for name, value in self._evaluated.items():
            yield f"eval {name}", f"{value:.3f}"

    def _time(self, step: int) -> str:
        elapsed = time.monotonic() - self._began
        done = step - self._first + 1 if self._first else 0
        left = f", {clock((self.steps - step) * elapsed / done)} left" if done and step < self.steps else ""
        return f"{clock(elapsed)}{left}"
