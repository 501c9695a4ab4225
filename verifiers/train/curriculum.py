"""Which task is asked for next: environments by ratio, each in an order of its own, every task once an epoch.

    curriculum = Curriculum([Course("math", source.task_ids), Course("code", others, ratio=2.0)], seed=0)
    ask = curriculum.next()                    # Ask(number=0, env="code", task_id=…, seed=…)
    curriculum.drop(ask)                       # the environment declared the task unfit: never again
    saved = curriculum.state()                 # JSON data; another one of the same courses goes on with `restore`

The order depends on the seed, and with difficulty pools on the rewards that were seen. It has nothing to do with time,
so that two runs that see the same rewards ask for the same tasks. Nothing here knows of rollouts.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verifiers.errors import ConfigError, ResumeError, TrainingError


@dataclass(frozen=True, slots=True)
class Ask:
    """One group to be asked for. `number` counts all groups of a run; `seed` is that of the environment's epoch, and
    with the task it decides the seeds of the rollouts, whenever they are played."""

    number: int
    env: str
    task_id: str
    seed: int
    epoch: int

    @property
    def group_id(self) -> str:
        """Names the group in its result and its rows."""
        return f"g{self.number:06d}"


@dataclass(frozen=True, slots=True)
class Pools:
    """Tasks of middling difficulty are preferred: those whose last mean reward was above `hard` and below `easy`.

    An epoch passes over one of the others with probability 1 − `weight`; over one of the middle with 1 − 1/`weight`,
    if that is above 1. Tasks not seen yet belong to the middle.
    """

    hard: float = 0.25
    easy: float = 0.75
    weight: float = 0.2

    def chance(self, reward: float | None) -> float:
        """The probability that an epoch asks for a task of that mean reward."""
        middling = reward is None or self.hard < reward < self.easy
        return min(1.0, 1.0 / self.weight if self.weight else 1.0) if middling else min(1.0, self.weight)


@dataclass(frozen=True, slots=True)
class Course:
    """The tasks of an environment. `ratio` is its share of the groups beside the others'."""

    env: str
    task_ids: Sequence[str]
    ratio: float = 1.0
    pools: Pools | None = None


@dataclass(slots=True)
class _Progress:
    """How far an environment's order has come. `rewards`: the last mean reward of a task, kept for pools only."""

    course: Course
    epoch: int = 0
    position: int = 0
    credit: float = 0.0
    dropped: set[str] = field(default_factory=set)
    rewards: dict[str, float] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)


class Curriculum:
    """The order of all groups of a run. ConfigError for environments of one name or without a task."""

    def __init__(self, courses: Sequence[Course], seed: int = 0) -> None:
        self._seed = seed
        self._number = 0
        self._observed: list[tuple[int, str, str, float]] = []
        self._courses = {course.env: _Progress(course) for course in courses}
        if len(self._courses) < len(courses):
            names = sorted(course.env for course in courses)
            raise ConfigError(
                f"two environments have one name: {', '.join(names)}", hint="Give each a `name` of its own."
            )
        for progress in self._courses.values():
            if not progress.course.task_ids:
                raise ConfigError(f"environment {progress.course.env} has no tasks to train on")
            progress.order = self._order(progress)

    def next(self) -> Ask:
        """The next group: of the environment that is furthest behind its ratio. TrainingError if no task is left."""
        progress = self._turn()
        task_id = self._advance(progress)
        ask = Ask(self._number, progress.course.env, task_id, self._epoch_seed(progress), progress.epoch)
        self._number += 1
        return ask

    def observe(self, ask: Ask, reward: float) -> None:
        """The mean reward of a group that ended. It counts from the next `settle` on."""
        if self._courses[ask.env].course.pools is not None:
            self._observed.append((ask.number, ask.env, ask.task_id, reward))

    def settle(self) -> None:
        """Let the pools know what was observed, in the order of asking: what ended first must not matter."""
        for _, env, task_id, reward in sorted(self._observed):
            self._courses[env].rewards[task_id] = reward
        self._observed.clear()

    def drop(self, ask: Ask) -> None:
        """Never ask for this task again."""
        self._courses[ask.env].dropped.add(ask.task_id)

    def figures(self) -> dict[str, float]:
        """How far each environment is: `epoch/ENV` in epochs, `tasks_dropped/ENV`, sizes of pools."""
        figures: dict[str, float] = {}
        for name, progress in self._courses.items():
            figures[f"epoch/{name}"] = progress.epoch + progress.position / len(progress.course.task_ids)
            if progress.dropped:
                figures[f"tasks_dropped/{name}"] = float(len(progress.dropped))
            if (pools := progress.course.pools) is not None:
                seen = progress.rewards.values()
                figures[f"pools/hard/{name}"] = float(sum(reward <= pools.hard for reward in seen))
                figures[f"pools/easy/{name}"] = float(sum(reward >= pools.easy for reward in seen))
        return figures

    # --- the order --------------------------------------------------------------------------------------------

    def _turn(self) -> _Progress:
        """Smooth weighted round robin: shares hold over every stretch, not only in the long run."""
        open_ones = [one for one in self._courses.values() if len(one.dropped) < len(set(one.course.task_ids))]
        if not open_ones:
            raise TrainingError(
                "every task was declared unfit by its environment, so there is nothing left to train on",
                hint="Look at the errors of the groups counted under groups/invalid_task.",
            )
        for progress in open_ones:
            progress.credit += progress.course.ratio
        chosen = max(open_ones, key=lambda one: one.credit)
        chosen.credit -= sum(one.course.ratio for one in open_ones)
        return chosen

    def _advance(self, progress: _Progress) -> str:
        passed = 0
        while True:
            if progress.position == len(progress.order):
                progress.epoch, progress.position = progress.epoch + 1, 0
                progress.order = self._order(progress)
            task_id = progress.order[progress.position]
            progress.position += 1
            if task_id in progress.dropped:
                continue
            passed += 1
            # Where the pools leave nothing over, an epoch's worth of passing over is enough.
            if passed > len(progress.order) or self._is_chosen(progress, task_id):
                return task_id

    def _is_chosen(self, progress: _Progress, task_id: str) -> bool:
        if progress.course.pools is None:
            return True
        chance = progress.course.pools.chance(progress.rewards.get(task_id))
        return self._random(progress, task_id).random() < chance

    def _order(self, progress: _Progress) -> list[str]:
        order = list(progress.course.task_ids)
        self._random(progress, "order").shuffle(order)
        return order

    def _random(self, progress: _Progress, what: str) -> random.Random:
        return random.Random(f"{self._seed}/{progress.course.env}/{progress.epoch}/{what}")

    def _epoch_seed(self, progress: _Progress) -> int:
        return epoch_seed(self._seed, progress.course.env, progress.epoch)

    # --- going on ---------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON data. It settles."""
        self.settle()
        return {
            "number": self._number,
            "seed": self._seed,
            "courses": {
                name: {
                    "tasks": _fingerprint(one.course.task_ids),
                    "epoch": one.epoch,
                    "position": one.position,
                    "credit": one.credit,
                    "dropped": sorted(one.dropped),
                    "rewards": one.rewards,
                }
                for name, one in self._courses.items()
            },
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`. ResumeError unless environments, tasks and seed are those of the run that saved it."""
        saved: Mapping[str, Any] = state["courses"]
        if state["seed"] != self._seed or set(saved) != set(self._courses):
            raise ResumeError(
                f"the checkpoint is of environments {sorted(saved)} and seed {state['seed']}, "
                f"this run of {sorted(self._courses)} and seed {self._seed}",
                hint="Go on with the configuration that the run began with, or start another run.",
            )
        for name, progress in self._courses.items():
            one = saved[name]
            if one["tasks"] != _fingerprint(progress.course.task_ids):
                raise ResumeError(
                    f"the tasks of environment {name} are not those that the run began with",
                    hint="Install the version of the environment that the checkpoint names.",
                )
            progress.epoch, progress.position, progress.credit = one["epoch"], one["position"], one["credit"]
            progress.dropped, progress.rewards = set(one["dropped"]), dict(one["rewards"])
            progress.order = self._order(progress)
        self._number = state["number"]


def epoch_seed(seed: int, env: str, epoch: int) -> int:
    """The seed of the groups of an environment's epoch: 31 bits."""
    return int(hashlib.sha256(f"{seed}\0{env}\0{epoch}".encode()).hexdigest()[:8], 16) >> 1


def _fingerprint(task_ids: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(task_ids).encode()).hexdigest()[:16]
