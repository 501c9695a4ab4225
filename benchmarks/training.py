"""What training costs beside TRL's `GRPOTrainer`: the same tiny model, task, batch and one thread each.

The task is a toy that the model learns from random weights (`tests.support.toy_tasks.single_turn`): 4 groups of 8
rollouts of 8 tokens a step, which is the batch that training was designed with; learning rate 6e-3, advantages by the
group's standard deviation. Both train on the same batch, and sample all 8 tokens of each reply, as no end token is
found in so few updates. (Earlier figures are of 48 rollouts of 4 tokens.) TRL 1.16 samples with transformers'
`generate`, as it does without vLLM; ours with the engine of `sampler.kind = "inproc"`, in turn (`max_lag = 0`), so
that both are synchronous. Needs the extra `trl` for the peer.

Both do their work in one process, whose CPU time is measured. The last cases are ours alone: sampling in a process
beside the trainer, overlapped against in turn, with replies of 24 tokens, and the way of rows from the queue into
padded tensors (CPU time). Overlapping is a matter of wall time and takes two cores that nobody else uses: how much of
them was free stands in the case's name, and with less than CALM of them its bounds are not judged.
"""

import json
import statistics
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.case import Case, at_most, median_case, times_less
from benchmarks.options import Options
from benchmarks.peers import ROOT
from benchmarks.process import free_share, run as measure

WORKER = Path(__file__).with_name("training_worker.py")
GOAL = 0.9
CALM = 0.9
"""Share of two cores that is free on a machine where overlapping can be judged."""
WARM = 5
"""First steps that are left out of the time of a step."""


def run(options: Options) -> Iterator[Case]:
    """A step, the way to reward 0.9, overlapping, rows."""
    steps = 8 if options.quick else 60
    half = max(steps // 2, WARM + 3)
    runs = 1 if options.quick else min(options.runs, 5)
    ours: list[dict[str, Any]] = []
    peer: list[dict[str, Any]] = []
    turns: list[float] = []
    overlapped: list[float] = []
    free: list[float] = []
    for seed in range(runs):
        ours.append(worker("ours", steps, seed))
        if options.peer:
            peer.append(worker("trl", steps, seed))
        turns.append(step_s(worker("turns", half, seed)))
        free.append(free_share(2))
        overlapped.append(step_s(worker("overlapped", half, seed)))
    yield median_case(
        "a step, synchronous", "CPU ms", [1e3 * step_s(one) for one in ours], [1e3 * step_s(one) for one in peer],
        must=times_less(1 / 0.7) if peer else None, aim=times_less(1 / 0.4) if peer else None,
    )  # fmt: skip
    if not options.quick:
        yield to_goal(ours, peer)
    calm = statistics.median(free) >= CALM
    yield median_case(
        f"async against sync, two processes ({statistics.median(free):.0%} of two cores free)", "wall ms a step",
        [1e3 * one for one in overlapped], [1e3 * one for one in turns],
        must=times_less(1.3) if calm else None, aim=times_less(1.6) if calm else None,
    )  # fmt: skip
    rows = [worker("rows", 200 if options.quick else 2000, seed)["rows_per_s"] for seed in range(runs)]
    yield median_case(
        "rows of 1,000 tokens and 4 turns, queue to padded tensors", "CPU ms a row", [1e3 / one for one in rows],
        must=at_most(1e3 / 2000), aim=at_most(1e3 / 5000),
    )  # fmt: skip


def worker(what: str, size: int, seed: int) -> dict[str, Any]:
    """One run in a process of its own, on one thread."""
    one_thread = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT)}
    words: list[str | Path] = [sys.executable, "-W", "ignore", WORKER, what, str(size), str(seed)]
    figures: dict[str, Any] = json.loads(measure(words, one_thread).stdout.splitlines()[-1])
    return figures


def step_s(figures: dict[str, Any]) -> float:
    """The median time of a step, without the first ones."""
    ends = figures["ends_s"][WARM:]
    return float(statistics.median(after - before for before, after in pairwise(ends)))


def to_goal(ours: list[dict[str, Any]], peer: list[dict[str, Any]]) -> Case:
    """Time until the mean reward of five steps is at the goal. RuntimeError for a run of ours that does not get there;
    of the peer's the case's name says how many do, and the others have no time."""
    times = [goal_s(one) for one in ours]
    if None in times:
        raise RuntimeError(f"a run is not at {GOAL:g} after {len(ours[0]['rewards'])} steps: {times}")
    peers = [seconds for one in peer if (seconds := goal_s(one)) is not None]
    short = f" (peer: {len(peers)} of {len(peer)} runs)" if len(peers) < len(peer) else ""
    return median_case(
        f"to reward {GOAL:g}{short}", "CPU s", [seconds for seconds in times if seconds is not None], peers,
        must=times_less(1.0) if peers else None, aim=times_less(2.0) if peers else None,
    )  # fmt: skip


def goal_s(figures: dict[str, Any]) -> float | None:
    """Seconds until a run is there; None if it does not get there."""
    rewards = figures["rewards"]
    for number in range(5, len(rewards) + 1):
        if statistics.fmean(rewards[number - 5 : number]) >= GOAL:
            return float(figures["ends_s"][number - 1])
    return None
