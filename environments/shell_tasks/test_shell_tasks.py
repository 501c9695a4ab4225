"""The environment `shell_tasks`: its puzzles, and rollouts that solve, miss and forge them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import shell_tasks

import verifiers as vf
from verifiers.clients.scripted import ScriptedClient
from verifiers.sandboxes.local import probe


@pytest.fixture(scope="module")
def env() -> vf.Environment:
    if missing := probe.failed("namespace"):
        pytest.skip(f"vf-sandbox doctor: {missing}")
    return shell_tasks.load_environment(num_train=4, num_eval=8)


def play(env: vf.Environment, row: dict[str, Any], *commands: str) -> vf.RolloutOutput:
    """A rollout that runs these commands, one a turn, and then ends."""
    calls = [
        {"id": f"call_{index}", "name": "bash", "arguments": json.dumps({"command": command})}
        for index, command in enumerate(commands)
    ]
    replies = [{"role": "assistant", "content": "", "tool_calls": [call]} for call in calls]
    return env.generate_sync([row], client=ScriptedClient([*replies, "Done."]), model="scripted")["outputs"][0]


def task(env: vf.Environment, kind: str) -> tuple[dict[str, Any], shell_tasks.Puzzle]:
    """A row of this kind, and its puzzle."""
    for row in env.get_eval_dataset():
        if json.loads(row["info"])["kind"] == kind:
            return row, shell_tasks.puzzle_of(json.loads(row["info"]))
    raise LookupError(kind)


@pytest.mark.parametrize("kind", shell_tasks.KINDS)
def test_a_task_is_solved_in_the_sandbox(env: vf.Environment, kind: str) -> None:
    """The puzzle's own command earns 1; what was found is on the record."""
    row, puzzle = task(env, kind)
    result = play(env, row, puzzle.solve)
    assert (result["reward"], result["error"], result["found"]) == (1.0, None, puzzle.expected)


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("count", "true"),
        ("count", "echo 0 > answer.txt"),
        ("count", "seq 0 500 > answer.txt"),
        ("total", "mkdir answer.txt"),
        ("total", "ln -s /dev/zero answer.txt"),
        ("tidy", "mkdir drafts; mv inbox/* drafts/"),
        ("tidy", "mkdir drafts; for f in inbox/*; do ln -s ../$f drafts/; done"),
        ("script", "printf '#!/bin/sh\\necho 42\\n' > solve.sh; chmod +x solve.sh"),
        ("script", "printf '#!/bin/sh\\nyes\\n' > solve.sh; chmod +x solve.sh"),
        ("script", "mkfifo solve.sh"),
    ],
)
def test_what_is_not_solved_earns_nothing(env: vf.Environment, kind: str, command: str) -> None:
    """Nothing done, guesses, and what is no file: 0, never an error."""
    row, _ = task(env, kind)
    result = play(env, row, command)
    assert (result["reward"], result["error"]) == (0.0, None)


def test_tasks_of_training_and_evaluation_differ(env: vf.Environment) -> None:
    """No puzzle is in both."""
    train, evaluation = ({row["info"] for row in rows} for rows in (env.get_dataset(), env.get_eval_dataset()))
    assert len(train) == 4 and len(evaluation) == 8 and not train & evaluation
