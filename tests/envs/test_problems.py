"""What an environment says about its author's likely mistakes, and when it says so."""

from __future__ import annotations

import pytest

import verifiers as vf
from verifiers.clients.scripted import ScriptedClient

ROWS = [{"question": "q", "answer": "a", "level": 1}]


def one(completion) -> float:
    return 1.0


def needs_level(level) -> float:
    return float(level)


def needs_unicorn(unicorn) -> float:
    return 0.0


def env_of(*funcs, **kwargs) -> vf.SingleTurnEnv:
    return vf.SingleTurnEnv(rubric=vf.Rubric(list(funcs)), **{"dataset": ROWS, **kwargs})


def checks(env: vf.Environment) -> list[str]:
    return [problem.check for problem in env.check()]


def test_columns_supply_parameters():
    """A column is a parameter that can be supplied; a name that nothing has is a problem."""
    assert checks(env_of(one, needs_level)) == []
    assert checks(env_of(one, needs_unicorn)) == ["reward-arguments"]


def test_some_function_must_count():
    """All weights 0, or no function at all, is a problem: not where rewards are not asked for, nor with a rubric
    that scores by a method of its own."""
    silent = vf.Rubric([one], weights=[0.0])
    assert "the weights of one, num_turns are all 0" in vf.SingleTurnEnv(dataset=ROWS, rubric=silent).check()[0]
    assert checks(vf.SingleTurnEnv(dataset=ROWS)) == ["weights"]
    assert checks(vf.SingleTurnEnv(dataset=ROWS, score_rollouts=False)) == []

    class Own(vf.Rubric):
        async def score_rollout(self, state):
            state["reward"], state["metrics"] = 1.0, {}

    assert checks(vf.SingleTurnEnv(dataset=ROWS, rubric=Own())) == []


def test_names_are_shared_with_the_metrics_of_the_class():
    """A function called as a metric of the environment's class shares its name."""

    def num_turns(state) -> float:
        return 1.0

    assert checks(env_of(num_turns)) == ["metric-names"]


def test_a_group_tells_whose_problem_it_is():
    """Problems of children are theirs by name, each against its own columns."""
    other = env_of(one, needs_level, dataset=[{"question": "q", "answer": "a"}])
    group = vf.EnvGroup([env_of(one, needs_level), other], env_names=["fine", "short"])
    assert [(problem.check, problem.partition(":")[0]) for problem in group.check()] == [("reward-arguments", "short")]


def test_problems_are_said_once_and_as_soon_as_they_are_known(caplog: pytest.LogCaptureFixture):
    """The columns of a data set that is made at first use are known when it is played; nothing is said twice."""
    env = env_of(one, needs_unicorn, dataset=lambda: ROWS)
    env.mention_problems()
    assert caplog.records == []
    for _ in range(2):
        env.evaluate_sync(client=ScriptedClient("a"), model="scripted")
    said = [record.getMessage() for record in caplog.records if "unicorn" in record.getMessage()]
    assert len([text for text in said if "neither the data set nor the rubric supplies" in text]) == 1


def test_misspelt_keywords_of_every_class_are_pointed_out(caplog: pytest.LogCaptureFixture):
    """A keyword that nobody knows is kept; one near an argument of the class, or of one above it, is named."""

    class Paced(vf.MultiTurnEnv):
        def __init__(self, seconds_per_turn: float = 1.0, **kwargs) -> None:
            super().__init__(seconds_per_turn=seconds_per_turn, **kwargs)

    env = Paced(dataset=ROWS, rubric=vf.Rubric([one]), seconds_per_trun=2.0, max_turn=3, level=4)
    assert (env.seconds_per_turn, env.seconds_per_trun, env.max_turn, env.level) == (1.0, 2.0, 3, 4)
    said = [record.getMessage() for record in caplog.records if "unknown keyword" in record.getMessage()]
    assert said == [
        "Paced: unknown keyword 'seconds_per_trun'; did you mean 'seconds_per_turn'?",
        "Paced: unknown keyword 'max_turn'; did you mean 'max_turns'?",
    ]
