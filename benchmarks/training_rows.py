"""Results of rollouts as a source reports them, made without a model: four turns, 1,000 tokens, a reward."""

import random
from typing import Any

from verifiers.rollouts.source import GroupResult, Member, RolloutRequest
from verifiers.types import Outcome

TURNS, TOKENS = 4, 1000
REPLY = 100
"""Sampled tokens of a turn; the others are its prompt."""


def results(groups: int, size: int, seed: int) -> list[GroupResult]:
    """Groups with rewards of 0 and 1 in turn."""
    rng = random.Random(seed)
    return [_group(number, size, rng) for number in range(groups)]


def _group(number: int, size: int, rng: random.Random) -> GroupResult:
    request = RolloutRequest(f"task-{number}", f"g{number:06d}", size, number)
    members = [_member(f"{number}-{index}", index, request, rng) for index in range(size)]
    return GroupResult(request, members, 1.0)


def _member(rollout_id: str, index: int, request: RolloutRequest, rng: random.Random) -> Member:
    record: Any = {
        "rollout_id": rollout_id,
        "task_id": request.task_id,
        "outcome": "ok",
        "reward": float(index % 2),
        "metrics": {"right": float(index % 2)},
        "stop_condition": "max_turns_reached",
        "sampling_args": {"temperature": 1.0},
        "trajectory": _turns(rng),
    }
    return Member(rollout_id, index, Outcome.OK, record)


def _turns(rng: random.Random) -> list[dict[str, Any]]:
    seen: list[int] = []
    turns = []
    for _ in range(TURNS):
        prompt = seen + [rng.randrange(32_000) for _ in range(TOKENS // TURNS - REPLY)]
        reply = [rng.randrange(32_000) for _ in range(REPLY)]
        tokens = {
            "prompt_ids": prompt,
            "completion_ids": reply,
            "completion_logprobs": [-1.0 - rng.random() for _ in reply],
            "completion_versions": [0] * REPLY,
        }
        turns.append({"tokens": tokens, "response": {"message": {"finish_reason": "stop"}}, "is_truncated": False})
        seen = prompt + reply
    return turns
