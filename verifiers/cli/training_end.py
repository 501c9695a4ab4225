"""The end of a training run: the model in its folder, the curve, a table of what changed, and what to do next."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from verifiers.cli.output import Output
from verifiers.cli.progress import clock
from verifiers.errors import ExitCode
from verifiers.train.config import TrainConfig
from verifiers.train.curve import curve
from verifiers.train.observers.metrics_file import read_metrics
from verifiers.train.plan import counted
from verifiers.train.run_folder import CURVE, METRICS, MODEL, RunFolder

WINDOW = 10
"""Steps that the table's first and last figures are means of, at most; in short runs they are the two halves."""

ROWS = (
    ("reward", "reward/mean", "{:.3f}"),
    ("lag", "lag/mean", "{:.2f}"),
    ("mismatch KL", "loss/mismatch_kl", "{:.2g}"),
    ("entropy", "loss/entropy", "{:.3f}"),
    ("reply tokens a step", "tokens/sampled", "{:.0f}"),
    ("seconds a step", "seconds", "{:.2f}"),
)


class Exporting(Protocol):
    """What the trained policy is taken from."""

    def export(self, folder: Path) -> None:
        """Write the policy in Hugging Face's layout."""
        ...


def finish(config: TrainConfig, folder: RunFolder, learner: Exporting, seconds: float, output: Output) -> ExitCode:
    """Write model and picture, and print the table."""
    model = write_model(learner, folder)
    everything = read_metrics(folder / METRICS)
    rows = [row for row in everything if "batch/groups" in row]
    names = ", ".join(one.label for one in config.env)
    (folder / CURVE).write_text(curve(everything, f"{Path(config.model.path).name} on {names}"), encoding="utf-8")
    table = changes(rows) + evaluated(everything)
    output.result()
    window = _window(rows)
    output.table(["", f"first {window}", f"last {window}"], table)
    output.result()
    sampled = sum(row.get("tokens/sampled", 0.0) for row in rows)
    output.result(f"{len(rows)} steps, {counted(sampled)} tokens sampled, {clock(seconds)}")
    output.result(f"model: {model}")
    output.result(f"curve: {folder / CURVE}")
    output.event(
        {
            "event": "finished",
            "steps": len(rows),
            "seconds": round(seconds, 3),
            "model": str(model),
            "run": str(folder.path),
            "figures": {name: {"first": first, "last": last} for name, first, last in table},
        }
    )
    asked = (config.eval.environments if config.eval else None) or config.env
    output.hint(f"evaluate it: {shlex.join(['vf-eval', asked[0].id, '-m', f'local:{model}'])}")
    return ExitCode.OK


def write_model(learner: Exporting, folder: RunFolder) -> Path:
    """The policy in the run's folder, whole or not at all."""
    final, beside = folder / MODEL, folder / f".{MODEL}.new"
    shutil.rmtree(beside, ignore_errors=True)
    learner.export(beside)
    shutil.rmtree(final, ignore_errors=True)
    beside.rename(final)
    return final


def changes(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """For each figure its mean over the first and over the last steps."""
    window = _window(rows)
    first, last = rows[:window], rows[-window:]
    table = []
    for label, name, form in ROWS:
        ends = [_mean(part, name) for part in (first, last)]
        if None not in ends:
            table.append([label, *(form.format(end) for end in ends)])
    return table


def evaluated(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The first and the last evaluation on each environment."""
    table = []
    for name in dict.fromkeys(name for row in rows for name in row if name.startswith("eval/")):
        if name.endswith("/reward"):
            values = [row[name] for row in rows if name in row]
            table.append([name.removesuffix("/reward"), f"{values[0]:.3f}", f"{values[-1]:.3f}"])
    return table


def _window(rows: Sequence[Mapping[str, Any]]) -> int:
    return min(WINDOW, max(1, len(rows) // 2))


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return sum(values) / len(values) if values else None
