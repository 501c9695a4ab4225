"""From the state of a finished rollout to its record, which does not change any more."""

from __future__ import annotations

from functools import partial
from typing import Any

from verifiers.error_text import error_record
from verifiers.errors import InvalidTaskError
from verifiers.rollouts.plan import PlannedRollout
from verifiers.scopes import Scope, Spending
from verifiers.types import Outcome, RolloutOutput, State

STATE_FIELDS = frozenset(
    ("input", "prompt", "answer", "info", "example_id", "task", "client", "model", "sampling_args", "completion")
    + ("trajectory", "trajectory_id", "turn", "responses", "tool_defs", "oai_tools", "final_env_response", "usage")
    + ("is_completed", "is_truncated", "stop_condition", "prompt_too_long", "timed_out", "timing", "error", "resources")
    + ("reward", "metrics", "advantage", "scoring_errors", "cleanup_errors", "on_reward_error", "judge_response")
    + ("rollout_id", "attempts", "scope", "failed", "env_route", "state_keys")
)
"""Keys of a state that the package itself writes. All others are the environment's."""


def keys_of_environment(state: State) -> list[str]:
    """What an environment keeps in a state beyond the package's own keys, in the order it came."""
    return [key for key in state if key not in STATE_FIELDS]


def outcome_of(state: State) -> Outcome:
    """How a rollout ended. The engine says on the state if it failed before it was scored."""
    if state.get("failed"):
        return Outcome.INVALID_TASK if isinstance(state.get("error"), InvalidTaskError) else Outcome.FAILED
    if state.get("reward") is None:
        return Outcome.UNSCORED
    return Outcome.TRUNCATED if state.get("is_truncated") else Outcome.OK


def _spent(scope: Scope) -> dict[str, Any]:
    """What all attempts and the scoring of a rollout took; tokens that no endpoint reported are not in it."""
    spent: dict[str, Any] = _figures(scope.spent)
    if scope.judge.calls:
        spent["judge"] = _figures(scope.judge)
    if scope.waited_s:
        spent["waited_s"] = round(scope.waited_s, 3)
    return spent


def _figures(spending: Spending) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "calls": spending.calls,
        "input_tokens": spending.input_tokens,
        "output_tokens": spending.output_tokens,
    }
    if spending.unpriced < spending.calls:
        figures["cost"] = spending.cost
    return figures


def seal(
    state: State, planned: PlannedRollout, state_columns: tuple[str, ...] = (), own_columns: tuple[str, ...] = ()
) -> RolloutOutput:
    """The record of a rollout: what was asked and answered, how it ended, what it earned.

    state_columns: further keys of the state, which were asked for. own_columns: those that its environment wants kept.
    """
    own = partial(dict.get, state)  # for keys that only the state itself can hold
    error = own("error")
    metrics = dict(own("metrics") or {})
    fields: dict[str, Any] = {
        "example_id": planned.example_id,
        "task": "/".join(own("env_route") or []) or state.get("task") or "default",
        "prompt": state.get("prompt"),
        "completion": state.get("completion"),
        "reward": own("reward"),
        "metrics": metrics,
        "outcome": str(outcome_of(state)),
        "error": error_record(error) if error is not None else None,
        "stop_condition": own("stop_condition"),
        "is_completed": bool(own("is_completed")),
        "is_truncated": bool(own("is_truncated")),
        "timing": state["timing"].to_dict(),
        "tool_defs": own("tool_defs"),
        "task_id": planned.task_id,
        "rollout_id": planned.rollout_id,
        "rollout_index": planned.rollout_index,
        "attempts": own("attempts") or [],
    }
    for key in ("answer", "info"):
        if (value := state.get(key)) or value == 0:
            fields[key] = value
    if own("usage") is not None:
        fields["token_usage"] = state["usage"]
    scoring_errors = own("scoring_errors") or {}
    if scoring_errors:
        fields["scoring_errors"] = {name: error_record(one) for name, one in scoring_errors.items()}
    if (scope := own("scope")) is not None:
        fields["spent"] = _spent(scope)
    if own("state_keys") is not None:
        fields["state_keys"] = state["state_keys"]
    if own("cleanup_errors"):
        fields["cleanup_errors"] = state["cleanup_errors"]
    columns = {name: state[name] for name in own_columns if name in state}
    columns |= {name: state.get(name) for name in state_columns}
    return RolloutOutput({**metrics, **columns, **fields})
