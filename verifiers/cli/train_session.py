"""One call of `vf-train`: settings read, everything built, the run driven, Ctrl-C answered, what came of it told.

The first Ctrl-C (SIGTERM, SIGHUP) ends the run after the present step, with a checkpoint; the second ends the process
at once. Torch is loaded once it is certain that there is something to train.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.cli.interrupts import interruptible
from verifiers.cli.output import Output
from verifiers.cli.training_end import REWARDS, finish, keep
from verifiers.cli.training_line import Line
from verifiers.cli.training_record import (
    FROM_HUB,
    RunRecord,
    config_of,
    folder_of,
    ignore_signals,
    leads,
    need_torch,
)
from verifiers.cli.training_run import Teller, follow, lead
from verifiers.cli.training_view import shown_view
from verifiers.errors import ExitCode, NothingToTrainError
from verifiers.hub.ids import is_hub_id
from verifiers.train.config import EnvironmentConfig, TrainConfig
from verifiers.train.config_files import to_file
from verifiers.train.engines.http import key_headers
from verifiers.train.environments import Prepare, Split, find, loaded
from verifiers.train.observers.metrics_file import MetricsFile
from verifiers.train.observers.open import open_observers
from verifiers.train.packages import check_packages
from verifiers.train.plan import batch_figures, counted, on_hub, parameters
from verifiers.train.report import Observer
from verifiers.train.run_folder import METRICS, RunFolder

if TYPE_CHECKING:
    from verifiers.cli.train import TrainFlags
    from verifiers.evals.lookup import FoundEnvironment


def train(line: Line, flags: TrainFlags, output: Output) -> ExitCode:
    """Train. Returns the exit code; errors that end the command come out."""
    output.verbose = flags.verbose
    config = config_of(TrainConfig, line, flags)
    check_packages(config)
    from_hub = on_hub(config.model.path)
    if flags.dry_run:
        return dry_run(config, flags, output)
    need_torch("vf-train")
    key_headers(config.sampler.api_key_var)  # before hours of loading
    if from_hub:
        output.note(FROM_HUB.format(config.model.path))
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    with ExitStack() as stack:
        if output.json:
            stack.enter_context(redirect_stdout(sys.stderr))  # environments may print; stdout belongs to the events
        return _Session(config, flags, output).run()


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
    named = evaluated_on(config) if config.eval and config.eval.environments else []
    evaluated = [described(one, prepare, flags.env_dir_path, "eval") for one in named]
    figures = batch_figures(config)
    size = parameters(config.model.path)
    plan = {"environments": environments, "evaluated": evaluated, "parameters": size, **figures}
    output.event({"event": "plan", **plan, "config": config.model_dump(mode="json")})
    known = f", {counted(size)} parameters" if size else ""
    lines = [f"model: {config.model.path}{', of the Hugging Face Hub' if on_hub(config.model.path) else known}"]
    lines += [f"environment: {_in_words(one)}" for one in environments]
    lines += [f"evaluated on: {_in_words(one)}" for one in evaluated]
    lines.append(
        f"{figures['steps']} steps of {config.loop.groups_per_batch} groups × {config.loop.group_size} rollouts "
        f"= {figures['rollouts']} rollouts, at most {counted(figures['tokens_per_batch'])} sampled tokens a step"
    )
    lag = f"at most {figures['ahead']} versions ahead" if figures["ahead"] else "in turn with training"
    lines.append(f"sampled {lag}, by {config.sampler.kind}")
    output.result("\n".join(f"# {line}" for line in lines) + "\n")
    output.result(to_file(config))
    return ExitCode.OK


def described(config: EnvironmentConfig, prepare: Prepare, env_dir: str, split: Split = "train") -> dict[str, Any]:
    """An environment for the plan: name, version, digest, and how many tasks it has: None for one that is not loaded
    here, because it gets a virtual environment of its own, or would be installed first."""
    found = find(config, prepare, env_dir)
    if config.isolated or found.hub_wheels:
        name = found.env_id.partition("@")[0]
        digest = f"sha256:{found.hub_wheels[0].sha256}" if found.hub_wheels else None
        place = "in a virtual environment of its own" if config.isolated else "would be installed"
        return {"name": name, "version": found.version, "digest": digest, "tasks": None, "place": place}
    tasks = loaded(config, found, split)
    return {**asdict(tasks.ref), "tasks": len(tasks.rows), "place": "here"}


def _in_words(plan: Mapping[str, Any]) -> str:
    version = " ".join(filter(None, (plan["version"], (plan["digest"] or "")[:19])))
    return f"{plan['name']} {version}, {plan['place'] if plan['tasks'] is None else str(plan['tasks']) + ' tasks'}"


def evaluated_on(config: TrainConfig) -> list[EnvironmentConfig]:
    """The environments of evaluations, with so many tasks as are played; those that are trained on if none is named."""
    if config.eval is None:
        return []
    most = config.eval.num_examples
    named = config.eval.environments or config.env
    return [one.model_copy(update={"max_tasks": min(one.max_tasks or most, most)}) for one in named]


# --- training -------------------------------------------------------------------------------------------------


class _Session:
    """State of one call."""

    def __init__(self, config: TrainConfig, flags: TrainFlags, output: Output) -> None:
        self.flags = flags
        self.config = config
        self.output = output

    def run(self) -> ExitCode:
        """Join torchrun's processes if there are several; the first leads, and looks for mistakes before that."""
        config = self.config
        if not leads():
            from verifiers.train.build import joined, make_learner

            ranks = joined(config.model)
            ignore_signals()
            return follow(make_learner(config, ranks), ranks)
        found = self._found(config.env)
        evaluated = self._evaluated(found)
        folder = folder_of(config, config.output, self.flags)

        from verifiers.train.build import joined, make_learner  # torch, which takes seconds

        ranks = joined(config.model)
        learner = make_learner(config, ranks)
        begins = config if self.flags.resume is None else None
        return lead(self._train(folder, learner, found, evaluated), learner, ranks, folder, begins)

    def _found(self, environments: Sequence[EnvironmentConfig]) -> list[FoundEnvironment]:
        prepare = preparer(self.flags, self.output)
        return [find(one, prepare, self.flags.env_dir_path) for one in environments]

    def _evaluated(self, found: list[FoundEnvironment]) -> list[tuple[EnvironmentConfig, FoundEnvironment]]:
        """The environments of evaluations, and where they are."""
        named = evaluated_on(self.config)
        own = self.config.eval is not None and self.config.eval.environments
        return list(zip(named, self._found(named) if own else found, strict=bool(named)))

    async def _train(
        self,
        folder: RunFolder,
        learner: Any,
        found: list[FoundEnvironment],
        evaluated: list[tuple[EnvironmentConfig, FoundEnvironment]],
    ) -> ExitCode:
        from verifiers.train.build import Run, built

        began = time.monotonic()
        teller = Teller("vf-train", folder, self.output)
        async with contextlib.AsyncExitStack() as ends:
            run: Run = await ends.enter_async_context(built(self.config, learner, found, evaluated, folder))
            record = RunRecord(
                folder,
                self.config,
                self.flags,
                self.output,
                model=self.config.model.path,
                from_step=run.went_on_from,
                environments=run.environments,
            )
            after = -1 if run.went_on_from is None else run.went_on_from
            metrics = ends.enter_context(MetricsFile(folder / METRICS, after))
            others = open_observers(
                self.config, folder, ends, self.output.note, run_id=record.run_id, after=after
            )
            self._tell_start(folder, run)
            view = await ends.enter_async_context(
                shown_view(
                    self.output, self.config.loop.steps, plain=self.flags.disable_tui, doing=run.loop.doing
                )
            )
            observers: list[Observer] = [metrics, *others, view]
            for observer in observers:
                run.loop.observe(observer)
            told = "stopping after this step, with a checkpoint"
            with interruptible(self.output, run.loop.stop, told) as interrupt:
                try:
                    outcome = await teller.driven(run.loop.run(), run.loop, record)
                except NothingToTrainError:
                    keep(REWARDS, self._title, folder, learner, self.output)
                    raise
        if outcome.stopped and interrupt.pressed:
            return teller.stopped(outcome, self.config.loop.steps, REWARDS, self._title)
        return self._finish(folder, learner, time.monotonic() - began, outcome.mastered)

    def _finish(self, folder: RunFolder, learner: Any, seconds: float, mastered: str) -> ExitCode:
        config = self.config
        model = finish(REWARDS, self._title, folder, learner, seconds, self.output, mastered)
        asked = (config.eval.environments if config.eval else None) or config.env
        self.output.hint(f"evaluate it: {shlex.join(['vf-eval', asked[0].id, '-m', f'local:{model}'])}")
        return ExitCode.OK

    @property
    def _title(self) -> str:
        return f"{Path(self.config.model.path).name} on {', '.join(one.label for one in self.config.env)}"

    def _tell_start(self, folder: RunFolder, run: Any) -> None:
        for one in run.environments:
            digest = str(one["digest"] or "no digest")[:19]
            self.output.note(f"{one['name']} {one['version'] or ''} ({digest}): {one['tasks']} tasks")
        steps, done = self.config.loop.steps, run.went_on_from
        if done is not None and done >= steps:
            self.output.note(f"{folder.path} is at step {done} of {steps} already: there is nothing left to train")
            self.output.hint(f"go on: {shlex.join(['vf-train', '--resume', str(folder.path)])} loop.steps={2 * done}")
        else:
            begins = "" if done is None else f" from step {done}"
            self.output.note(f"{steps} steps{begins} → {folder.path}")
        self.output.event({"event": "start", "run": str(folder.path), "from_step": run.went_on_from or 0})
