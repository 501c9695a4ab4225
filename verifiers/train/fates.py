"""What became of groups, and what it means when many in a row gave nothing to train on.

    streak.add(fate, group)
    if streak.count >= limit:
        why = streak.mastered()      # the model solves everything that came: the end, if `covers` says it was of all
        raise streak.error()         # or what is wrong, and what to do about it
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Set
from enum import StrEnum

from verifiers.errors import NothingToTrainError
from verifiers.train.groups import Group
from verifiers.types import Outcome

SOLVED = 1 - 1e-6
"""A rollout that earns this has solved its task: rewards are shares, and sums of weights may round down. Where an
environment's rewards go above 1, the best that one of its rollouts has earned counts instead."""

PLAY_IT = "Play the environment with vf-eval and look at the errors; loop.max_empty_batches is the limit."

HINTS = {
    "usage": "The sampler refuses what it is asked for: look at [sampling].",
    "model": "The policy can not be asked like that. Base models have no chat template: fine-tune one first (vf-sft), "
    "or let the environment complete texts (message_type).",
    "infrastructure": "The sampler fails, and log.txt has how. If an update broke the weights, lower trainer.lr, and "
    "go on from a checkpoint before it.",
    "limit": "Prompts have to fit into sampler.max_context with their reply, and groups to end within "
    "loop.straggler_seconds.",
}
"""What to do about groups that give nothing, by the kind of most of their errors; otherwise `PLAY_IT`."""

ALIKE = (
    "Every rollout of a group earns the same: take tasks that the model solves sometimes, larger groups "
    "(loop.group_size), or a model that has been fine-tuned on the format first (vf-sft)."
)
EASY = "The model solves every task: take harder ones, or use it as it is."
CUT_OFF = (
    "Every reply was cut off, and advantage.overlong leaves such rollouts out of the loss: raise sampling.max_tokens, "
    "or take advantage.overlong=keep."
)
"""What to do about groups that are scored, and of which nothing is trained."""


class Fate(StrEnum):
    """What became of a group. Figures count them as `groups/FATE`."""

    TRAINED = "trained"
    """It was in a batch."""
    STALE = "stale"
    """Every row of it was more than `max_lag` versions old when a batch was cut."""
    NO_SIGNAL = "no_signal"
    """All advantages are 0: its rollouts were equally good."""
    NO_ROWS = "no_rows"
    """Enough rollouts were scored, and the algorithm left none of them over (all too long, say)."""
    TOO_FEW_VALID = "too_few_valid"
    """Fewer than two rollouts were scored; the others ended in different ways."""
    FAILED = "failed"
    UNSCORED = "unscored"
    CANCELLED = "cancelled"
    """Fewer than two were scored, and all others failed, could not be scored, or were cut off, by the deadline of
    stragglers or because they had become too old."""
    INVALID_TASK = "invalid_task"
    """The environment declared the task unfit; it is not asked for again."""
    NO_EVIDENCE = "no_evidence"
    """Rollouts were scored, and fewer than two had token evidence that can be trained on."""


class Streak:
    """The groups since the last one that gave something to train on."""

    def __init__(self) -> None:
        self._best: dict[str, float] = {}
        self.end()

    def end(self) -> None:
        """A group gave something."""
        self.fates: Counter[Fate] = Counter()
        self._judged = 0
        """Of how many most rollouts were scored, and earned the same."""
        self._least: dict[str, float] = {}
        """What the worst rollout of those has earned, by environment."""
        self._alike: list[float] = []
        self._errors: Counter[str] = Counter()
        self._last_error: str | None = None

    @property
    def count(self) -> int:
        """How many groups it has."""
        return self.fates.total()

    def see(self, group: Group) -> None:
        """Any group: the best reward of its environment is what solving a task there earns."""
        best = max((member.reward or 0.0 for member in group.valid), default=0.0)
        self._best[group.env_id] = max(best, self._best.get(group.env_id, SOLVED))

    def add(self, fate: Fate, group: Group) -> None:
        """One that gave nothing."""
        self.fates[fate] += 1
        if fate is Fate.NO_SIGNAL:
            rewards = [member.reward for member in group.valid if member.reward is not None]
            self._alike += rewards
            # Rollouts that failed say nothing about the model; but most have to have been scored.
            self._judged += 2 * len(rewards) > len(group.members)
            self._least[group.env_id] = min(*rewards, self._least.get(group.env_id, math.inf))
        self._errors.update(member.error_kind for member in group.members if member.error_kind)
        said = [member.error for member in group.members if member.error]
        self._last_error = said[-1] if said else self._last_error

    def mastered(self) -> str:
        """Why there is nothing left to learn: every one of the groups was solved by all its rollouts. Empty if not."""
        solved = all(least >= self._best[env] - 1e-6 for env, least in self._least.items())
        if not solved or self._judged < self.count:
            return ""
        return f"in {self.count} groups in a row every rollout solved its task (mean reward {self._mean:.3f})"

    def covers(self, environments: Set[str]) -> bool:
        """Whether it has a group of each of them."""
        return environments <= self._least.keys()

    def error(self) -> NothingToTrainError:
        """What to tell whoever waits for something to train on."""
        return NothingToTrainError(
            f"{self.count} groups in a row gave nothing to train on: {self._causes()}", hint=self._hint()
        )

    @property
    def _mean(self) -> float:
        return sum(self._alike) / len(self._alike)

    def _causes(self) -> str:
        causes = ", ".join(f"{count} {fate}" for fate, count in self.fates.most_common())
        if self._alike:
            causes += f" (mean reward {self._mean:.3f})"
        errors = ", ".join(f"{kind} ({count})" for kind, count in self._errors.most_common(3))
        return f"{causes}; errors of their rollouts: {errors}, the last: {self._last_error}" if errors else causes

    def _hint(self) -> str:
        if self.mastered():
            return EASY
        most = self.fates.most_common(1)[0][0]
        if most in (Fate.NO_SIGNAL, Fate.NO_ROWS):
            return ALIKE if most is Fate.NO_SIGNAL else CUT_OFF
        common = self._errors.most_common(1)
        return HINTS.get(common[0][0] if common else "", PLAY_IT)


def fate_without_rows(group: Group) -> Fate | None:
    """Why a group has no two valid members; None if it has."""
    outcomes = Counter(member.outcome for member in group.members)
    if outcomes[Outcome.INVALID_TASK]:
        return Fate.INVALID_TASK
    if len(group.valid) >= 2:
        return None
    if sum(member.outcome.is_scored for member in group.members) >= 2:
        return Fate.NO_EVIDENCE
    ends = [outcome for outcome in outcomes if not outcome.is_scored]
    return Fate(str(ends[0])) if len(ends) == 1 else Fate.TOO_FEW_VALID
