"""Checkpoints of a run: the learner, the order of tasks, and every group that was asked for and is not trained yet.

    checkpoints = Checkpoints(folder / "checkpoints", every=50, keep=2)
    checkpoints.save(state, learner)            # step-000050/{state.json, groups.jsonl, learner/…}
    found = checkpoints.latest()                # the newest complete one, None if there is none
    state = checkpoints.load(found, learner)

A checkpoint is complete if it has its name: it is written beside, flushed to the disk, and renamed. Whatever happens
before leaves the ones before it as they are. It is taken between two steps, so that each group is in exactly one place:
trained, with its rows among the ready ones, or unfinished; unfinished ones are asked for again, with their ids and
seeds. Nothing is lost, and nothing is trained twice.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson

from verifiers.errors import ResumeError, StoreError, TrainingError
from verifiers.train.buffer import Ready, Snapshot
from verifiers.train.curriculum import Ask
from verifiers.train.learner import Learner
from verifiers.train.rows import row_from_dict, row_to_dict

FORMAT = 1
NAME = re.compile(r"step-(\d{6,})")


UNREADABLE = (OSError, KeyError, TypeError, ValueError, AttributeError)
"""What reading a checkpoint raises whose files were changed."""


def unreadable(folder: Path, error: BaseException) -> ResumeError:
    """The error of a checkpoint that was changed by somebody else, or by the disk."""
    return ResumeError(
        f"the checkpoint {folder} can not be read: {type(error).__name__}: {error}",
        hint="Remove that folder to go on from the checkpoint before it.",
    )


@dataclass(frozen=True, slots=True)
class RunState:
    """What a run knows beside its learner, between two steps.

    environments: which ones, by name, with their versions and digests. baselines: of the advantages, where they go on
    from step to step.
    """

    step: int
    version: int
    curriculum: Mapping[str, Any]
    buffer: Snapshot
    environments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    baselines: Mapping[str, float] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints in a folder. Its methods block: the loop calls them where it calls the learner."""

    def __init__(self, folder: Path, *, every: int = 50, keep: int = 2) -> None:
        self.folder = folder
        self.every = every
        self._keep = keep

    def save(self, state: RunState, learner: Learner) -> Path:
        """Write one and remove what is older than the last `keep`. StoreError leaves the others as they are."""
        final = self.folder / f"step-{state.step:06d}"
        partial = self.folder / f".{final.name}.partial"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clear()
            (partial / "learner").mkdir(parents=True)
            learner.save(partial / "learner")
            _write_groups(partial / "groups.jsonl", state.buffer)
            (partial / "state.json").write_bytes(orjson.dumps(_plain(state), option=orjson.OPT_INDENT_2))
            _flush(partial)
            if final.exists():  # of a run that went on from an older one
                final.rename(self.folder / f".{final.name}.replaced.partial")
            partial.rename(final)
            _flush_folder(self.folder)
        except TrainingError:  # the learner is at its end, and no disk is to blame
            with contextlib.suppress(OSError):
                self._clear()
            raise
        except Exception as error:  # boundary: the disk, and the learner's own code
            with contextlib.suppress(OSError):
                self._clear()
            raise StoreError(
                f"the checkpoint of step {state.step} could not be written: {error}",
                hint=f"Make room in {self.folder}; the checkpoints before it are as they were.",
            ) from error
        self._remove_old()
        return final

    def latest(self) -> Path | None:
        """The newest complete checkpoint."""
        complete = self._complete()
        return complete[-1] if complete else None

    def load(self, folder: Path, learner: Learner) -> RunState:
        """Let the learner go on from a checkpoint, and return what the run knew. ResumeError if it can not be read."""
        try:
            data = orjson.loads((folder / "state.json").read_bytes())
            if data["format"] != FORMAT:
                raise ResumeError(
                    f"{folder} has format {data['format']}, and this version reads {FORMAT}",
                    hint="Go on with the version of verifiers that wrote it.",
                )
            snapshot = _read_buffer(data["buffer"], folder / "groups.jsonl")
            learner.load(folder / "learner")
            if not all(isinstance(data[name], int) for name in ("step", "version")):
                raise ValueError("step or version is no number")
        except UNREADABLE as error:
            raise unreadable(folder, error) from error
        names = ("step", "version", "curriculum", "environments", "baselines")
        return RunState(buffer=snapshot, **{name: data[name] for name in names})

    def _complete(self) -> list[Path]:
        found = [path for path in self.folder.glob("step-*") if NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))

    def _clear(self) -> None:
        """Remove what an earlier process did not finish, or did not finish removing."""
        for path in self.folder.glob(".*.partial"):
            shutil.rmtree(path)

    def _remove_old(self) -> None:
        # Renamed first: half a checkpoint must not have the name of a whole one. What stays is cleared next time.
        with contextlib.suppress(OSError):
            for path in self._complete()[: -self._keep]:
                path.rename(self.folder / f".{path.name}.partial")
            self._clear()


def _plain(state: RunState) -> dict[str, Any]:
    saved = state.buffer
    buffer = {
        "asked": saved.asked,
        "fates": dict(saved.fates),
        "stale_rows": saved.stale_rows,
        "in_flight": [asdict(ask) for ask in saved.in_flight],
    }
    return {
        "format": FORMAT,
        "step": state.step,
        "version": state.version,
        "environments": dict(state.environments),
        "curriculum": dict(state.curriculum),
        "baselines": dict(state.baselines),
        "buffer": buffer,
    }


def _write_groups(path: Path, saved: Snapshot) -> None:
    with path.open("wb") as file:
        for one in saved.ready:
            rows = [row_to_dict(row) for row in one.rows]
            file.write(orjson.dumps({"ask": asdict(one.ask), "rows": rows}, option=orjson.OPT_APPEND_NEWLINE))


def _read_buffer(data: Mapping[str, Any], path: Path) -> Snapshot:
    ready = []
    for line in path.read_bytes().splitlines():
        group = orjson.loads(line)
        ready.append(Ready(Ask(**group["ask"]), [row_from_dict(row) for row in group["rows"]]))
    asks: Sequence[Ask] = [Ask(**one) for one in data["in_flight"]]
    return Snapshot(data["asked"], data["fates"], data["stale_rows"], asks, ready)


def _flush(folder: Path) -> None:
    """Onto the disk: every file, then every folder that names one."""
    for path in _files(folder):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        _flush_folder(path)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
