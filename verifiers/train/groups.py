"""The rollouts of one task as a trainer sees them: what each is worth, and the rows that it gave.

    group = group_of(result, MergeOptions(env=…))      # of a RolloutSource's GroupResult
    rows = algorithm(group)                            # advantages filled in: verifiers.train.advantages

Rollouts that failed, were cancelled or could not be scored stay in the group as members, with how they ended, and have
neither reward nor rows: they are counted, and count for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from verifiers.errors import EvidenceError
from verifiers.rollouts.source import GroupResult, Member
from verifiers.train.merge import MergeOptions, MergeReport, rows_of
from verifiers.train.rows import Row
from verifiers.types import Outcome


@dataclass(slots=True)
class GroupMember:
    """One rollout of a group.

    reward: None unless it was scored. rows: none unless it was scored and its token evidence is exact.
    step_rewards: one for each of its turns, where the environment gave them.
    error_kind: why it has no reward, or no rows; error: what the error said.
    """

    rollout_id: str
    outcome: Outcome
    reward: float | None = None
    rows: list[Row] = field(default_factory=list)
    step_rewards: list[float] | None = None
    error_kind: str | None = None
    error: str | None = None

    @property
    def truncated(self) -> bool:
        """Whether a limit ended it."""
        return self.outcome is Outcome.TRUNCATED or any(row.truncated for row in self.rows)


@dataclass(slots=True)
class Group:
    """The rollouts of one task, in order. `version` is of the policy when the group was asked for."""

    group_id: str
    task_id: str
    members: list[GroupMember]
    env_id: str = ""
    seed: int = 0
    version: int = 0
    seconds: float = 0.0
    report: MergeReport = field(default_factory=MergeReport)

    @property
    def valid(self) -> list[GroupMember]:
        """The members that were scored and gave rows: they alone make the baseline. Fewer than two give no
        advantage."""
        return [member for member in self.members if member.reward is not None and member.rows]


Algorithm = Callable[[Group], list[Row]]
"""A group's rows in, with advantages (one a token) filled in. A group without two valid members gives none."""


def group_of(result: GroupResult, options: MergeOptions | None = None) -> Group:
    """The group of a source's result. Evidence that cannot be trained on makes its member one without rows, and says
    so in `error_kind`; it fails nobody else. InexactEvidenceError is for the caller to see in `report`."""
    request = result.request
    options = replace(
        options or MergeOptions(),
        task_id=request.task_id,
        group_id=request.group_id,
        version=request.policy_version,
    )
    report = MergeReport()
    members = [_member(member, options, report) for member in result.members]
    return Group(
        request.group_id,
        request.task_id,
        members,
        request.env_id,
        request.seed,
        request.policy_version,
        result.seconds,
        report,
    )


def _member(member: Member, options: MergeOptions, report: MergeReport) -> GroupMember:
    kind = str(member.error["kind"]) if member.error else None
    if member.record is None or not member.outcome.is_scored:
        report.rollouts += 1
        report.without_rows[str(member.outcome)] += 1
        return GroupMember(member.rollout_id, member.outcome, error_kind=kind, error=_said(member))
    try:
        rows = rows_of(member.record, options, report=report)
    except EvidenceError as error:
        report.refuse(error)
        return GroupMember(member.rollout_id, member.outcome, error_kind=error.kind, error=str(error))
    reward = member.record["reward"]
    return GroupMember(member.rollout_id, member.outcome, reward, rows, _step_rewards(member.record))


def _said(member: Member) -> str | None:
    return f"{member.error['error']}: {member.error['message']}" if member.error else None


def _step_rewards(record: Mapping[str, Any]) -> list[float] | None:
    """The rewards that the environment gave turn by turn; None unless every turn has one.

    Scoring gives turns without a reward that of the whole rollout (the v0 contract): several turns that all have it
    were given none.
    """
    rewards = [step.get("reward") for step in record.get("trajectory") or ()]
    if not rewards or any(reward is None for reward in rewards):
        return None
    if len(rewards) > 1 and record["reward"] and set(rewards) == {record["reward"]}:
        return None
    return [float(reward) for reward in rewards if reward is not None]
