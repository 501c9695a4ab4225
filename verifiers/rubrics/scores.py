"""Scores on their way from reward functions into the state: checked, added up, and never a number for a failure.

A `Sheet` holds what one rubric found for one rollout. `settle` joins the sheets of all rubrics and writes reward,
metrics and, over a group, advantages. An unscored rollout has the reward None and takes no part in the group's
mean; a group with fewer than two scored members has no advantages.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from verifiers.errors import Error, RewardError
from verifiers.types import State

LARGEST = 1e100
"""The largest reward. The sums and squares behind a mean and its interval then stay finite, whatever their number."""


_METRIC_TYPES = frozenset({float, type(None)})


@dataclass
class Sheet:
    """What one rubric found for one rollout.

    `metrics` are in the order of the functions, also where names repeat; None stands for a function that failed.
    `failure` is the first error of a function that counts, and makes the rollout unscored.
    """

    reward: float = 0.0
    metrics: list[tuple[str, float | None]] = field(default_factory=list)
    errors: dict[str, Error] = field(default_factory=dict)
    failure: Error | None = None

    def add(self, name: str, value: float, weight: float) -> None:
        """Enter the value of one function."""
        self.metrics.append((name, value))
        self.reward += value * weight

    def add_failure(self, name: str, error: Error, weight: float, policy: str) -> None:
        """Enter a function that failed: as 0.0 under the policy "zero", else as None.

        A metric (weight 0) that failed leaves the reward as it is, since the reward does not depend on it.
        """
        self.errors[_numbered(name, self.errors) if name in self.errors else name] = error
        self.metrics.append((name, 0.0 if policy == "zero" else None))
        if policy != "zero" and weight != 0:
            self.failure = self.failure or error


def as_score(value: Any, name: str) -> float:
    """What the reward function `name` returned, as a finite float. bool counts as 0 or 1.

    Raises RewardError for None, text, NaN, infinity, what is beyond ±`LARGEST` and what is no number.
    """
    try:
        score = math.nan if value is None or isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RewardError(
            f"reward function '{name}' returned {value!r:.200}, not a number", cause=error
        ) from error
    if not is_score(score):
        what = f"beyond ±{LARGEST:g}" if math.isfinite(score) else "not a finite number"
        raise RewardError(f"reward function '{name}' returned {value!r:.200}, {what}")
    return score


def is_score(value: float) -> bool:
    """Whether a number can be a reward or a metric: finite, and within ±`LARGEST`."""
    return abs(value) <= LARGEST  # which is False for NaN


def as_metric(value: Any) -> float | None:
    """A metric of an author's own scoring: None where it is no number, since a metric costs no reward."""
    try:
        return as_score(value, "")
    except RewardError:
        return None


def sheet_of(state: State, name: str, failure: Error | None = None) -> Sheet:
    """What the rubric `name`, which scores in a way of its own, wrote into the state, or failed with."""
    policy = state.get("on_reward_error") or "unscored"
    metrics = [(metric, as_metric(value)) for metric, value in (state.get("metrics") or {}).items()]
    sheet = Sheet(metrics=metrics, errors=dict(state.get("scoring_errors") or {}), failure=state.get("error"))
    try:
        if failure is not None:
            raise failure
        if sheet.failure is None:
            sheet.reward = as_score(state.get("reward"), name)
    except Error as error:
        sheet.errors[name] = error
        sheet.failure = None if policy == "zero" else error
    return sheet


def confirm(state: State, name: str) -> None:
    """Make sure that a scored state holds numbers or an error, whatever the rubric `name` wrote there.

    Raises RewardError for a reward that is no finite number, under the policy "raise".
    """
    reward, metrics = state.get("reward"), state.get("metrics")
    failed = is_failed(state)
    sound = reward is None if failed else type(reward) is float and is_score(reward)
    if sound and type(metrics) is dict and _METRIC_TYPES.issuperset(map(type, metrics.values())):
        return
    settle([state], [[sheet_of(state, name)]])
    if is_failed(state) and not failed and state.get("on_reward_error") == "raise":
        raise state["error"]


def is_failed(state: State) -> bool:
    """Whether the rollout failed before scoring: then there is nothing to score."""
    return state.get("error") is not None


def settle(states: Sequence[State], sheets: Sequence[Sequence[Sheet]]) -> None:
    """Write reward, metrics and errors of each rollout; `sheets` holds one list a state, empty if it failed."""
    for state, own in zip(states, sheets, strict=True):
        if is_failed(state):
            state["reward"], state["metrics"] = None, {}
            continue
        reward, failure = _total(own)
        dict.update(state, reward=reward, metrics=joined_metrics(own))
        errors = _joined_errors(own)
        if errors:
            state["scoring_errors"] = errors
        if failure is not None:
            state["error"] = failure


_joining: ContextVar[bool] = ContextVar("rubrics_are_being_joined", default=False)


@contextmanager
def joining() -> Iterator[None]:
    """While the rewards of several rubrics are being added up, no rubric shares advantages of its own."""
    token = _joining.set(True)
    try:
        yield
    finally:
        _joining.reset(token)


def share_advantages(states: Sequence[State], keep: bool = False) -> None:
    """advantage = reward - mean over the scored members of the group, copied into steps that have none.

    With fewer than two scored members, and for unscored ones, it is None. `keep`: the rubric sets its own.
    """
    if _joining.get():
        return
    rewards = [reward for state in states if (reward := state.get("reward")) is not None]
    mean = sum(rewards) / len(rewards) if len(rewards) > 1 else None
    for state in states:
        reward = state.get("reward")
        if not keep:
            state["advantage"] = None if reward is None or mean is None else reward - mean
        for step in _steps(state):
            if step.get("advantage") is None:
                step["advantage"] = state.get("advantage")
            if step.get("reward") is None:
                step["reward"] = reward


def _steps(state: State) -> list[Any]:
    # As it is there, also where a saved state lacks turns, or a reward function has overwritten it.
    steps = dict.get(state, "trajectory")
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def joined_metrics(sheets: Iterable[Sheet]) -> dict[str, float | None]:
    """The metrics of one rollout over all its rubrics.

    A name that several functions share holds what v0 gives (the last value within a rubric, the sum across
    rubrics); the single values follow as `name_1`, `name_2` in order.
    """
    metrics: dict[str, float | None] = {}
    single = [entry for sheet in sheets for entry in sheet.metrics]
    for sheet in sheets:
        for name, value in dict(sheet.metrics).items():
            metrics[name] = _sum(metrics[name], value) if name in metrics else value
    if len(metrics) == len(single):
        return metrics
    occurrences = Counter(name for name, _ in single)
    repeated = {name for name in occurrences if occurrences[name] > 1}
    for name, value in single:
        if name in repeated:
            metrics[_numbered(name, metrics)] = value
    return metrics


def _total(sheets: Iterable[Sheet]) -> tuple[float | None, Error | None]:
    failure = next((sheet.failure for sheet in sheets if sheet.failure is not None), None)
    if failure is not None:
        return None, failure
    total = sum(sheet.reward for sheet in sheets)
    if not is_score(total):
        return None, RewardError(f"the weighted sum of the reward functions is {total}")
    return total, None


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _joined_errors(sheets: Iterable[Sheet]) -> dict[str, Error]:
    errors: dict[str, Error] = {}
    for sheet in sheets:
        for name, error in sheet.errors.items():
            errors[_numbered(name, errors) if name in errors else name] = error
    return errors


def _numbered(name: str, taken: Iterable[str]) -> str:
    """The first free one of `name_1`, `name_2`, ..."""
    return next(numbered for n in count(1) if (numbered := f"{name}_{n}") not in taken)
