"""One call of `vf-train`: settings read, everything built, the run driven, Ctrl-C answered, what came of it told.

The first Ctrl-C (SIGTERM, SIGHUP) ends the run after the present step, with a checkpoint; the second ends the process
at once. Torch is loaded once it is certain that there is something to train.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shlex
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.cli.interrupts import interruptible
from verifiers.cli.output import Output, log_file
from verifiers.cli.training_end import finish
from verifiers.cli.training_view import View, choose
from verifiers.errors import Error, ExitCode, MissingExtraError, ResumeError
from verifiers.hub.ids import is_hub_id
from verifiers.loops import run_to_end
from verifiers.train.config import EnvironmentConfig, TrainConfig
from verifiers.train.config_files import load_config, to_file
from verifiers.train.environments import Prepare, find, loaded
from verifiers.train.observers.metrics_file import MetricsFile
from verifiers.train.observers.open import open_observers
from verifiers.train.plan import batch_figures, counted, parameters
from verifiers.train.report import Observer
from verifiers.train.run_folder import CONFIG, LOG, METRICS, RunFolder, check_same, now, provenance

if TYPE_CHECKING:
    from verifiers.cli.train import TrainFlags
    from verifiers.evals.lookup import FoundEnvironment

HERE = "."
"""What a bare --resume stands for: the run in the configuration's `output`."""

TICK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says: files, `section.name=value`, and flags."""

    files: Sequence[str]
    settings: Sequence[str]
    flags: TrainFlags


def train(asked: Asked, output: Output) -> ExitCode:
    """Train. Returns the exit code; errors that end the command come out."""
    flags = asked.flags
    output.verbose = flags.verbose
    config = _config(asked)
    if flags.dry_run:
        return dry_run(config, flags, output)
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        raise MissingExtraError("train", "vf-train")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    with ExitStack() as stack:
        if output.json:
            stack.enter_context(redirect_stdout(sys.stderr))  # environments may print; stdout belongs to the events
        return _Session(asked, config, output).run()


def _config(asked: Asked) -> TrainConfig:
    """What was asked for. --resume FOLDER alone asks for that run as it was."""
    flags, files = asked.flags, list(asked.files)
    settings = [*asked.settings, *([f"output={flags.output}"] if flags.output else [])]
    if flags.resume not in (None, HERE):
        folder = RunFolder.open(Path(str(flags.resume)))
        files = files or [str(folder / CONFIG)]
        settings.append(f"output={folder.path}")
    return load_config(files, settings)


def preparer(flags: TrainFlags, output: Output) -> Prepare:
    """What gets environments from the hub. It is loaded for an id with an owner only."""

    def prepare(env_id: str, isolated: bool) -> FoundEnvironment | None:
        if not is_hub_id(env_id):
            return None
        from verifiers.hub.prepare import Preparer

        return Preparer(flags.hub_url, flags.dry_run, output.confirm, output.note, output.warning)(env_id, isolated)

    return prepare


# --- without training -----------------------------------------------------------------------------------------


def dry_run(config: TrainConfig, flags: TrainFlags, output: Output) -> ExitCode:
    """Print every setting as a file, with what would be run as comments before it. Environments are loaded."""
    prepare = preparer(flags, output)
    environments = [described(one, prepare, flags.env_dir_path) for one in config.env]
    figures = batch_figures(config)
    size = parameters(config.model.path)
    plan = {"environments": environments, "parameters": size, **figures}
    output.event({"event": "plan", **plan, "config": config.model_dump(mode="json")})
    lines = [f"model: {config.model.path}" + (f", {counted(size)} parameters" if size else "")]
    for one in environments:
        version = " ".join(filter(None, (one["version"], (one["digest"] or "")[:19])))
        tasks = f", {one['tasks']} tasks" if one["tasks"] is not None else ", in a virtual environment of its own"
        lines.append(f"environment: {one['name']} {version}{tasks}")
    lines.append(
        f"{figures['steps']} steps of {config.loop.groups_per_batch} groups × {config.loop.group_size} rollouts "
        f"= {figures['rollouts']} rollouts, at most {counted(figures['tokens_per_batch'])} sampled tokens a step"
    )
    lag = f"at most {figures['ahead']} versions ahead" if figures["ahead"] else "in turn with training"
    lines.append(f"sampled {lag}, by {config.sampler.kind}")
    output.result("\n".join(f"# {line}" for line in lines) + "\n")
    output.result(to_file(config))
    return ExitCode.OK


def described(config: EnvironmentConfig, prepare: Prepare, env_dir: str) -> dict[str, Any]:
    """An environment for the plan: name, version, digest, and how many tasks it has, None if isolated."""
    found = find(config, prepare, env_dir)
    if config.isolated:
        return {"name": found.env_id, "version": found.version, "digest": None, "tasks": None}
    tasks = loaded(config, found)
    return {"name": tasks.ref.name, "version": tasks.ref.version, "digest": tasks.ref.digest, "tasks": len(tasks.rows)}


# --- training -------------------------------------------------------------------------------------------------


class _Session:
    """State of one call."""

    def __init__(self, asked: Asked, config: TrainConfig, output: Output) -> None:
        self.asked = asked
        self.flags = asked.flags
        self.config = config
        self.output = output

    def run(self) -> ExitCode:
        """Join torchrun's processes if there are several; the first leads."""
        from verifiers.train.build import follow, make_learner, ranks_of

        config = self.config
        ranks = ranks_of(config)
        if ranks.rank > 0:
            for number in (signal.SIGINT, signal.SIGTERM):  # the leader stops in order, and lets the others go
                signal.signal(number, signal.SIG_IGN)
            follow(config, ranks)
            return ExitCode.OK
        found = self._found(config.env)
        evaluated = self._evaluated(found)
        folder = self._folder()
        learner = make_learner(config, ranks)
        try:
            with log_file(folder / LOG):
                return run_to_end(self._train(folder, learner, found, evaluated))
        finally:
            learner.close()

    def _found(self, environments: Sequence[EnvironmentConfig]) -> list[FoundEnvironment]:
        prepare = preparer(self.flags, self.output)
        return [find(one, prepare, self.flags.env_dir_path) for one in environments]

    def _evaluated(self, found: list[FoundEnvironment]) -> list[tuple[EnvironmentConfig, FoundEnvironment]]:
        """The environments of evaluations; those that are trained on if none are named."""
        evaluation = self.config.eval
        if evaluation is None:
            return []
        named = evaluation.environments or [*self.config.env]
        places = self._found(named) if evaluation.environments else found
        limited = [
            one.model_copy(update={"max_tasks": min(one.max_tasks or sys.maxsize, evaluation.num_examples)})
            for one in named
        ]
        return list(zip(limited, places, strict=True))

    def _folder(self) -> RunFolder:
        path = self.config.output
        return RunFolder.create(path) if self.flags.resume is None else RunFolder.open(path)

    async def _train(
        self,
        folder: RunFolder,
        learner: Any,
        found: list[FoundEnvironment],
        evaluated: list[tuple[EnvironmentConfig, FoundEnvironment]],
    ) -> ExitCode:
        from verifiers.train.build import Run, built

        began = time.monotonic()
        async with contextlib.AsyncExitStack() as ends:
            run: Run = await ends.enter_async_context(built(self.config, learner, found, evaluated, folder))
            record = self._record(folder, run)
            metrics = ends.enter_context(MetricsFile(folder / METRICS, after=run.went_on_from or 0))
            others = open_observers(self.config, folder, ends, self.output.note)
            self._tell_start(folder, run)
            view = await ends.enter_async_context(self._view())
            observers: list[Observer] = [metrics, *others, view]
            for observer in observers:
                run.loop.observe(observer)
            told = "stopping after this step, with a checkpoint"
            with interruptible(self.output, run.loop.stop, told) as interrupt:
                outcome = await self._driven(run, folder, record)
        if outcome.stopped and interrupt.pressed:
            self.output.note(f"stopped after step {outcome.step} of {self.config.loop.steps}")
            self.output.hint(f"continue with: {shlex.join(['vf-train', '--resume', str(folder.path)])}")
            return ExitCode.INTERRUPTED
        return finish(self.config, folder, learner, time.monotonic() - began, self.output)

    @contextlib.asynccontextmanager
    async def _view(self) -> AsyncIterator[View]:
        """The view, which is redrawn as time passes, for as long as the block lasts."""
        view = choose(self.output, self.config.loop.steps, plain=self.flags.disable_tui)

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

    async def _driven(self, run: Any, folder: RunFolder, record: dict[str, Any]) -> Any:
        """Run the loop, and note how it ended."""
        session = record["sessions"][-1]
        try:
            outcome = await run.loop.run()
        except BaseException as error:
            session |= {"ended": now(), "step": run.loop.step, "how": type(error).__name__}
            folder.note(record)
            if isinstance(error, Error) and run.loop.step:
                self.output.hint(f"what was trained is kept; continue with: vf-train --resume {folder.path}")
            raise
        session |= {"ended": now(), "step": outcome.step, "how": "stopped" if outcome.stopped else "finished"}
        folder.note(record)
        return outcome

    def _record(self, folder: RunFolder, run: Any) -> dict[str, Any]:
        """Write what the run depends on; one that goes on is held against what it was."""
        record = provenance(self.config.model.path, run.environments)
        sessions: list[dict[str, Any]] = []
        if self.flags.resume is not None:
            saved = folder.record
            before = load_config([folder / CONFIG])
            for change in check_same(saved, record, asked=self.config, before=before, force=self.flags.force):
                self.output.note(f"other than before: {change}")
            sessions = saved["sessions"]
            record["began"] = saved["began"]
            if run.went_on_from is None and any(one.get("step") for one in sessions):
                raise ResumeError(
                    f"{folder.path} has no checkpoint to go on from", hint="Start anew in another folder: -o FOLDER."
                )
        record["sessions"] = [*sessions, {"began": now(), "from_step": run.went_on_from or 0}]
        folder.write(self.config, record)
        return record

    def _tell_start(self, folder: RunFolder, run: Any) -> None:
        for one in run.environments:
            digest = str(one["digest"] or "no digest")[:19]
            self.output.note(f"{one['name']} {one['version'] or ''} ({digest}): {one['tasks']} tasks")
        begins = "" if run.went_on_from is None else f" from step {run.went_on_from}"
        self.output.note(f"{self.config.loop.steps} steps{begins} → {folder.path}")
        self.output.event({"event": "start", "run": str(folder.path), "from_step": run.went_on_from or 0})
