"""What each rollout of a group was worth beside the others: rewards in, advantages in the rows. No torch.

    algorithm = make_algorithm(config.advantage, max_tokens=config.sampling.max_tokens)
    rows = algorithm(group)                 # copies with advantages; [] for a group with fewer than two valid members
    if has_signal(rows): …                  # otherwise nothing in them moves the policy

Members that failed or could not be scored are not in the baseline: the rewards 1, 2, 3 and a failure have the mean 2.
Truncation is what the record says, never guessed from the last token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from verifiers.errors import ConfigError, EvidenceError
from verifiers.train.config import AdvantageConfig
from verifiers.train.config_unread import check_section
from verifiers.train.groups import Algorithm, Group, GroupMember
from verifiers.train.rows import Row
from verifiers.train.tally import Tally


def make_algorithm(config: AdvantageConfig, max_tokens: int | None = None) -> Algorithm:
    """The algorithm of these settings. `max_tokens`: limit of a reply, below which the soft zone lies.

    ConfigError for settings that contradict each other. The result of `kind="rae"` has a state: see `Rae`.
    """
    check_advantages(config, max_tokens)
    if config.kind == "rae":
        return Rae(config, max_tokens)
    return GroupBaseline(config, max_tokens)


def check_advantages(config: AdvantageConfig, max_tokens: int | None = None) -> None:
    """Raise ConfigError for settings that contradict each other or would have no effect."""
    check_section(config, "advantage")
    shaped = [name for name in ("length_penalty", "overlong_soft_tokens") if getattr(config, name)]
    if config.step_rewards and config.kind not in ("mean", "leave_one_out"):
        raise ConfigError(
            f"advantage.step_rewards does not go with advantage.kind = {config.kind!r}",
            hint="Its baseline is of whole rollouts: set advantage.kind to 'mean' or 'leave_one_out'.",
        )
    if config.step_rewards and shaped:
        raise ConfigError(
            f"advantage.{shaped[0]} changes the reward of a rollout, and advantage.step_rewards does not read that",
            hint="Leave one of them out.",
        )
    if config.overlong_soft_tokens and (max_tokens is None or config.overlong_soft_tokens > max_tokens):
        limit = "no token limit is known" if max_tokens is None else f"the limit is {max_tokens} tokens"
        raise ConfigError(
            f"advantage.overlong_soft_tokens = {config.overlong_soft_tokens} has no place below it: {limit}",
            hint="Set sampling.max_tokens above advantage.overlong_soft_tokens.",
        )


def has_signal(rows: Iterable[Row]) -> bool:
    """Whether a token among these rows has an advantage: rows of a group without one only cost time (DAPO)."""
    return any(any(row.advantages) for row in rows if row.advantages is not None)


# --- from values to advantages: pure functions of the rewards of one group ------------------------------------------


def mean_baseline(rewards: Sequence[float]) -> list[float]:
    """R − mean (Dr.GRPO, arXiv 2503.20783). Sums to 0; exactly 0 throughout if the rewards are equal."""
    mean = _mean(rewards)
    return [reward - mean for reward in rewards]


def standardised(rewards: Sequence[float], eps: float) -> list[float]:
    """(R − mean) / (std + eps) with the sample's std (n − 1): GRPO, arXiv 2402.03300, as TRL and verl have it."""
    std = _std(rewards)
    return [value / (std + eps) for value in mean_baseline(rewards)]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """R − mean of the others, n/(n − 1) times R − mean: an unbiased baseline (RLOO, arXiv 2402.14740)."""
    scale = len(rewards) / (len(rewards) - 1)
    return [scale * value for value in mean_baseline(rewards)]


def max_rl(rewards: Sequence[float]) -> list[float]:
    """(R − mean) / mean, for rewards of at least 0: weighs a task by 1/pass rate (MaxRL, arXiv 2602.02710).

    0 if all are 0. ConfigError for a negative reward, which would turn the sign of the advantages.
    """
    if min(rewards) < 0:
        raise ConfigError(
            f"advantage.kind = 'max_rl' divides by the mean reward, and a reward is {min(rewards):g}",
            hint="Use it with rewards of at least 0, or set advantage.kind to 'mean'.",
        )
    mean = _mean(rewards)
    return [value / mean if mean else 0.0 for value in mean_baseline(rewards)]


# --- groups -------------------------------------------------------------------------------------------------------


@dataclass
class GroupBaseline:
    """Advantages from the rewards of the group alone."""

    config: AdvantageConfig
    max_tokens: int | None = None

    def __call__(self, group: Group) -> list[Row]:
        """The group's rows with advantages, those that `overlong` leaves out excepted."""
        members = self.valid(group)
        if len(members) < 2:
            return []
        if self.config.step_rewards:
            return self._of_turns(group, members)
        return self._rows(members, self.values([self.reward(member, members) for member in members], group))

    def valid(self, group: Group) -> list[GroupMember]:
        """The members in the baseline."""
        drop = self.config.overlong == "drop"
        return [member for member in group.valid if not (drop and member.truncated)]

    def values(self, rewards: Sequence[float], group: Group) -> list[float]:
        """One advantage a reward."""
        if self.config.std:
            return standardised(rewards, self.config.std_eps)
        kinds: dict[str, Callable[[Sequence[float]], list[float]]] = {
            "mean": mean_baseline,
            "leave_one_out": leave_one_out,
            "max_rl": max_rl,
        }
        return kinds[self.config.kind](rewards)

    def reward(self, member: GroupMember, members: Sequence[GroupMember]) -> float:
        """The member's reward, less what its length costs."""
        reward = _reward(member)
        if self.config.length_penalty:
            longest = max(map(_tokens, members))
            mean = max(0.0, _mean([_reward(other) for other in members]))
            reward -= self.config.length_penalty * mean * _tokens(member) / longest
        if self.config.overlong_soft_tokens and self.max_tokens is not None:
            reward -= soft_overlong(_longest_reply(member), self.max_tokens, self.config.overlong_soft_tokens)
        return reward

    def trained(self, member: GroupMember) -> bool:
        """Whether the member's rows are in the loss."""
        return self.config.overlong == "keep" or not member.truncated

    def _rows(self, members: Sequence[GroupMember], values: Sequence[float]) -> list[Row]:
        pairs = zip(members, values, strict=True)
        return [
            row.with_advantages(list(map((0.0, value).__getitem__, row.mask)))
            for member, value in pairs
            if self.trained(member)
            for row in member.rows
        ]

    def _of_turns(self, group: Group, members: Sequence[GroupMember]) -> list[Row]:
        """Each turn's return from it on, less the mean return of all members at that turn.

        A member that had ended by then counts as the 0 that it still earned. A mean over those that were still
        playing would be biased: the policy decides when to stop (verl-project/verl#7244).
        """
        members = [member for member in members if member.step_rewards is not None]
        if len(members) < 2:
            if any(member.step_rewards is not None for member in group.valid):
                return []
            raise ConfigError(
                f"advantage.step_rewards is set, and the environment {group.env_id!r} gives its turns no rewards",
                hint="Let the environment set step['reward'] for every turn, or leave advantage.step_rewards out.",
            )
        returns = [discounted(member.step_rewards or [], self.config.step_discount) for member in members]
        turns = max(map(len, returns))
        by_turn = [
            self.values([own[turn] if turn < len(own) else 0.0 for own in returns], group) for turn in range(turns)
        ]
        return [
            row.with_advantages(_spread(row, [values[number] for values in by_turn]))
            for number, member in enumerate(members)
            if self.trained(member)
            for row in member.rows
        ]


class Rae(GroupBaseline):
    """Against a running mean for each environment instead of the group's (RAE, SPIRAL, arXiv 2506.24119, section 3.3).

    A = R − b, then b moves as if the group's mean reward had come once for each member: b ← decay·b + (1 − decay)·mean.
    The baseline is that from before the group, as in the paper's code: so it is unbiased, and the order of the
    members does not matter. `baselines` is the state: a run that goes on has to restore it. Groups with one reward
    throughout have a signal here.
    """

    def __init__(self, config: AdvantageConfig, max_tokens: int | None = None) -> None:
        """Every baseline begins at 0."""
        super().__init__(config, max_tokens)
        self.baselines: dict[str, float] = {}

    def values(self, rewards: Sequence[float], group: Group) -> list[float]:
        """One advantage a reward; moves the environment's baseline."""
        baseline = self.baselines.get(group.env_id, 0.0)
        kept = self.config.rae_decay ** len(rewards)
        self.baselines[group.env_id] = kept * baseline + (1 - kept) * _mean(rewards)
        return [reward - baseline for reward in rewards]


# --- lengths, returns ---------------------------------------------------------------------------------------------


def soft_overlong(tokens: int, limit: int, zone: int) -> float:
    """What a reply of that length loses: 0 up to limit − zone, rising to 1 at the limit (arXiv 2503.14476, 3.4)."""
    return min(1.0, max(0.0, (tokens - (limit - zone)) / zone))


def discounted(rewards: Sequence[float], discount: float) -> list[float]:
    """The return of each turn: its reward, and those of later turns discounted once a turn."""
    returns, later = [], 0.0
    for reward in reversed(rewards):
        later = reward + discount * later
        returns.append(later)
    return returns[::-1]


def _mean(values: Sequence[float]) -> float:
    """Exact where all values are one: then no difference from it is noise."""
    return values[0] if min(values) == max(values) else math.fsum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    """Of a sample: n − 1."""
    return math.sqrt(math.fsum(value * value for value in mean_baseline(values)) / (len(values) - 1))


def _reward(member: GroupMember) -> float:
    assert member.reward is not None
    return member.reward


def _tokens(member: GroupMember) -> int:
    return sum(row.trainable for row in member.rows)


def _longest_reply(member: GroupMember) -> int:
    return max(end - begin for row in member.rows for _, begin, end in _replies(row))


def _replies(row: Row) -> list[list[int]]:
    if not row.replies:
        raise EvidenceError(
            f"a row of rollout {row.rollout_id or '(unnamed)'} does not say where its replies are",
            hint="Make rows with rows_of, or fill in Row.replies.",
        )
    return row.replies


def _spread(row: Row, values: Sequence[float]) -> list[float]:
    advantages = [0.0] * len(row.tokens)
    for turn, begin, end in _replies(row):
        advantages[begin:end] = [values[turn]] * (end - begin)
    return advantages


# --- figures ------------------------------------------------------------------------------------------------------


def tally_group(group: Group, rows: Sequence[Row]) -> Tally:
    """The figures of one group and of the rows that the algorithm made of it; tallies of groups add up.

    groups/few: share of groups with fewer than two valid members. groups/zero_std: share of the others in which all
    rewards are one. groups/signal: share of groups with an advantage. rollouts/truncated and rollouts/valid: shares
    of members, the former of valid ones. advantage/*: of rollouts in the loss.
    """
    tally = Tally()
    rewards = [_reward(member) for member in group.valid]
    few = len(rewards) < 2
    tally.mean("groups/few", [float(few)])
    tally.mean("groups/zero_std", [] if few else [float(min(rewards) == max(rewards))])
    tally.mean("groups/signal", [float(has_signal(rows))])
    tally.mean("rollouts/valid", [1.0] * len(rewards) + [0.0] * (len(group.members) - len(rewards)))
    tally.mean("rollouts/truncated", [float(member.truncated) for member in group.valid])
    tally.mean("reward/mean", rewards)
    tally.mean("reward/std", [] if few else [_std(rewards)])
    own = list({row.rollout_id: _of_row(row) for row in rows}.values())
    tally.mean("advantage/mean", own)
    tally.mean("advantage/abs", [abs(value) for value in own])
    tally.maxima["advantage/abs"] = max((abs(value) for value in own), default=-math.inf)
    return tally


def _of_row(row: Row) -> float:
    """The mean advantage of a row's trainable tokens."""
    return math.fsum(row.advantages or ()) / row.trainable
