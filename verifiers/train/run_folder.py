"""The folder of a training run: what it was asked for, what it is made of, what it told, and what came of it.

    config.resolved.toml    every setting; `vf-train config.resolved.toml` asks for the same run
    run.json                versions of packages, environments with version and digest, the model's files, how it went
    metrics.jsonl           one line a step
    log.txt                 the log, with the traceback of each failure
    checkpoints/            what a run goes on from
    weights/                policy versions on their way to samplers
    rows/                   every trained row, if asked for
    model/                  the policy at the end, in Hugging Face's layout
    curve.svg               the reward over the steps

One run, one folder: nothing is ever mixed into another run's.
"""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel

from verifiers.errors import ResumeError, StoreError
from verifiers.evals.appending import open_for_appending, store_error
from verifiers.train.config_files import to_file
from verifiers.train.model_files import model_files

CONFIG, RECORD, METRICS, LOG, CURVE = "config.resolved.toml", "run.json", "metrics.jsonl", "log.txt", "curve.svg"
LOCK = ".lock"
CHECKPOINTS, WEIGHTS, ROWS, MODEL = "checkpoints", "weights", "rows", "model"

PACKAGES = ("verifiers", "torch", "transformers", "peft", "safetensors", "tokenizers", "vllm", "datasets")
"""Whose versions a run's figures depend on."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """See the module."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> Self:
        """A folder for a new run. StoreError if it holds one already; one that ended before its first step, by a
        mistake in an environment say, or by a kill, is none."""
        _refuse_taken(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"can not make the folder {path}: {error.strerror}", cause=error) from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The folder of a run that is to go on, maybe from its very beginning. ResumeError if there is none."""
        if not (path / CONFIG).is_file():
            raise ResumeError(
                f"{path} holds no run to continue: there is no {CONFIG}",
                hint="Give the folder of a run (its `output`), or start one without --resume.",
            )
        return cls(path)

    @contextmanager
    def held(self, *, new: BaseModel | None = None) -> Iterator[None]:
        """Nobody else works on the run for as long as the block lasts. StoreError if somebody does, or if somebody else
        has begun one here meanwhile where a run is to begin. new: the settings of one that begins; they are written
        before hours of loading, so that it can be continued from there on."""
        descriptor = open_for_appending(self.path / LOCK)
        try:
            if new is not None:
                _refuse_taken(self.path)
                for name in (RECORD, METRICS, LOG):  # of a run that came to nothing
                    (self.path / name).unlink(missing_ok=True)
                self.put(CONFIG, to_file(new))
            yield
        finally:
            os.close(descriptor)

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    @property
    def record(self) -> dict[str, Any]:
        """What `run.json` says."""
        try:
            record: dict[str, Any] = json.loads((self.path / RECORD).read_text(encoding="utf-8"))
            if missing := [name for name in ("began", "model", "environments", "sessions") if name not in record]:
                raise ValueError(f"it lacks {', '.join(missing)}")
        except (OSError, ValueError) as error:
            raise StoreError(
                f"can not read {self.path / RECORD}: {error}",
                hint="Bring it back from a copy, or begin anew in another folder, from this run's model.",
                cause=error,
            ) from error
        return record

    def put(self, name: str, text: str) -> None:
        """Write a file of it, whole or not at all. StoreError if that can not be done."""
        _replace(self.path / name, text)

    def write(self, config: BaseModel, record: Mapping[str, Any]) -> None:
        """Write the settings and the record of a run that begins, or goes on."""
        _replace(self.path / CONFIG, to_file(config))
        self.note(record)

    def note(self, record: Mapping[str, Any]) -> None:
        """Replace `run.json`."""
        _replace(self.path / RECORD, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


def _refuse_taken(path: Path) -> None:
    if (path / RECORD).exists() and _has_steps(RunFolder(path)):
        raise StoreError(
            f"{path} already holds a run",
            hint=f"Continue it: --resume {path}. Or take another folder: -o FOLDER.",
        )


def _has_steps(folder: RunFolder) -> bool:
    """Whether any call has made a step. One that was killed says no end: its checkpoints and figures tell."""
    return (
        any(one.get("step") for one in folder.record["sessions"])
        or any((folder / CHECKPOINTS).glob("[!.]*"))
        or _tells_a_step(folder / METRICS)
    )


def _tells_a_step(metrics: Path) -> bool:
    """Whether a line of figures is of a step, which an evaluation before the first is not. The last may be torn."""
    if not metrics.exists():
        return False
    with metrics.open("rb") as file:
        return any(re.search(rb'"step": ?[1-9]', line) for line in file)


def provenance(model: str, environments: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """The record of a run that begins: which bits its figures depend on."""
    return {
        "id": secrets.token_hex(4),
        "began": now(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": dict(_versions()),
        "model": {"path": model, "files": model_files(model)},
        "environments": [dict(one) for one in environments],
        **more,
    }


def check_same(
    saved: Mapping[str, Any], begun: Mapping[str, Any], *, asked: BaseModel, before: BaseModel, force: bool
) -> list[str]:
    """What differs between a run and how it is to go on, for the user to know. ResumeError if the model's files or an
    environment's bits are among it, unless forced."""
    grave = [
        f"{name} {_bits(one)} is now {_bits(two)}"
        for name, one, two in _paired(saved["environments"], begun["environments"])
        if one != two
    ]
    if saved["model"] != begun["model"]:
        files = [record["model"]["files"] for record in (saved, begun)]
        others = [name for name in {**files[0], **files[1]} if files[0].get(name) != files[1].get(name)]
        named = f" ({', '.join(others[:3])}{' …' if others[3:] else ''})" if others else ""
        grave.append(f"the model's files in {begun['model']['path']} are others{named}")
    if grave and not force:
        raise ResumeError("this would not be the same run: " + "; ".join(dict.fromkeys(grave)))
    return [*grave, *check_settings(asked=asked, before=before, force=force)]


def check_settings(*, asked: BaseModel, before: BaseModel, force: bool) -> list[str]:
    """Which settings differ, for the user to know. ResumeError if those of the model or the environments do, unless
    forced."""
    changes = list(_differences(before.model_dump(), asked.model_dump()))
    grave = [text for name, text in changes if name.split(".")[0] in ("model", "env")]
    if grave and not force:
        raise ResumeError("this would not be the same run: " + "; ".join(grave))
    return [text for name, text in changes if name != "output"]


def _bits(environment: Mapping[str, Any]) -> str:
    return f"{environment.get('version')} {str(environment.get('digest'))[:19]}"


def now() -> str:
    """The time, for records."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _paired(
    saved: Sequence[Mapping[str, Any]], begun: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    later = {one["name"]: one for one in begun}
    for one in saved:
        yield one["name"], one, later.get(one["name"], {})


def _differences(before: Any, asked: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Settings that differ: name, and `name: old → new`."""
    if isinstance(before, dict) and isinstance(asked, dict):
        for key in {**before, **asked}:
            yield from _differences(before.get(key), asked.get(key), f"{name}.{key}" if name else key)
    elif before != asked:
        yield name, f"{name}: {before} → {asked}"


def _versions() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        try:
            yield package, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue


def _replace(path: Path, text: str) -> None:
    """Put text in place of a file's, whole or not at all."""
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise store_error(f"can not write {path}", error) from error
