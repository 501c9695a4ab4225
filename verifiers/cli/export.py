"""`vf-eval … --export-sft FILE`: the rollouts that are worth imitating, after a run or from runs that are there.

What is chosen and written is `verifiers.train.sft_export`; this file has the words.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from verifiers.cli.output import Output
from verifiers.errors import ConfigError, ExitCode
from verifiers.evals.store import RESULTS
from verifiers.train.sft_export import Selection, check_export, export_sft

if TYPE_CHECKING:
    from verifiers.cli.eval import EvalFlags


def check(flags: EvalFlags) -> None:
    """Raise ConfigError for flags that contradict each other, before anything is spent."""
    if flags.export_sft is None:
        given = "--sft-min-reward" if flags.sft_min_reward is not None else "--sft-best"
        if flags.sft_min_reward is not None or flags.sft_best is not None:
            raise ConfigError(f"{given} chooses what is exported, and nothing is", hint="Add --export-sft FILE.")
        return
    check_export(flags.export_sft)
    if flags.no_save:
        raise ConfigError("--no-save and --export-sft contradict each other", hint="Saved runs are exported.")
    if flags.sft_best is not None and flags.sft_best < 1:
        raise ConfigError("--sft-best keeps at least one rollout of each task", hint="Give a number above 0.")


def only_runs(targets: Sequence[str], flags: EvalFlags) -> list[Path]:
    """The runs to export, if nothing else was named: then nothing is played."""
    if flags.export_sft is None or not targets:
        return []
    runs = [Path(target) for target in targets]
    return runs if all((run / RESULTS).is_file() for run in runs) else []


def export(runs: Sequence[Path], flags: EvalFlags, output: Output) -> ExitCode:
    """Write the file and say what is in it. Nothing in it is a failure."""
    assert flags.export_sft is not None
    path = check_export(flags.export_sft)
    exported = export_sft(runs, path, Selection(flags.sft_min_reward, flags.sft_best))
    left_out = dict(sorted(exported.left_out.items()))
    output.event(
        {
            "event": "export",
            "path": str(path),
            "conversations": exported.conversations,
            "tasks": exported.tasks,
            "left_out": left_out,
        }
    )
    others = ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in left_out.items())
    what = f"{exported.conversations} conversations of {exported.tasks} tasks"
    output.result(f"exported {what} to {path}" + (f"; left out: {others}" if others else ""))
    if exported.conversations:
        return ExitCode.OK
    output.hint("nothing was good enough: lower --sft-min-reward, or play more rollouts (-r)")
    return ExitCode.FAILED
