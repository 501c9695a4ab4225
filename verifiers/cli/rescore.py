"""`vf-eval --rescore RUN`: a saved run's scores before and after, side by side.

What scoring again means is `verifiers.evals.rescore`; this file has the words.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verifiers.cli import progress as progress_backends
from verifiers.cli.interrupts import interruptible
from verifiers.cli.output import Output, log_file
from verifiers.cli.results import LABEL_WIDTH, counted, cut, report, rollouts, score, summary_event
from verifiers.cli.session import dry_run, exit_code_of, without_resume
from verifiers.errors import ConfigError, Error, ExitCode, UnsavedStateError
from verifiers.evals.rescore import RescoreSummary, latest_unfinished, rescore, resolve_rescoring
from verifiers.evals.run import RunCallbacks, RunPlan
from verifiers.evals.store import LOG, RESULTS, SavedRun, runs_directory
from verifiers.loops import run_to_end

if TYPE_CHECKING:
    from verifiers.cli.eval import EvalFlags
    from verifiers.evals.config import Evaluation, Prepare
    from verifiers.evals.intervals import Estimate
    from verifiers.types.config import EvalConfig

logger = logging.getLogger(__name__)


def run(
    environments: Sequence[str],
    settings: Mapping[str, Any],
    flags: EvalFlags,
    arguments: Sequence[str],
    output: Output,
    prepare: Prepare,
) -> ExitCode:
    """Score the run that `flags.rescore` names again. Returns the exit code; errors that end the command come out."""
    source = SavedRun(str(flags.rescore))
    if not (source.path / RESULTS).is_file():
        raise ConfigError(
            f"{source.path} holds no run: there is no {RESULTS}", hint="Give the path of a run directory."
        )
    # It is scored in this process, wherever it was played.
    evaluation = resolve_rescoring(source, environments, settings, lambda env_id, _: prepare(env_id, False))
    if flags.dry_run:
        return dry_run([evaluation], output)
    with ExitStack() as stack:
        if output.json:
            # Environments may print; stdout belongs to the events.
            stack.enter_context(redirect_stdout(sys.stderr))
        return run_to_end(_Rescoring(source, flags, arguments, output).run(evaluation))


class _Rescoring:
    """One call: progress, Ctrl-C, and what is said at the end."""

    def __init__(
        self, source: SavedRun, flags: EvalFlags, arguments: Sequence[str], output: Output
    ) -> None:
        self.source = source
        self.flags = flags
        self.arguments = arguments
        self.output = output
        self.progress = progress_backends.choose(
            output, plain=bool(flags.disable_tui), fullscreen=bool(flags.fullscreen)
        )
        self.plans: list[RunPlan] = []

    async def run(self, evaluation: Evaluation) -> ExitCode:
        self.output.note(f"{evaluation.environment.described}, scoring {self.source.path} again")
        began = time.monotonic()
        config = self._resumed(evaluation)
        with ExitStack() as log, interruptible(self.output) as interrupt:

            def on_start(plan: RunPlan) -> None:
                self.plans.append(plan)
                if plan.path is not None:
                    log.enter_context(log_file(plan.path / LOG))
                self.progress.start(plan)

            try:
                callbacks = RunCallbacks(on_start, self._on_rollout, self.output.note)
                summary = await rescore(self.source, config, callbacks)
            except asyncio.CancelledError:
                if not interrupt.pressed:
                    raise
                self._tell_unfinished(time.monotonic() - began)
                return ExitCode.INTERRUPTED
            except Error:
                self._tell_unfinished(time.monotonic() - began)
                raise
            finally:
                self.progress.close()
        self._show(summary)
        return exit_code_of([summary.after.counts])

    def _resumed(self, evaluation: Evaluation) -> EvalConfig:
        config = evaluation.config
        if evaluation.resume is False:
            return config
        path: Path | None
        if isinstance(evaluation.resume, str):
            path = Path(evaluation.resume)
        else:
            folder = runs_directory(
                config.env_id,
                config.name,
                config.model,
                env_dir=config.env_dir_path,
                output_dir=config.output_dir,
            )
            path = latest_unfinished(folder, self.source)
            if path is None:
                self.output.note(f"no unfinished scoring of {self.source.path} in {folder}: a new one is started")
                return config
        return config.model_copy(update={"resume_path": str(path), "force": bool(self.flags.force)})

    def _on_rollout(self, record: Mapping[str, Any]) -> None:
        error = record.get("error")
        if isinstance(error, Mapping):
            place = f"task {record.get('example_id')}, rollout {record.get('rollout_index')}"
            logger.info("%s %s: %s", place, record.get("outcome"), error.get("error_chain_repr"))
        self.progress.add(record)

    def _tell_unfinished(self, seconds: float) -> None:
        self.progress.close()
        if not self.plans:
            return
        plan = self.plans[0]
        report(plan, seconds, self.output, short=True)
        if plan.path is not None and plan.statistics.counts.total:
            command = ["vf-eval", *without_resume(self.arguments), "--resume", str(plan.path)]
            self.output.hint(f"what was scored is saved; continue with: {shlex.join(command)}")

    def _show(self, summary: RescoreSummary) -> None:
        before, after = summary.before.summary(), summary.after.summary()
        event = summary_event(summary.plan, after, summary.seconds)
        plain = before.to_dict()
        was = {"mean": before.reward.mean, "interval": plain["reward"]["interval"], "counts": plain["counts"]}
        self.output.event(
            {**event, "before": {**was, "metrics": plain["metrics"]}, "changed": summary.changed}
        )
        self.output.result(f"\n{summary.plan.name} · {summary.plan.model}, scored again")
        names = dict.fromkeys([*before.metrics, *after.metrics])
        rows = [_row("score", before.reward, after.reward)]
        rows += [_row(name, before.metrics.get(name), after.metrics.get(name)) for name in names]
        for name in ("ok", "failed", "unscored", "truncated"):
            numbers = [getattr(counts, name) for counts in (before.counts, after.counts)]
            rows.append([name, *map(str, numbers), _signed(numbers[1] - numbers[0])])
        self.output.table(["", "before", "after", "change"], rows)
        self.output.result()
        for label, text in (
            ("score", score(after)),
            ("rollouts", rollouts(after)),
            ("changed", f"{summary.changed} of {after.counts.total} rewards"),
            *(("error", f"{kind} ×{group.count}: {cut(group.example)}") for kind, group in after.errors.items()),
            ("raised", counted(after.raising_functions)),
            ("saved", str(summary.plan.path) if summary.plan.path is not None else "nothing"),
        ):
            if text:
                self.output.result(f"  {label:<{LABEL_WIDTH}} {text}")
        if UnsavedStateError.__name__ in str(after.errors.get("reward", "")):
            self.output.hint("save the state that the rubric reads when the rollouts are played: -C NAME,NAME")


def _row(name: str, before: Estimate | None, after: Estimate | None) -> list[str]:
    """Two means and their difference; a dash where there is none. How many rollouts they are over is told below."""
    old, new = (None if estimate is None else estimate.mean for estimate in (before, after))
    change = "" if old is None or new is None or old == new else f"{new - old:+.3f}"
    return [name, *("–" if value is None else f"{value:.3f}" for value in (old, new)), change]


def _signed(difference: int) -> str:
    return f"{difference:+d}" if difference else ""
