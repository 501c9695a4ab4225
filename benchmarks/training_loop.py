"""The training loop on a virtual clock: what overlapping gains, and how long the trainer waits for slow rollouts.

Sampler and trainer are simulated (their costs are exact, and the figures the same on every machine); the source, the
buffer, pacing and the loop are the real ones. Times are virtual seconds a step.

In the first case a batch takes 1 s to sample and 1 s to train: with `max_lag=0` these add up. In the others rollouts
take log-normal times of mean 1 s and σ = 1 (the slowest of a batch of 64 takes some 6.5 s, the median 0.6 s), at the
default `max_lag` of 8, and training takes as long as a rollout does on average.
"""

from collections.abc import Iterator
from typing import Any

from benchmarks.case import Case, at_most, times_less
from benchmarks.options import Options
from tests.support.training import Setup, play
from verifiers.train.fates import Fate

GROUPS, SIZE = 8, 8


def run(options: Options) -> Iterator[Case]:
    """Steps in turn beside steps that overlap; the trainer's share of waiting; how old the rows are then."""
    steps = 40 if options.quick else 400
    turns, overlapping = (simulated(steps, max_lag, sigma=0.0) for max_lag in (0, 8))
    yield Case(
        "async against sync, equal simulated costs",
        "s a step",
        overlapping.seconds / steps,
        turns.seconds / steps,
        must=times_less(1.6),
        aim=times_less(1.9),
    )
    slow = simulated(steps, 8, sigma=1.0)
    yield Case(
        "trainer idle, log-normal rollouts",
        "% of the time",
        100 * idle(slow, steps // 4, steps - steps // 4),
        must=at_most(15),
        aim=at_most(5),
    )
    yield Case("the same, with start and end of the run", "% of the time", 100 * idle(slow, 0, steps), must=at_most(15))
    lags = [report.figures["lag/mean"] for report in slow.steps]
    yield Case("lag of its rows", "versions", sum(lags) / len(lags), must=at_most(8))
    fates = slow.loop.flow.buffer.fates
    yield Case("groups too old to train on", "% of all", 100 * fates[Fate.STALE] / fates.total())


def simulated(steps: int, max_lag: int, sigma: float) -> Setup:
    """A run of so many steps. All groups have a difference in reward."""
    settings: dict[str, Any] = {"steps": steps, "groups_per_batch": GROUPS, "group_size": SIZE, "max_lag": max_lag}
    return play(
        loop=settings,
        tasks=1000,
        seconds=lambda random: random.lognormvariate(-sigma * sigma / 2, sigma),
        train_seconds=1.0,
        table=lambda seed: [1],
    )


def idle(made: Setup, begin: int, end: int) -> float:
    """The share of the time in which no step ran."""
    reports = made.steps[begin:end]
    return sum(report.figures.get("wait/trainer_s", 0.0) for report in reports) / sum(r.seconds for r in reports)
