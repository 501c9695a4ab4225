"""Reports for other people's dashboards: TensorBoard and Weights & Biases. Their failures end no run.

    with TensorBoardObserver(folder / "tensorboard") as observer:      # after=120 goes on after that step
        observer(report)

A run that goes on is one run there, too. TensorBoard hides what was told of steps that are made again; Weights & Biases
takes nothing back, so of those it has both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from verifiers.train.packages import absent
from verifiers.train.report import StepReport

logger = logging.getLogger(__name__)


class _Dashboard:
    """Hands figures to a library. What it raises is logged once, and it is asked no more."""

    name: str
    _dead = False

    def __call__(self, report: StepReport) -> None:
        self._guarded(lambda: self._send(report))

    def _send(self, report: StepReport) -> None:
        raise NotImplementedError

    def _finish(self) -> None:
        raise NotImplementedError

    def _guarded(self, action: Callable[[], None]) -> None:
        if self._dead:
            return
        try:
            action()
        except Exception as error:  # boundary: a library that talks to a disk and a network of its own
            self._dead = True
            logger.warning("%s gets no further figures: %s: %s", self.name, type(error).__name__, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._guarded(self._finish)


class TensorBoardObserver(_Dashboard):
    """Scalars in an event file, read by `tensorboard --logdir FOLDER`."""

    name = "TensorBoard"

    def __init__(self, folder: Path, after: int = -1) -> None:
        """after: the last step that stays, -1 for none."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise absent("tensorboard", "log.tensorboard") from error
        self._writer = SummaryWriter(str(folder), purge_step=after + 1)

    def _send(self, report: StepReport) -> None:
        for name, value in _named(report).items():
            self._writer.add_scalar(name, value, report.step)
        self._writer.flush()

    def _finish(self) -> None:
        self._writer.close()


class WandbObserver(_Dashboard):
    """A run in a project of Weights & Biases; WANDB_MODE=offline keeps it on disk. `config` is shown with it. The run
    of that id goes on, where there is one."""

    name = "Weights & Biases"

    def __init__(self, project: str, folder: Path, config: dict[str, Any], run_id: str) -> None:
        try:
            import wandb
        except ImportError as error:
            raise absent("wandb", "log.wandb") from error
        self._run = wandb.init(
            project=project, name=folder.name, dir=str(folder), config=config, id=run_id, resume="allow"
        )
        # An evaluation ends after later steps were told, and the library drops what goes back in its own count.
        self._run.define_metric("*", step_metric="step")

    def _send(self, report: StepReport) -> None:
        self._run.log({**_named(report), "step": report.step, "version": report.version})

    def _finish(self) -> None:
        self._run.finish()


def _named(report: StepReport) -> dict[str, float]:
    """The figures, and the seconds: an evaluation's are not those of the step that it is of."""
    return {**report.figures, "step/seconds" if report.is_step else "eval/seconds": report.seconds}
