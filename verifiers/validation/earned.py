"""What rollouts earned and may earn, and the words for it: shared by the checks that play."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from verifiers.validation.findings import NotCheckedError
from verifiers.validation.plays import EMPTY_REPLY, Played, Plays, is_blocked, plays_of
from verifiers.validation.rubrics import environment_for, format_weight_of, maximum_of
from verifiers.validation.subject import Subject

EPSILON = 1e-6
"""Rewards that differ by less are equal: sums of weights are not exact."""


def maximum(subject: Subject, played: Played) -> float | None:
    """The reward of perfect play: what the project says, else the sum of the positive weights; None if not known."""
    declared = subject.settings.get("max_reward")
    return float(declared) if declared is not None else maximum_of(environment_for(subject.env, played.record))


def floor(plays: Plays, position: int) -> float:
    """What the empty reply earns; at least 0, since a penalty for saying nothing is no pay for saying something."""
    (empty,) = plays.play("the empty reply", [(position, EMPTY_REPLY)])
    return max(0.0, empty.reward or 0.0)


def allowed(subject: Subject, played: Played) -> float:
    """What a reply that solves nothing may earn: the floor, the weight of the format, and what the project allows."""
    env = environment_for(subject.env, played.record)
    tolerance = float(subject.settings.get("floor_tolerance", 0.0))
    return floor(plays_of(subject), played.position) + format_weight_of(env) + tolerance


def all_of(plays: Plays) -> list[Played]:
    """Everything that solves nothing, as far as it could be played."""
    try:
        return plays.everything()
    except NotCheckedError:
        return plays.so_far()


def refuse_if_blocked(played: Sequence[Played], found: Sequence[object]) -> None:
    """Say that the check could not be made, where scoring was blocked and nothing was found."""
    needs = is_blocked(played)
    if needs and not found:
        raise NotCheckedError(f"needs {needs}")


def grouped(played: Iterable[Played], key: Callable[[Played], str]) -> dict[str, list[Played]]:
    """Rollouts by a text, in order."""
    groups: dict[str, list[Played]] = {}
    for one in played:
        groups.setdefault(key(one), []).append(one)
    return groups


def alike(message: str) -> str:
    """A message without its numbers: what differs in times, sizes and counters alone is one fault."""
    return re.sub(r"\d+(?:\.\d+)?(?:e-?\d+)?", "#", message)


def error_of(played: Played) -> Mapping[str, Any]:
    """The error on the record, as it is saved."""
    error: Mapping[str, Any] = played.record.get("error") or {"message": "no reason was given", "error_chain_str": ""}
    return error


def where(played: Sequence[Played]) -> str:
    """Which task, which reply, and how often."""
    first = played[0]
    more = f", and {len(played) - 1} more" if len(played) > 1 else ""
    return f"task {first.record.get('example_id', first.position)}, reply {first.reply.label}{more}"


def tasks(positions: Sequence[int], count: int) -> str:
    return "every task" if len(positions) == count else f"{len(positions)} of {count} tasks, such as {positions[0]}"


def number(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.4g}"
