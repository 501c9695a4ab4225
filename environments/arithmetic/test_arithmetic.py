"""The environment `arithmetic`: its tasks, what is read as the answer, and what earns the reward."""

from __future__ import annotations

from typing import Any

import arithmetic
import pytest

import verifiers as vf
from verifiers.clients.scripted import ScriptedClient


def score(env: vf.Environment, task: dict[str, Any], reply: str) -> vf.RolloutOutput:
    return env.generate_sync([task], client=ScriptedClient([reply]), model="scripted")["outputs"][0]


@pytest.fixture(scope="module")
def env() -> vf.Environment:
    return arithmetic.load_environment()


@pytest.mark.parametrize("level", range(1, 6))
def test_the_oracle_earns_the_maximum_at_every_level(env: vf.Environment, level: int) -> None:
    """The known answer scores 1, whatever the level."""
    task = env.get_eval_dataset()[level - 1]
    assert score(env, task, arithmetic.oracle(task, [], vf.State()))["reward"] == 1.0


@pytest.mark.parametrize(
    ("reply", "reward"),
    [
        ("11", 1.0),
        ("4 + 7 = 11", 1.0),
        ("The answer is 11.", 1.0),
        ("11.0", 1.0),
        ("<think>4 + 7 is 12, no, 11</think> 11", 1.0),
        ("10", 0.0),
        ("-11", 0.0),
        ("11 or 12", 0.0),
        ("eleven", 0.0),
        (" ", 0.0),
        ("<think>11", 0.0),
        ("__import__('os').abort()", 0.0),
        ("9" * 100_000, 0.0),
        (" ".join(str(number) for number in range(100)), 0.0),
    ],
)
def test_only_the_last_number_counts(env: vf.Environment, reply: str, reward: float) -> None:
    """Right in any wording scores 1; wrong, none, several and hostile ones score 0, never an error."""
    task = {**env.get_eval_dataset()[0], "answer": "11"}
    result = score(env, task, reply)
    assert (result["reward"], result["error"]) == (reward, None)


def test_repeating_the_question_never_pays() -> None:
    """No question ends in its own answer."""
    for task in arithmetic.make_tasks(500, "train", (1, 2, 3, 4, 5), seed=1):
        assert arithmetic.last_number(task["question"]) != task["answer"]


def test_levels_take_turns_and_can_be_chosen() -> None:
    """Equal parts of every level by default, only those asked for otherwise."""
    levels = [task["info"]["level"] for task in arithmetic.make_tasks(10, "eval", (1, 2, 3, 4, 5), seed=0)]
    assert levels == [1, 2, 3, 4, 5] * 2
    assert {task["info"]["level"] for task in arithmetic.make_tasks(10, "eval", [3], seed=0)} == {3}


def test_splits_share_no_numbers(env: vf.Environment) -> None:
    """A sum of the training tasks does not come back in other words in the evaluation tasks."""
    seen = {tuple(sorted(arithmetic.NUMBER.findall(text))) for text in env.get_dataset()["question"]}
    held_out = {tuple(sorted(arithmetic.NUMBER.findall(text))) for text in env.get_eval_dataset()["question"]}
    assert not seen & held_out


@pytest.mark.parametrize(
    "arguments", [{"levels": [0]}, {"levels": []}, {"num_eval": 5000, "levels": [1]}, {"shots": 4}], ids=str
)
def test_impossible_arguments_are_refused(arguments: dict[str, Any]) -> None:
    """Unknown levels, no level, more tasks than a level has, more examples than there are."""
    with pytest.raises((ValueError, vf.EnvironmentLoadError), match=r"level|shots"):
        arithmetic.load_environment(**arguments).get_eval_dataset()


def test_solved_examples_can_be_left_out(env: vf.Environment) -> None:
    """The prompt has three of them by default, and as many as were asked for."""
    prompts = [arithmetic.load_environment(shots=shots).get_dataset()[0]["prompt"] for shots in (3, 1, 0)]
    assert [len(prompt) for prompt in prompts] == [8, 4, 2]
    assert prompts[0] == env.get_dataset()[0]["prompt"]
