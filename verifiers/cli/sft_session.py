"""One call of `vf-sft`: conversations read, the loop driven, Ctrl-C answered, what came of it told.

As with `vf-train`, the first Ctrl-C ends the run after the present step, with a checkpoint; the second ends the process
at once. Under torchrun the first process reads the data and leads.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shlex
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from verifiers.cli.interrupts import interruptible
from verifiers.cli.output import Output
from verifiers.cli.training_end import LOSSES, finish
from verifiers.cli.training_line import Flags, Line
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
from verifiers.cli.training_view import View, shown_view
from verifiers.errors import ConfigError, ExitCode
from verifiers.train.config import SftConfig
from verifiers.train.config_files import to_file
from verifiers.train.observers.metrics_file import MetricsFile
from verifiers.train.observers.open import open_observers
from verifiers.train.packages import check_packages
from verifiers.train.plan import on_hub
from verifiers.train.report import Observer, StepReport
from verifiers.train.run_folder import CHECKPOINTS, METRICS, RunFolder
from verifiers.train.sft_files import items_of
from verifiers.train.sft_rows import check_wanted


def train(line: Line, flags: Flags, output: Output) -> ExitCode:
    """Train. Returns the exit code; errors that end the command come out."""
    output.verbose = flags.verbose
    config = config_of(SftConfig, line, flags)
    if not config.data.files:
        raise ConfigError(
            "there is no data to learn from: data.files is empty",
            hint="Name files, or folders of runs of vf-eval: data.files=outputs/evals/RUN",
        )
    check_packages(config)
    for file in (*config.data.files, *config.data.validation):
        next(items_of(file), None)  # a wrong path is told before a model is loaded
    check_wanted(config.data.files, config.data)
    from_hub = on_hub(config.model.path)
    if flags.dry_run:
        output.event({"event": "plan", "config": config.model_dump(mode="json")})
        output.result(to_file(config))
        return ExitCode.OK
    need_torch("vf-sft")
    if from_hub:
        output.note(FROM_HUB.format(config.model.path))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    return _Session(config, flags, output).run()


class _Session:
    """State of one call."""

    def __init__(self, config: SftConfig, flags: Flags, output: Output) -> None:
        self.config = config
        self.flags = flags
        self.output = output

    def run(self) -> ExitCode:
        """Read the data, and join torchrun's processes if there are several; the first leads."""
        config = self.config
        leading = leads()
        folder = folder_of(config, config.output, self.flags) if leading else RunFolder(config.output)

        from verifiers.train.build import (  # torch, which takes seconds
            joined,
            loaded_policy,
            make_sft_learner,
        )
        from verifiers.train.checkpoint import Checkpoints
        from verifiers.train.sft import SftLoop

        ranks = joined(config.model)
        if not leading:
            ignore_signals()
        policy = loaded_policy(config.model, config.trainer.seed)
        keeping = config.checkpoint
        checkpoints = Checkpoints(folder / CHECKPOINTS, every=keeping.every, keep=keeping.keep)
        learned, held_out = self._rows(policy.tokenizer, tell=leading)
        loop = SftLoop(learned, config.sft, validation=held_out, checkpoints=checkpoints)
        learner = make_sft_learner(policy, config.trainer, loop.total_steps, ranks)
        if not leading:
            return follow(learner, ranks)
        begins = config if self.flags.resume is None else None
        return lead(self._train(folder, loop, learner), learner, ranks, folder, begins)

    def _rows(self, tokenizer: Any, *, tell: bool) -> tuple[list[Any], list[Any]]:
        """What is learned and what is held out; what was left out is told."""
        from verifiers.train.sft import split
        from verifiers.train.sft_rows import read_sft

        settings = self.config.data
        data = read_sft(settings.files, tokenizer, settings)
        learned, held_out = split(data.rows, settings.validation_share)
        if settings.validation:
            held_out = held_out + read_sft(settings.validation, tokenizer, settings).rows
        if tell:
            taken = sum(data.taken.values())
            self.output.note(f"{taken} conversations in {len(data.rows)} rows, {len(held_out)} rows held out")
            for why, count in sorted(data.left_out.items()):
                self.output.note(f"left out: {count} ({why})")
            if data.other_ids:
                self.output.note(f"{data.other_ids} were sampled with another tokenizer and are tokenised anew")
        return learned, held_out

    async def _train(self, folder: RunFolder, loop: Any, learner: Any) -> ExitCode:
        began = time.monotonic()
        teller = Teller("vf-sft", folder, self.output)
        async with AsyncExitStack() as ends:
            went_on = loop.resume(learner)
            record = RunRecord(
                folder,
                self.config,
                self.flags,
                self.output,
                model=self.config.model.path,
                from_step=loop.step if went_on else None,
                data=[_described(file) for file in self.config.data.files],
            )
            after = loop.step if went_on else -1
            metrics = ends.enter_context(MetricsFile(folder / METRICS, after))
            others = open_observers(
                self.config, folder, ends, self.output.note, run_id=record.run_id, after=after
            )
            begins = f" from step {loop.step}" if went_on else ""
            self.output.note(f"{loop.total_steps} steps{begins} → {folder.path}")
            if loop.step >= loop.total_steps:
                self.output.note("there is nothing left to train: more epochs are asked for by sft.epochs=N")
            self.output.event({"event": "start", "run": str(folder.path), "from_step": loop.step})
            view = await ends.enter_async_context(
                shown_view(self.output, loop.total_steps, plain=self.flags.disable_tui)
            )
            observers: list[Observer] = [metrics, *others, _in_loop(view)]
            for observer in observers:
                loop.observe(observer)
            told = "stopping after this step, with a checkpoint"
            with interruptible(self.output, loop.stop, told) as interrupt:
                # In a thread, so that the view is redrawn and Ctrl-C heard.
                outcome = await teller.driven(asyncio.to_thread(loop.run, learner), loop, record)
        names = ", ".join(Path(file).name for file in self.config.data.files)
        title = f"{Path(self.config.model.path).name} on {names}"
        if outcome.stopped and interrupt.pressed:
            return teller.stopped(outcome, loop.total_steps, LOSSES, title)
        model = finish(LOSSES, title, folder, learner, time.monotonic() - began, self.output)
        self.output.hint(f"evaluate it: vf-eval ENVIRONMENT -m {shlex.quote(f'local:{model}')}")
        self.output.hint(f"go on: vf-train {shlex.quote(f'model.path={model}')} env=ENVIRONMENT")
        return ExitCode.OK


def _in_loop(view: View) -> Callable[[StepReport], None]:
    """The view, called in the event loop's thread, where it is redrawn."""
    events = asyncio.get_running_loop()

    def tell(report: StepReport) -> None:
        events.call_soon_threadsafe(view, report)

    return tell


def _described(file: str) -> dict[str, Any]:
    """A file of data, or a run, by its digest."""
    path = Path(file)
    files = [path] if path.is_file() else sorted(one for one in path.glob("*.jsonl*")) or sorted(path.glob("*.parquet"))
    digest = hashlib.sha256()
    for one in files:
        with one.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return {"path": file, "digest": f"sha256:{digest.hexdigest()}"}
