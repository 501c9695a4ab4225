"""What a training run tells while it runs: one `StepReport` an update, handed to observers.

An observer is any callable; files, terminal views and exporters are observers, and the loop knows none of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepReport:
    """One turn of the loop. Figures are named `area/figure`: `reward/mean`, `lag/max`, `loss/mismatch_kl`,
    `wait/trainer_s`, `tokens/trained`, `groups/cancelled`, `eval/ENV/reward` …

    step: counts turns of the loop; version: the policy's after it. trained is False for a batch with nothing to train.
    An evaluation has a report of its own, with the step of the policy that it is of, and nothing but `eval/…` figures.
    """

    step: int
    version: int
    trained: bool
    seconds: float
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_step(self) -> bool:
        """Whether it tells of a batch; evaluations are told by themselves."""
        return "batch/groups" in self.figures or "sft/epoch" in self.figures


Observer = Callable[[StepReport], None]


def tell(observers: Iterable[Observer], report: StepReport) -> int:
    """Hand a report to all of them. Returns how many raised: that is logged, and ends no run."""
    failed = 0
    for observer in observers:
        try:
            observer(report)
        except Exception:  # boundary: an observer's own code
            failed += 1
            logger.exception("an observer failed at step %d; training goes on", report.step)
    return failed
