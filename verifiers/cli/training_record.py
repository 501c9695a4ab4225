"""A training run as `run.json` tells it: what it depends on, and each call that worked on it, with how it ended."""

from __future__ import annotations

import importlib.util
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from verifiers.cli.output import Output
from verifiers.cli.training_line import HERE, Flags, Line
from verifiers.errors import MissingExtraError, ResumeError
from verifiers.train.config_files import read_config
from verifiers.train.run_folder import CONFIG, RECORD, RunFolder, check_same, check_settings, now, provenance

Config = TypeVar("Config", bound=BaseModel)

FROM_HUB = "there is no folder {}: it is taken from the Hugging Face Hub"


def config_of(model: type[Config], line: Line, flags: Flags) -> Config:
    """What was asked for. --resume FOLDER alone asks for that run as it was."""
    files = list(line.files)
    settings = [*line.settings, *([f"output={flags.output}"] if flags.output else [])]
    if flags.resume not in (None, HERE):
        folder = RunFolder.open(Path(str(flags.resume)))
        files = files or [str(folder / CONFIG)]
        settings.append(f"output={folder.path}")
    return read_config(model, files, settings)


def need_torch(command: str) -> None:
    """MissingExtraError unless what training needs is installed."""
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        raise MissingExtraError("train", command)


def folder_of(config: BaseModel, path: Path, flags: Flags) -> RunFolder:
    """The run's folder: a new one, or with --resume the one that is there. ResumeError for other settings of model or
    environments: before hours of loading, and before a checkpoint is held against what it is not of."""
    if flags.resume is None:
        return RunFolder.create(path)
    folder = RunFolder.open(path)
    check_settings(asked=config, before=read_config(type(config), [folder / CONFIG]), force=flags.force)
    return folder


class RunRecord:
    """`run.json` while a call works on the run. A run that goes on is held against what it was: ResumeError."""

    def __init__(
        self,
        folder: RunFolder,
        config: BaseModel,
        flags: Flags,
        output: Output,
        *,
        model: str,
        from_step: int | None,
        environments: Sequence[Mapping[str, Any]] = (),
        **more: Any,
    ) -> None:
        self._folder = folder
        record = provenance(model, environments, **more)
        sessions: list[dict[str, Any]] = []
        if flags.resume is not None and (folder / RECORD).is_file():
            saved = folder.record
            before = read_config(type(config), [folder / CONFIG])
            for change in check_same(saved, record, asked=config, before=before, force=flags.force):
                output.note(f"other than before: {change}")
            sessions = saved["sessions"]
            record |= {"id": saved.get("id", record["id"]), "began": saved["began"]}
            if from_step is None and any(one.get("step") for one in sessions):
                raise ResumeError(
                    f"{folder.path} has no checkpoint to go on from", hint="Start anew in another folder: -o FOLDER."
                )
        self._session: dict[str, Any] = {"began": now(), "from_step": from_step or 0}
        self._record = {**record, "sessions": [*sessions, self._session]}
        folder.write(config, self._record)

    @property
    def run_id(self) -> str:
        """What the run is known by in other people's dashboards, however often it goes on."""
        return str(self._record["id"])

    def ended(self, step: int, how: str) -> None:
        """Note the end of this call."""
        self._session |= {"ended": now(), "step": step, "how": how}
        self._folder.note(self._record)


def leads() -> bool:
    """Whether this is the first of torchrun's processes, or the only one: known before torch is loaded."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK") == "0"


def ignore_signals() -> None:
    """For the processes of torchrun that follow: the first one stops in order, and lets them go."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
