"""What TRL takes of a rollout: one row a prompt, as ids of prompt and completion, with a mask and a reward. No torch.

Whatever a rollout became has a place in the batch, since TRL counts: one that failed, was cancelled or could not be
scored becomes a row without a reward, of which nothing is trained. TRL (1.16) leaves it out of the group's baseline,
and its mask leaves it out of the loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from verifiers.errors import ConfigError
from verifiers.train.groups import Group, GroupMember
from verifiers.train.rows import Row

Forks = Literal["most", "refuse"]
"""Of a rollout of several rows: train the one with the most sampled tokens and count the others, or refuse it."""

REWARD = "environment_reward"
"""The column of rewards, as reward functions are given it."""


@dataclass(slots=True)
class Batch:
    """The columns of a batch, and what is counted beside them."""

    prompt_ids: list[list[int]] = field(default_factory=list)
    completion_ids: list[list[int]] = field(default_factory=list)
    logprobs: list[list[float]] = field(default_factory=list)
    env_mask: list[list[int]] = field(default_factory=list)
    rewards: list[float | None] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    metrics: dict[str, list[float]] = field(default_factory=dict)

    def columns(self) -> dict[str, Any]:
        """What `rollout_func` returns."""
        return {
            "prompt_ids": self.prompt_ids,
            "completion_ids": self.completion_ids,
            "logprobs": self.logprobs,
            "env_mask": self.env_mask,
            REWARD: self.rewards,
        }

    def add(self, group: Group, *, filler: int, forks: Forks, mask_truncated: bool) -> None:
        """The members of a group in order. `filler`: an id that ends replies, for rollouts without rows."""
        for member in group.members:
            self.counts["rollouts"] += 1
            self._note(member)
            if member.reward is None or not member.rows:
                self.counts[_why(member)] += 1
                self._append([filler], [filler], [0.0], [0], None)
                continue
            row = self._one_of(member, forks)
            begin = row.mask.index(True)
            end = len(row.mask) - row.mask[::-1].index(True)  # what the environment said last trains nothing
            sampled = [int(flag) for flag in row.mask[begin:end]]
            if member.truncated:
                self.counts["truncated"] += 1
                sampled = [0] * len(sampled) if mask_truncated else sampled
            self._append(
                row.tokens[:begin], row.tokens[begin:end], row.logprobs[begin:end], sampled, member.reward
            )

    def figures(self) -> dict[str, float]:
        """Shares of rollouts by how they ended, and the means of the environment's metrics."""
        total = self.counts["rollouts"]
        shares = {f"environment/{name}": count / total for name, count in self.counts.items() if name != "rollouts"}
        means = {f"environment/{name}": sum(values) / len(values) for name, values in self.metrics.items()}
        return {**means, **shares}

    def _append(
        self,
        prompt: Sequence[int],
        completion: Sequence[int],
        logprobs: Sequence[float],
        mask: Sequence[int],
        reward: float | None,
    ) -> None:
        self.prompt_ids.append(list(prompt))
        self.completion_ids.append(list(completion))
        self.logprobs.append(list(logprobs))
        self.env_mask.append(list(mask))
        self.rewards.append(reward)

    def _note(self, member: GroupMember) -> None:
        for name, value in (member.rows[0].metrics if member.rows else {}).items():
            self.metrics.setdefault(name, []).append(value)

    def _one_of(self, member: GroupMember, forks: Forks) -> Row:
        if len(member.rows) == 1:
            return member.rows[0]
        if forks == "refuse":
            raise ConfigError(
                f"rollout {member.rollout_id[:8]} gave {len(member.rows)} rows, and TRL takes one for each prompt",
                hint='forks="most" trains the one with the most sampled tokens; vf-train trains them all.',
            )
        chosen = max(member.rows, key=lambda row: row.trainable)
        self.counts["forked"] += 1
        self.counts["rows_left_out"] += len(member.rows) - 1
        self.counts["tokens_left_out"] += sum(row.trainable for row in member.rows) - chosen.trainable
        return chosen


def _why(member: GroupMember) -> str:
    """How a rollout without a trained row is counted."""
    return "no_evidence" if member.outcome.is_scored else str(member.outcome)


def only_untrained(groups: Iterable[Group]) -> bool:
    """Whether no rollout of these groups can be trained."""
    return not any(group.valid for group in groups)
