"""Groups made by hand, for tests of advantages."""

from collections.abc import Sequence
from typing import Any

from verifiers.train.groups import Group, GroupMember
from verifiers.train.rows import Row
from verifiers.types import Outcome


def row_of(rollout: str, reward: float | None, tokens: int = 2, **changes: Any) -> Row:
    """A row of one context token and a reply of so many tokens, or of the mask that is given."""
    mask = changes.get("mask", [False] + [True] * tokens)
    fields: dict[str, Any] = {
        "tokens": [1] * len(mask),
        "mask": mask,
        "logprobs": [-0.5 if sampled else 0.0 for sampled in mask],
        "versions": [0] * len(mask),
        "reward": reward,
        "rollout_id": rollout,
        "replies": [[0, 1, tokens + 1]],
    }
    return Row(**{**fields, **changes})


def member(number: int, reward: float | None, outcome: Outcome = Outcome.OK, **changes: Any) -> GroupMember:
    """A scored rollout with one row, or with None one that failed."""
    name = f"rollout-{number}"
    if reward is None:
        return GroupMember(name, Outcome.FAILED, error_kind="infrastructure")
    return GroupMember(name, outcome, reward, **{"rows": [row_of(name, reward)], **changes})


def group_of(rewards: Sequence[float | None], **changes: Any) -> Group:
    """A group of rollouts with these rewards; None = failed."""
    members = [member(number, reward) for number, reward in enumerate(rewards)]
    return Group("group", "task", members, **{"env_id": "toy", **changes})


def advantages_of(rows: Sequence[Row]) -> dict[str, float]:
    """The one advantage of each rollout's sampled tokens, by its id."""
    found: dict[str, float] = {}
    for row in rows:
        assert row.advantages is not None and len(row.advantages) == len(row.tokens)
        values = {value for value, sampled in zip(row.advantages, row.mask, strict=True) if sampled}
        assert len(values) == 1
        assert not any(value for value, sampled in zip(row.advantages, row.mask, strict=True) if not sampled)
        assert found.setdefault(row.rollout_id, *values) in values
    return found
