"""`Row`: one sequence that a trainer can learn from, and what every row guarantees.

    rows = rows_of(record)                 # verifiers.train.merge: the turns of a rollout become 1..k rows
    line = row_to_dict(rows[0])            # JSON, and back: row_from_dict(line)

Guarantees, checked by `check_row`: the four arrays (and `advantages`, once filled in) have one length; `mask` is true
only on tokens that the policy sampled, of which there is at least one; wherever `mask` is true the logprob of an exact
row is a finite number of at most 0; `reward` is None or finite. Over the rows of a rollout every sampled token is
trainable exactly once and the weights sum to 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import compress
from operator import attrgetter, itemgetter
from typing import Any

from verifiers.errors import EvidenceError
from verifiers.types import Exactness, SamplingArgs

LARGEST_LOGPROB = 1e-4
"""Engines compute in half precision: the logprob of a certain token may come out a little above 0."""


@dataclass(frozen=True, slots=True)
class EnvRef:
    """Which exact environment a row comes from: `owner/name`, version, and digest of its bits, None where unknown.

    `EnvRef(**environment_ref("my-env"))` (`verifiers.envs.provenance`) names a loaded one.
    """

    name: str = ""
    version: str | None = None
    digest: str | None = None


@dataclass(slots=True)
class Row:
    """One trainable sequence; a rollout gives 1..k of them. Arrays have length T."""

    tokens: list[int]
    """Exactly what the engine saw and sampled."""
    mask: list[bool]
    """True on the tokens that the policy sampled and this row may train."""
    logprobs: list[float]
    """Of the policy that sampled the token; 0 where `mask` is false, NaN where the engine reported none."""
    versions: list[int]
    """Version of the policy that produced the token; for context, of the turn that brought it."""
    reward: float | None
    """Of the rollout; None = unscored, never 0."""
    weight: float = 1.0
    """Share of the rollout's trainable tokens, so that k rows do not count k times."""
    advantages: list[float] | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    stop_reason: str = ""
    """The stop condition that ended the rollout."""
    error_kind: str | None = None
    """Why the rollout is unscored, None if it is scored."""
    truncated: bool = False
    """A token or length limit cut a reply of this row."""
    exactness: Exactness = "exact"
    """The weakest label of the row's turns."""
    rollout_id: str = ""
    group_id: str = ""
    task_id: str = ""
    sampling: SamplingArgs = field(default_factory=dict)
    env: EnvRef = field(default_factory=EnvRef)
    routed_experts: list[Any] | None = None
    """One entry a turn, as the engine reported it; None where it did not."""
    replies: list[list[int]] = field(default_factory=list)
    """[turn, begin, end] of each reply: the number of its turn in the rollout and its place in `tokens`. Empty where
    unknown; needed for rewards turn by turn."""

    def with_advantages(self, advantages: list[float]) -> Row:
        """A shallow copy with these advantages."""
        row = Row(*_values_of(self))  # in half the time of `dataclasses.replace`: each rollout comes through here
        row.advantages = advantages
        return row

    @property
    def trainable(self) -> int:
        """How many tokens may be trained; the first is none of them, as no token before it predicts it."""
        return sum(self.mask[1:])

    @property
    def temperature(self) -> float:
        """At which it was sampled: 1 where nothing is said, and that of `extra_body` first, as samplers read it."""
        said = self.sampling.get("extra_body") or {}
        found = said.get("temperature", self.sampling.get("temperature"))
        return 1.0 if found is None else float(found)


_values_of = attrgetter(*(item.name for item in fields(Row)))


def check_row(row: Row, *, tokens: bool = True) -> None:
    """Raise EvidenceError unless the row keeps its guarantees.

    tokens: look at every id and logprob, too, which whoever made the row of checked turns has done.
    """
    length = len(row.tokens)
    for name, array in (("mask", row.mask), ("logprobs", row.logprobs), ("versions", row.versions)):
        if len(array) != length:
            raise _broken(row, f"{name} has {len(array)} entries for {length} tokens")
    if row.advantages is not None and len(row.advantages) != length:
        raise _broken(row, f"advantages has {len(row.advantages)} entries for {length} tokens")
    if tokens:
        _check_tokens(row)
    if row.replies and not _cover(row.replies, row.mask):
        raise _broken(row, "its replies are not where its trainable tokens are")
    if not row.trainable:
        raise _broken(row, "no token is trainable")
    if row.reward is not None and not math.isfinite(row.reward):
        raise _broken(row, f"its reward is {row.reward}")
    if not 0.0 < row.weight <= 1.0:
        raise _broken(row, f"its weight is {row.weight}")


def _check_tokens(row: Row) -> None:
    if not are_ids(row.tokens):
        raise _broken(row, "a token is no id")
    if row.exactness == "exact" and not are_logprobs(list(compress(row.logprobs, row.mask))):
        for token, trained, logprob in zip(row.tokens, row.mask, row.logprobs, strict=True):
            if trained and not is_logprob(logprob):
                raise _broken(row, f"the logprob of token {token} is {logprob}")


def is_logprob(value: Any) -> bool:
    """Whether `value` can be a logprob: finite, at most 0, and not the -9999 that stands for a missing one."""
    return isinstance(value, int | float) and math.isfinite(value) and -9999.0 < value <= LARGEST_LOGPROB


def are_logprobs(values: list[float]) -> bool:
    """Whether all of these surely are logprobs: a quick look at many, after which `is_logprob` names the one."""
    if not values:
        return True
    return set(map(type, values)) == {float} and math.isfinite(sum(values)) and _is_between(min(values), max(values))


def _is_between(least: float, most: float) -> bool:
    return least > -9999.0 and most <= LARGEST_LOGPROB


def are_ids(tokens: list[int], vocabulary: int | None = None) -> bool:
    """Whether these are token ids, of a vocabulary of that size where it is known."""
    if not tokens:
        return True
    return set(map(type, tokens)) == {int} and min(tokens) >= 0 and (not vocabulary or max(tokens) < vocabulary)


def row_to_dict(row: Row) -> dict[str, Any]:
    """The row as JSON data: NaN becomes null, arrays become lists."""
    data = {item.name: _plain(getattr(row, item.name)) for item in fields(Row)}
    data["logprobs"] = [None if math.isnan(value) else value for value in data["logprobs"]]
    data["env"] = {item.name: getattr(row.env, item.name) for item in fields(EnvRef)}
    return data


def row_from_dict(data: Mapping[str, Any]) -> Row:
    """The row that `row_to_dict` wrote. EvidenceError for missing or unknown fields, and for a broken guarantee."""
    values = dict(data)
    try:
        values["logprobs"] = [math.nan if value is None else float(value) for value in values["logprobs"]]
        values["mask"] = [bool(flag) for flag in values["mask"]]
        values["env"] = EnvRef(**values.get("env") or {})
        row = Row(**values)
        check_row(row)
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"this is no row: {error}", hint="Rows are written by row_to_dict.") from error
    return row


def _cover(replies: list[list[int]], mask: list[bool]) -> bool:
    """Whether the replies hold exactly the trainable tokens, none of them twice."""
    end, total = 0, 0
    for _, begin, stop in sorted(replies, key=itemgetter(1)):
        if not end <= begin < stop <= len(mask) or not all(mask[begin:stop]):
            return False
        end, total = stop, total + stop - begin
    return total == len(mask) - mask.count(False)


def _plain(value: Any) -> Any:
    if callable(getattr(value, "tolist", None)):  # arrays of numpy and torch
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _broken(row: Row, what: str) -> EvidenceError:
    return EvidenceError(f"a row of rollout {row.rollout_id or '(unnamed)'} breaks a guarantee: {what}")
