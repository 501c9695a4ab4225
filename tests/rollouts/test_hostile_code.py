"""Code of an environment that exits, cancels itself or overwrites the state costs its own rollout, never the run."""

import asyncio
import contextlib
import contextvars

import numpy as np
import pytest

from tests.support.play import FunctionClient, environment, questions
from verifiers.decorators import cleanup
from verifiers.envs import lifecycle
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.errors import EnvironmentCodeError, is_failure
from verifiers.rollouts.engine import Engine
from verifiers.rollouts.plan import plan_rollouts
from verifiers.rubrics.rubric import Rubric
from verifiers.rubrics.rubric_group import RubricGroup
from verifiers.scopes import current_scope


class OwnBase(BaseException):
    pass


class SpeechlessError(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


STOPS = [SystemExit(0), asyncio.CancelledError(), OwnBase("x"), SpeechlessError()]


def raising(error):
    async def hook(*args, **kwargs):
        raise error

    return hook


class Plain(MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        return "go on"


def played(hook, name, seconds=None):
    rubric = Rubric(funcs=[lambda completion: 1.0])
    env = Plain(dataset=questions(2), max_turns=2, timeout_seconds=seconds, rubric=rubric)
    setattr(env, name, hook)
    return env.evaluate(FunctionClient(), "m")


@pytest.mark.parametrize("error", STOPS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("where", ["setup_state", "env_response", "render_completion", "rollout"])
@pytest.mark.parametrize("seconds", [None, 60], ids=["no deadline", "deadline"])
async def test_whatever_a_hook_raises_is_recorded(where, error, seconds):
    """A cancellation that nobody asked for used to end the rollout's task without a record and with exit code 0."""
    results = await played(raising(error), where, seconds)
    assert [output["outcome"] for output in results.outputs] == ["failed", "failed"]
    assert all(output.error["kind"] == "environment" and output.reward is None for output in results.outputs)


@pytest.mark.parametrize("error", STOPS, ids=lambda error: type(error).__name__)
async def test_whatever_a_reward_function_raises_leaves_the_rollout_unscored(error):
    """Every rollout has a record, none has a reward."""
    results = await environment([raising(error)]).evaluate(FunctionClient(), "m")
    assert {output["outcome"] for output in results.outputs} == {"unscored"}


@pytest.mark.parametrize("error", STOPS, ids=lambda error: type(error).__name__)
async def test_whatever_a_rubrics_cleanup_raises_costs_no_score(error):
    """The rollouts keep their rewards."""
    env = environment()
    env.rubric.cleanup = raising(error)
    results = await env.evaluate(FunctionClient(), "m")
    assert {output["outcome"] for output in results.outputs} == {"ok"}


@pytest.mark.parametrize("key", ["timing", "trajectory", "prompt", "completion", "metrics", "usage", "input", "error"])
@pytest.mark.parametrize("value", [None, 7, "text", object()], ids=["None", "int", "text", "object"])
async def test_an_overwritten_state_never_ends_the_run(key, value):
    """There is a record of each rollout, whatever the environment put into the state."""

    async def overwrite(messages, state, **kwargs):
        state[key] = value
        return "go on"

    results = await played(overwrite, "env_response")
    assert len(results.outputs) == 2
    for output in results.outputs:
        assert (output.reward is None) == (output["outcome"] in ("failed", "unscored"))


async def test_a_cleared_state_is_a_failure():
    """What the engine needs is put back, and the rollout has failed."""

    async def clear(messages, state, **kwargs):
        state.clear()
        return "go on"

    results = await played(clear, "env_response")
    assert [output["outcome"] for output in results.outputs] == ["failed", "failed"]


@pytest.mark.parametrize("returned", [None, 7, "text", []])
async def test_a_rollout_that_returns_no_state_failed(returned):
    """An override of `rollout` may return anything."""

    async def rollout(*args, **kwargs):
        return returned

    results = await played(rollout, "rollout")
    assert {output.error["error"] for output in results.outputs} == {"EnvironmentCodeError"}


async def test_rollouts_without_a_record_are_an_error():
    """Should a task end silently all the same, the run says so."""
    env = environment()
    rows = env.get_dataset()

    def stop(record, state):
        raise asyncio.CancelledError

    with pytest.raises(EnvironmentCodeError, match="without a record"):
        await Engine(env, FunctionClient(), "m").play(rows, plan_rollouts(rows), stop)


async def test_a_real_cancellation_is_no_failure():
    """The engine's own cancellation still ends the task."""
    seen = []

    async def wait():
        try:
            await asyncio.sleep(60)
        except BaseException as error:
            seen.append(is_failure(error))
            raise

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert seen == [False]
    assert not is_failure(KeyboardInterrupt())


@pytest.mark.parametrize("key", ["timing", "trajectory", "scope", "reward", "metrics", "failed", "completion"])
@pytest.mark.parametrize("value", [None, 7, "text", ["text"]], ids=["None", "int", "text", "list"])
async def test_a_reward_function_that_overwrites_the_state_never_ends_the_run(key, value):
    """Each rollout has a record; what can be saved of it is."""

    def overwrite(state):
        state[key] = value
        return 1.0

    results = await environment([overwrite], n=2).evaluate(FunctionClient(), "m", rollouts_per_example=2)
    assert len(results.outputs) == 4
    for output in results.outputs:
        assert (output.reward is None) == (output["outcome"] in ("failed", "unscored"))


def named(value):
    """The same name in every process: an object's own has its address."""
    return "object" if type(value) is object else repr(value)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "high", [1.0], object()], ids=named)
@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "in a group"])
async def test_a_rubric_of_ones_own_that_gives_no_number_leaves_only_that_rollout_unscored(value, grouped):
    """It is no reward, and takes no part in the mean that the others are compared with."""

    class Own(Rubric):
        async def score_rollout(self, state):
            state["reward"] = value if state["scope"].rollout_index == 0 else 1

    env = environment([], n=1)
    env.rubric = RubricGroup([Own(), Rubric(funcs=[best])]) if grouped else Own()
    results = await env.evaluate(FunctionClient(), "m", rollouts_per_example=3)
    assert [output["outcome"] for output in results.outputs] == ["unscored", "ok", "ok"]
    assert [output["error"] is None for output in results.outputs] == [False, True, True]
    assert [state["advantage"] for state in results.state] == [None, 0.0, 0.0]


def best(completions) -> list[float]:
    """A function that compares, so that the group is scored together."""
    return [0.0] * len(completions)


async def test_numbers_of_a_rubric_of_ones_own_are_floats():
    """Whatever type of number it writes, live figures and those of the saved file agree."""

    class Own(Rubric):
        async def score_rollout(self, state):
            state["reward"], state["metrics"] = np.float32(0.5), {"size": np.float32(2), "name": "text"}

    env = environment(n=1)
    env.rubric = Own()
    [output] = (await env.evaluate(FunctionClient(), "m")).outputs
    assert (output["outcome"], type(output["reward"])) == ("ok", float)
    assert output["metrics"] == {"size": 2.0, "name": None} and type(output["metrics"]["size"]) is float


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(0)], ids=repr)
async def test_one_failure_in_a_rubric_of_ones_own_leaves_the_rest_of_its_group_scored(raised):
    """A rubric that scores one by one, beside one that compares."""

    class Own(Rubric):
        async def score_rollout(self, state):
            if state["scope"].rollout_index == 1:
                raise raised
            state["reward"] = 1.0

    env = environment([best], n=1)
    env.add_rubric(Own())
    results = await env.evaluate(FunctionClient(), "m", rollouts_per_example=3)
    assert [output["reward"] for output in results.outputs] == [1.0, None, 1.0]


async def test_a_failed_rollout_has_no_reward_though_its_code_set_one():
    """Environments keep scores of their own in the state; a failure is no number."""

    async def failing(messages, state, **kwargs):
        state["reward"], state["metrics"] = 1.0, {"level": 3.0}
        raise ValueError("broken")

    results = await played(failing, "env_response")
    assert [(output["outcome"], output["reward"], output["metrics"]) for output in results.outputs] == [
        ("failed", None, {})
    ] * 2


async def test_a_context_variable_of_one_rollout_is_nothing_to_the_next():
    """Whatever its setup leaves behind, also where one plays after the other. Its own scoring sees it."""
    current, before, scored = contextvars.ContextVar("current", default=None), [], []

    async def setup_state(state):
        before.append(current.get())
        current.set(state["example_id"])

    env = environment([lambda state: float(scored.append((state["example_id"], current.get())) is None)], n=3)
    env.setup_state = setup_state
    await env.evaluate(FunctionClient(), "m", max_concurrent=1)
    assert before == [None] * 3
    assert sorted(scored) == [(0, 0), (1, 1), (2, 2)]


async def swallowing():
    for _ in range(3):  # its deadline, and giving it up; the third one is the end of this test
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)


async def ignored_in_vain():
    await asyncio.sleep(60)


@pytest.mark.parametrize("hang", [swallowing, ignored_in_vain], ids=lambda hang: hang.__name__)
@pytest.mark.parametrize("cancelled", [False, True], ids=["played on", "cancelled"])
async def test_a_rubrics_cleanup_that_hangs_holds_no_run(hang, cancelled, monkeypatch):
    """It is recorded when its time is up, and runs once, also if the run is cancelled meanwhile."""
    monkeypatch.setattr(lifecycle, "CLEANUP_SECONDS", 0.05)
    monkeypatch.setattr(lifecycle, "GRACE_S", 0.05)
    begun, both = [], asyncio.Event()

    class Hangs(Rubric):
        @cleanup
        async def hang(self, state):
            begun.append(state["example_id"])
            if len(begun) == 2:
                both.set()
            await hang()

    env = environment(n=2)
    env.rubric = Hangs(funcs=[lambda: 1.0])
    run = asyncio.create_task(env.evaluate(FunctionClient(), "m"))
    if cancelled:
        await both.wait()
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    else:
        results = await run
        assert [output["cleanup_errors"][0]["handler"] for output in results.outputs] == ["rubric"] * 2
        assert results.reward == [1.0, 1.0]
    assert sorted(begun) == [0, 1]


async def test_what_can_not_be_sealed_keeps_what_it_spent():
    """The record says what its calls took, which counts towards the limits of a run that goes on."""

    def overwrite(state):
        state["metrics"] = state["timing"] = None
        return 1.0

    [output] = (await environment([overwrite], n=1).evaluate(SpendingClient(), "m")).outputs
    assert output["outcome"] == "failed" and output["spent"]["input_tokens"] == 2


class SpendingClient(FunctionClient):
    async def get_response(self, *args, **kwargs):
        response = await super().get_response(*args, **kwargs)
        current_scope.get().charge(2, 3, None)
        return response
