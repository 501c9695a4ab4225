"""`metrics.jsonl`: one line a step, flat, in the order of steps, whatever happened to the process in between.

    with MetricsFile(folder / "metrics.jsonl", after=120) as metrics:      # continues after step 120
        metrics(report)
    rows = read_metrics(folder / "metrics.jsonl")

A line that a killed process left half-written is cut off, and so are the steps after the checkpoint that a run goes on
from: they are made again. Two processes cannot write the same file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from verifiers.evals.appending import cut_torn_line, open_for_appending, store_error, write_whole
from verifiers.evals.encoding import from_json, to_json
from verifiers.train.report import StepReport


def flat(report: StepReport) -> dict[str, Any]:
    """A report as one table: `step`, `version`, `trained`, `seconds`, and the figures under their names."""
    own = {"step": report.step, "version": report.version, "trained": report.trained, "seconds": report.seconds}
    return {**own, **report.figures}


class MetricsFile:
    """An observer. StoreError if the file cannot be written. `after`: the last step that is kept, -1 for none, None for
    all."""

    def __init__(self, path: Path, after: int | None = None) -> None:
        self.path = path
        self._descriptor = open_for_appending(path)
        try:
            cut_torn_line(self._descriptor, path, "its step is made again")
            if after is not None:
                _cut_steps(self._descriptor, path, after)
        except OSError as error:
            os.close(self._descriptor)
            raise store_error(f"can not write {path}", error) from error

    def __call__(self, report: StepReport) -> None:
        """Append a line."""
        size = os.fstat(self._descriptor).st_size
        try:
            write_whole(self._descriptor, to_json(flat(report)) + b"\n")
        except OSError as error:
            os.ftruncate(self._descriptor, size)  # so that the next line does not join what was written of this one
            raise store_error(f"can not write {self.path}", error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _cut_steps(descriptor: int, path: Path, after: int) -> None:
    """Take out the lines of later steps. An evaluation of a step that stays may stand behind them: it stays, too."""
    kept, begin, first = b"", 0, None
    for end, row in _lines(path):
        if row.get("step", 0) > after:
            first = begin if first is None else first
        elif first is not None:
            kept += to_json(row) + b"\n"
        begin = end
    if first is not None:
        os.ftruncate(descriptor, first)
        write_whole(descriptor, kept)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of the file, without a torn one. Empty if there is no file."""
    return [row for _, row in _lines(path)] if path.exists() else []


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each whole line with the place of its end in the file."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            end += len(line)
            try:
                row = from_json(line)
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("step", 0), int):
                yield end, row
