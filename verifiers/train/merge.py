"""The turns of a rollout become training rows: observe, then merge.

    rows = rows_of(record)                                          # one rollout; raises where evidence is missing
    collected = collect(records, MergeOptions(env=EnvRef("me/my-env", "1.0.0")))
    collected.rows, collected.report.metrics()                      # many; what gave no rows is counted by cause

A turn extends a row exactly if its prompt ids start with all ids of that row; otherwise it starts a new row. Nothing
is compared as text and nothing is tokenised again, so this is right for every model and whatever an environment or a
template does to the context: pruning, compaction, stripped thinking, other token boundaries. What a turn's prompt
repeats of earlier replies is context there, so each sampled token is trainable once: in the turn that sampled it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from verifiers.errors import EvidenceError, InexactEvidenceError
from verifiers.rollouts.records import outcome_of
from verifiers.train.evidence import RANKS, Checks, Turn, check_text, check_turn, require, turns_of
from verifiers.train.rows import EnvRef, Row, check_row
from verifiers.types import Outcome, SamplingArgs, State, message_text

Break = Literal["branch", "context", "stop_token", "thinking", "tool_calls", "retokenised", "template"]
"""Why a turn did not extend a row.

branch: its prompt continues an earlier end that another turn continued before. context: the environment pruned,
compacted or changed the conversation, or began another one. The others: the conversation was only continued, but the
template rendered its past in another way; the ids part at the last token of a reply (`stop_token`), inside a reply with
thinking or with tool calls, inside another reply (`retokenised`), or inside what no reply held (`template`).
"""

TRAINED = frozenset({Outcome.OK, Outcome.TRUNCATED, Outcome.UNSCORED})
"""Outcomes that give rows. A failed rollout has no reward and must not lower anybody's baseline."""


@dataclass(frozen=True, slots=True)
class MergeOptions:
    """What the rows are to say beside their tokens, and what evidence is accepted.

    accept: the weakest label that may be trained on. "exact" is the only right one for policy gradients.
    version: the policy's, where the evidence names none.
    task_id, group_id: taken from the rollout if empty: a saved record knows its task, a live state only its
    `example_id`; the group is the task.
    """

    accept: Literal["exact", "rendered"] = "exact"
    env: EnvRef = field(default_factory=EnvRef)
    sampling: SamplingArgs | None = None
    version: int = 0
    task_id: str = ""
    group_id: str = ""
    checks: Checks = field(default_factory=Checks)


@dataclass(slots=True)
class MergeReport:
    """Counts over the rollouts that were merged.

    `without_rows` counts rollouts by why they gave none: an outcome, or "inexact", "invalid", "empty".
    """

    rollouts: int = 0
    rows: int = 0
    turns: int = 0
    extended: int = 0
    overlong_turns: int = 0
    truncated_rows: int = 0
    tokens: int = 0
    trainable: int = 0
    duplicated: int = 0
    breaks: Counter[str] = field(default_factory=Counter)
    without_rows: Counter[str] = field(default_factory=Counter)

    def add(self, other: MergeReport) -> None:
        """Count what another one counted, too."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.breaks.update(other.breaks)
        self.without_rows.update(other.without_rows)

    def refuse(self, error: EvidenceError) -> None:
        """Count a rollout that gave no rows for its evidence."""
        self.rollouts += 1
        self.without_rows["inexact" if isinstance(error, InexactEvidenceError) else "invalid"] += 1

    def metrics(self) -> dict[str, float]:
        """The counts as figures to log. Shares of nothing are left out."""
        figures = {f"rows/breaks/{cause}": float(count) for cause, count in sorted(self.breaks.items())}
        figures |= {f"rows/none/{why}": float(count) for why, count in sorted(self.without_rows.items())}
        shares = {
            "rows/per_rollout": (self.rows, self.rollouts - self.without_rows.total()),
            "rows/break_rate": (self.breaks.total(), self.breaks.total() + self.extended),
            "rows/duplicate_context": (self.duplicated, self.tokens),
            "rows/masked": (self.tokens - self.trainable, self.tokens),
            "rows/truncated": (self.truncated_rows, self.rows),
            "rows/overlong_turns": (self.overlong_turns, self.turns),
        }
        return figures | {name: part / whole for name, (part, whole) in shares.items() if whole}


_NUMBERS = [item.name for item in fields(MergeReport) if item.type == "int"]


@dataclass(slots=True)
class _Draft:
    """A row in the making. `ends[i]` is its length after its i-th turn; `sampled` is how many tokens the mask holds."""

    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    sampled: int = 0

    def add(self, turn: Turn) -> None:
        context = turn.prompt_ids[len(self.tokens) :]
        sampled = len(turn.completion_ids)
        self.tokens += context + turn.completion_ids
        self.mask += [False] * len(context) + [True] * sampled
        self.logprobs += [0.0] * len(context) + (turn.logprobs or [math.nan] * sampled)
        self.versions += [turn.versions[0]] * len(context) + turn.versions
        self.turns.append(turn)
        self.ends.append(len(self.tokens))
        self.sampled += sampled


def rows_of(
    rollout: Mapping[str, Any], options: MergeOptions | None = None, *, report: MergeReport | None = None
) -> list[Row]:
    """The rows of one rollout, a live state or a saved record, in the order of their first turns.

    [] for a rollout that failed, was cancelled, had an unfit task, or sampled nothing. Raises InexactEvidenceError for
    a turn whose evidence is not what `options.accept` asks for, EvidenceError for evidence that contradicts itself.
    `report` is counted up, unless this raises.
    """
    options = options or MergeOptions()
    report = report if report is not None else MergeReport()
    outcome = _outcome(rollout)
    if outcome not in TRAINED:
        report.rollouts += 1
        report.without_rows[str(outcome)] += 1
        return []
    turns = turns_of(rollout, options.version)
    kept = [turn for turn in turns if not turn.overlong]
    rollout_id = str(rollout.get("rollout_id") or rollout.get("trajectory_id") or "")
    for turn in kept:
        require(turn, options.accept)
    drafts, breaks = merge(kept)
    for draft in drafts:
        for turn, seen in zip(draft.turns, [0, *draft.ends], strict=False):
            check_turn(turn, options.checks, seen)
            check_text(turn, options.checks, rollout_id)
    rows = _rows(drafts, rollout, rollout_id, options)
    for row in rows:
        check_row(row, tokens=False)
    _count(report, turns, drafts, breaks)
    return rows


def merge(turns: Iterable[Turn]) -> tuple[list[_Draft], list[Break]]:
    """Turns with ids as drafts of rows, and why each draft but the first was begun."""
    drafts: list[_Draft] = []
    breaks: list[Break] = []
    for turn in turns:
        fitting = [draft for draft in drafts if turn.prompt_ids[: len(draft.tokens)] == draft.tokens]
        if fitting:
            max(fitting, key=lambda draft: len(draft.tokens)).add(turn)
            continue
        if drafts:
            breaks.append(_cause(turn, drafts))
        drafts.append(_Draft())
        drafts[-1].add(turn)
    return drafts, breaks


@dataclass(slots=True)
class Collected:
    """The rows of many rollouts, and the counts of what became rows and what did not."""

    rows: list[Row] = field(default_factory=list)
    report: MergeReport = field(default_factory=MergeReport)
    errors: list[EvidenceError] = field(default_factory=list)
    """The errors of the rollouts that were left out for their evidence."""


def collect(rollouts: Iterable[Mapping[str, Any]], options: MergeOptions | None = None) -> Collected:
    """The rows of many rollouts. One with unusable evidence is left out and counted, so it fails nobody else.

    Raises the first InexactEvidenceError if no rollout gave a row and evidence was refused: then it is a matter of
    settings, not of one rollout.
    """
    collected = Collected()
    report = collected.report
    for rollout in rollouts:
        try:
            collected.rows += rows_of(rollout, options, report=report)
        except EvidenceError as error:
            report.refuse(error)
            collected.errors.append(error)
    if not collected.rows and report.without_rows["inexact"]:
        raise next(error for error in collected.errors if isinstance(error, InexactEvidenceError))
    return collected


# --- rows -----------------------------------------------------------------------------------------------------


def _rows(
    drafts: list[_Draft], rollout: Mapping[str, Any], rollout_id: str, options: MergeOptions
) -> list[Row]:
    total = sum([draft.sampled for draft in drafts])
    task_id = options.task_id or str(rollout.get("task_id") or rollout.get("example_id", ""))
    reward = rollout.get("reward")
    sampling = options.sampling if options.sampling is not None else rollout.get("sampling_args") or {}
    metrics = {
        name: float(value) for name, value in (rollout.get("metrics") or {}).items() if value is not None
    }
    return [
        Row(
            tokens=draft.tokens,
            mask=draft.mask,
            logprobs=draft.logprobs,
            versions=draft.versions,
            reward=None if reward is None else float(reward),
            weight=draft.sampled / total,
            metrics=dict(metrics),
            stop_reason=str(rollout.get("stop_condition") or ""),
            error_kind=_error_kind(rollout),
            truncated=any(turn.truncated for turn in draft.turns),
            exactness=min((turn.exactness for turn in draft.turns), key=RANKS.__getitem__),
            rollout_id=rollout_id,
            group_id=options.group_id or task_id,
            task_id=task_id,
            sampling=dict(sampling),
            env=options.env,
            routed_experts=_routes(draft.turns),
            replies=[
                [turn.number, end - len(turn.completion_ids), end]
                for turn, end in zip(draft.turns, draft.ends, strict=True)
            ],
        )
        for draft in drafts
    ]


def _outcome(rollout: Mapping[str, Any]) -> Outcome:
    if isinstance(rollout, State):
        return outcome_of(rollout)
    if (saved := rollout.get("outcome")) is not None:
        return Outcome(saved)
    if rollout.get("error") is not None:  # records of v0 have no outcome
        return Outcome.FAILED
    return Outcome.UNSCORED if rollout.get("reward") is None else Outcome.OK


def _error_kind(rollout: Mapping[str, Any]) -> str | None:
    """The kind of the error that left the rollout unscored: its own, or that of the first reward that failed."""
    if rollout.get("reward") is not None:
        return None
    for error in (rollout.get("error"), *(rollout.get("scoring_errors") or {}).values()):
        if error is not None:
            return str(error["kind"] if isinstance(error, Mapping) else getattr(error, "kind", "internal"))
    return None


def _routes(turns: list[Turn]) -> list[Any] | None:
    routes = [turn.routed_experts for turn in turns]
    return routes if all(route is not None for route in routes) else None


# --- causes and counts ----------------------------------------------------------------------------------------


def _cause(turn: Turn, drafts: list[_Draft]) -> Break:
    """Why `turn` extends none of the drafts, judged by the one it has most in common with."""
    common, draft = max(
        ((common_prefix(draft.tokens, turn.prompt_ids), draft) for draft in reversed(drafts)),
        key=lambda pair: pair[0],
    )
    if common in draft.ends or common == len(turn.prompt_ids):
        return "branch"
    parted = next(number for number, end in enumerate(draft.ends) if common < end)
    past = draft.turns[parted]
    if not _continues(turn, past):
        return "context"
    begin = draft.ends[parted] - len(past.completion_ids)
    if common < begin:
        return "template"
    if common == draft.ends[parted] - 1:
        return "stop_token"
    return _kind_of_reply(past)


def _continues(turn: Turn, past: Turn) -> bool:
    """Whether the messages of `turn`'s prompt only continue those of `past`."""
    conversation = past.conversation
    if conversation is None or turn.prompt is None:
        return True  # nothing is known against it
    if isinstance(turn.prompt, str):
        return turn.prompt.startswith(str(conversation))
    return list(turn.prompt[: len(conversation)]) == list(conversation)


def _kind_of_reply(turn: Turn) -> Break:
    messages = turn.completion if isinstance(turn.completion, list) else []
    if any(message.get("reasoning_content") or "</think>" in message_text(message) for message in messages):
        return "thinking"
    return "tool_calls" if any(message.get("tool_calls") for message in messages) else "retokenised"


def common_prefix(left: list[int], right: list[int]) -> int:
    """How many ids both begin with."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    return next(index for index in range(shorter) if left[index] != right[index])


def _count(report: MergeReport, turns: list[Turn], drafts: list[_Draft], breaks: list[Break]) -> None:
    report.rollouts += 1
    if not drafts:
        report.without_rows["empty"] += 1
    report.rows += len(drafts)
    report.turns += len(turns)
    report.overlong_turns += sum([turn.overlong for turn in turns])
    if breaks:
        report.breaks.update(breaks)
    for number, draft in enumerate(drafts):
        report.extended += len(draft.turns) - 1
        report.tokens += len(draft.tokens)
        report.trainable += draft.sampled
        report.truncated_rows += any(turn.truncated for turn in draft.turns)
        context = draft.turns[0].prompt_ids
        report.duplicated += max((common_prefix(past.tokens, context) for past in drafts[:number]), default=0)
