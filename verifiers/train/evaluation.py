"""Evaluation while training: the policy as it is, on tasks of its own, with the sampler that training uses.

    evaluation = Evaluation([EvaluatedEnvironment("math", source, source.task_ids)], every=100)

An evaluation is of exactly one policy version: while it runs, the loop holds new weights back. Training goes on with
what is sampled by the version that is evaluated, as far as `max_lag` lets it, and then waits. Once begun, it is not
dropped; rollouts that fail are counted beside the mean, and are not in it. Its sampling seeds are the same each time,
so that two evaluations differ by their policies alone. Where evaluations take longer than the steps between them,
`eval/skipped` counts those whose policy the sampler never had.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from verifiers.rollouts.source import GroupResult, RolloutRequest, RolloutSource
from verifiers.train.curriculum import epoch_seed
from verifiers.types import SamplingArgs


@dataclass(frozen=True, slots=True)
class EvaluatedEnvironment:
    """What the policy is evaluated on. `source` must be one of its own: what it reports is taken for this."""

    name: str
    source: RolloutSource
    task_ids: Sequence[str]
    rollouts_per_example: int = 1


class Evaluation:
    """Plays all tasks of its environments when it is asked to.

    every: steps from one evaluation to the next; the last step is evaluated, too. at_start: begin with the policy
    before its first step.
    """

    def __init__(
        self,
        environments: Sequence[EvaluatedEnvironment],
        *,
        every: int = 100,
        at_start: bool = True,
        sampling: SamplingArgs | None = None,
        seed: int = 0,
    ) -> None:
        self.every = every
        self.at_start = at_start
        self._environments = environments
        self._sampling: SamplingArgs = dict(sampling or {})
        self._seed = seed

    def is_due(self, step: int, last: int) -> bool:
        """Whether the policy after `step` of `last` steps is to be evaluated."""
        return self.at_start if step == 0 else step % self.every == 0 or step == last

    async def run(self, version: int) -> dict[str, float]:
        """Evaluate, and return the figures: `eval/NAME/reward` (left out if no rollout was scored), how many were
        scored and how many were not, by outcome. Raises what makes every rollout of a source fail."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._evaluate(one, version)) for one in self._environments]
        figures = {"eval/version": float(version)}
        for task in running:
            figures |= task.result()
        return figures

    async def _evaluate(self, one: EvaluatedEnvironment, version: int) -> dict[str, float]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._submit(one, version))
            results = await _take(one.source, len(one.task_ids))
        return _figures(one.name, results)

    async def _submit(self, one: EvaluatedEnvironment, version: int) -> None:
        seed = epoch_seed(self._seed, f"eval/{one.name}", 0)
        for number, task_id in enumerate(one.task_ids):
            await one.source.submit(
                RolloutRequest(
                    task_id,
                    f"eval-{version}-{number}",
                    one.rollouts_per_example,
                    seed,
                    dict(self._sampling),
                    version,
                    one.name,
                )
            )


async def _take(source: RolloutSource, count: int) -> list[GroupResult]:
    taken: list[GroupResult] = []
    results = source.results()
    while len(taken) < count:
        taken.append(await anext(results))
    return taken


def _figures(name: str, results: Sequence[GroupResult]) -> dict[str, float]:
    members = [member for result in results for member in result.members]
    outcomes = Counter(str(member.outcome) for member in members)
    rewards = [float(member.record["reward"]) for member in members if member.outcome.is_scored and member.record]
    figures = {f"eval/{name}/outcomes/{outcome}": float(count) for outcome, count in sorted(outcomes.items())}
    figures[f"eval/{name}/scored"] = float(len(rewards))
    figures[f"eval/{name}/failed"] = float(len(members) - len(rewards))
    if rewards:
        figures[f"eval/{name}/reward"] = sum(rewards) / len(rewards)
    return figures
