"""The end of a training run: the model in its folder, the curve, a table of what changed, and what to do next."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from verifiers.cli.output import Output
from verifiers.cli.progress import clock
from verifiers.errors import StoreError, TrainingError
from verifiers.train.curve import EVALUATED, curve
from verifiers.train.observers.metrics_file import read_metrics
from verifiers.train.plan import counted
from verifiers.train.run_folder import CURVE, METRICS, MODEL, RunFolder

WINDOW = 10
"""Steps that the table's first and last figures are means of, at most; in short runs they are the two halves."""

Figure = tuple[str, str, str]
"""What a row of the table is called, the figure's name, and how it is written."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How the end of a kind of run is told: what its picture shows, its table, and the figure that counts tokens."""

    curve: str
    of: str
    table: Sequence[Figure]
    step: str
    tokens: str


REWARDS = Ending(
    "reward/mean",
    "reward",
    (
        ("reward", "reward/mean", "{:.3f}"),
        ("lag", "lag/mean", "{:.2f}"),
        ("mismatch KL", "loss/mismatch_kl", "{:.2g}"),
        ("entropy", "loss/entropy", "{:.3f}"),
        ("sampled tokens a step", "tokens/sampled", "{:.0f}"),
        ("seconds a step", "seconds", "{:.2f}"),
    ),
    "batch/groups",
    "tokens/sampled",
)
LOSSES = Ending(
    "loss/cross_entropy",
    "loss",
    (
        ("loss", "loss/cross_entropy", "{:.4f}"),
        ("gradient", "trainer/grad_norm", "{:.3g}"),
        ("tokens a step", "tokens/trained", "{:.0f}"),
        ("seconds a step", "seconds", "{:.2f}"),
    ),
    "sft/epoch",
    "tokens/trained",
)


class Exporting(Protocol):
    """What the trained policy is taken from."""

    @property
    def version(self) -> int:
        """How many steps have changed the weights."""
        ...

    def export(self, folder: Path) -> None:
        """Write the policy in Hugging Face's layout."""
        ...


def finish(
    ending: Ending,
    title: str,
    folder: RunFolder,
    learner: Exporting,
    seconds: float,
    output: Output,
    mastered: str = "",
) -> Path:
    """Write model and picture, and print the table. Returns the model's folder. mastered: why the run has reached its
    end before its last step.

    TrainingError if the run has changed nothing: what would be written is the model that it began with.
    """
    if not learner.version:
        raise TrainingError(
            "no step of the run changed the model",
            hint=f"{folder / METRICS} says why of each: rows/trained counts what could be learned from, "
            "trainer/skipped gradients that were not finite (lower trainer.lr; are rewards or coefficients huge?).",
        )
    model = write_model(learner, folder)
    rows = write_curve(ending, title, folder)
    steps = [row for row in rows if ending.step in row]
    window = _window(steps)
    table = changes(steps, ending.table) + evaluated(rows)
    output.result()
    if mastered:
        output.result(f"nothing left to learn: {mastered}\n")
    output.table(["", f"first {window}", f"last {window}"], table)
    output.result()
    tokens = sum(row.get(ending.tokens, 0.0) for row in steps)
    kind = ending.tokens.partition("/")[2]
    output.result(f"{len(steps)} steps, {counted(tokens)} tokens {kind}, {clock(seconds)}")
    output.result(f"model: {model}")
    output.result(f"curve: {folder / CURVE}")
    output.event(
        {
            "event": "finished",
            "steps": len(steps),
            "seconds": round(seconds, 3),
            "mastered": mastered,
            "model": str(model),
            "run": str(folder.path),
            "figures": {name: {"first": first, "last": last} for name, first, last in table},
        }
    )
    return model


def keep(ending: Ending, title: str, folder: RunFolder, learner: Exporting, output: Output) -> None:
    """Write model and picture of what was trained before an error ended the run, if anything was, and say where."""
    if not learner.version:
        return
    try:
        model = write_model(learner, folder)
        write_curve(ending, title, folder)
    except StoreError as error:  # the run's own error is the one to tell
        output.warning(f"{error} ({error.hint})")
        return
    output.note(f"what was trained before it is kept: {model}, {folder / CURVE}")
    output.event({"event": "kept", "model": str(model), "run": str(folder.path)})


def write_curve(ending: Ending, title: str, folder: RunFolder) -> list[dict[str, Any]]:
    """Write the picture of the run so far. Returns the lines of its metrics."""
    rows = read_metrics(folder / METRICS)
    folder.put(CURVE, curve(rows, title, ending.curve, ending.of))
    return rows


def write_model(learner: Exporting, folder: RunFolder) -> Path:
    """The policy in the run's folder, whole or not at all."""
    final, beside = folder / MODEL, folder / f".{MODEL}.new"
    try:
        shutil.rmtree(beside, ignore_errors=True)
        learner.export(beside)
        if final.is_dir():
            shutil.rmtree(final)
        else:
            final.unlink(missing_ok=True)
        beside.rename(final)
    except Exception as error:  # boundary: the disk, and the libraries that write
        shutil.rmtree(beside, ignore_errors=True)
        raise StoreError(
            f"the model could not be written to {final}: {error}",
            hint=f"Make room there; what was trained is in the last checkpoint, and --resume {folder.path} writes it.",
            cause=error,
        ) from error
    return final


def changes(steps: Sequence[Mapping[str, Any]], figures: Sequence[Figure]) -> list[list[str]]:
    """For each figure its mean over the first and over the last steps."""
    window = _window(steps)
    table = []
    for label, name, form in figures:
        ends = [_mean(part, name) for part in (steps[:window], steps[-window:])]
        if None not in ends:
            table.append([label, *(form.format(end) for end in ends)])
    return table


def evaluated(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The first and the last evaluation on each environment, or validation."""
    table = []
    for name in dict.fromkeys(name for row in rows for name in row if EVALUATED.fullmatch(name)):
        values = [row[name] for row in rows if name in row]
        table.append([name.removesuffix("/reward"), f"{values[0]:.3f}", f"{values[-1]:.3f}"])
    return table


def _window(steps: Sequence[Mapping[str, Any]]) -> int:
    return min(WINDOW, max(1, len(steps) // 2))


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [row[name] for row in rows if row.get(name) is not None]
    return sum(values) / len(values) if values else None
