"""The engine: failures stay with their rollout, limits hold, groups join, cancellation cleans up."""

import asyncio
import gc
import sys
from unittest.mock import MagicMock

import pytest

from tests.support.play import FunctionClient, environment, questions
from verifiers.decorators import cleanup, stop
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.errors import (
    AuthenticationError,
    EndpointUnavailableError,
    ModelError,
    OverlongPromptError,
    RewardError,
)
from verifiers.evals.saved_rollouts import task_of
from verifiers.loops import shielded
from verifiers.rollouts import retries
from verifiers.rollouts.encoding import encode_record, from_json
from verifiers.rollouts.engine import Engine
from verifiers.rollouts.plan import plan_rollouts
from verifiers.rubrics.rubric import Rubric


def outcomes(results):
    return [output["outcome"] for output in results.outputs]


async def test_a_failing_rollout_leaves_the_others_alone():
    """One model error is recorded on its rollout; it has no reward and the mean leaves it out."""

    def answer(question, number):
        return ModelError("broken") if question == "q1" else question

    results = await environment().evaluate(FunctionClient(answer), "m")
    assert outcomes(results) == ["ok", "failed", "ok", "ok"]
    failed = results.outputs[1]
    assert failed.reward is None and failed.error["kind"] == "model" and failed.stop_condition == "has_error"
    assert results.metadata.avg_reward == 1.0


@pytest.mark.parametrize("where", ["setup_state", "env_response", "stopped", "render_completion", "rollout"])
async def test_a_plain_exception_of_author_code_is_that_rollouts_failure(where):
    """A KeyError in any hook is recorded with its cause, and the run goes on (verifiers' v0 cancelled it)."""

    def fail(*args, **kwargs):
        raise KeyError("oops")

    class Broken(MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return "go on"

        @stop
        async def stopped(self, state):
            return len(state["trajectory"]) > 1

    env = Broken(dataset=questions(2), rubric=Rubric(funcs=[lambda completion: 1.0]))
    setattr(env, where, stop(fail) if where == "stopped" else fail)
    results = await env.evaluate(FunctionClient(), "m")
    assert outcomes(results) == ["failed", "failed"]
    for output in results.outputs:
        assert output.error["kind"] == "environment" and "KeyError" in output.error["error_chain_str"]
        assert output.reward is None


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "1", RuntimeError("no")])
async def test_a_failing_reward_function_leaves_the_rollout_unscored(value):
    """Raising, None, NaN, infinity and text are no reward: reward None, counted, out of the mean."""

    def broken(answer):
        if answer != "q0":
            return 1.0
        if isinstance(value, Exception):
            raise value
        return value

    results = await environment([broken], n=2).evaluate(FunctionClient(), "m")
    assert outcomes(results) == ["unscored", "ok"]
    assert results.reward == [None, 1.0] and results.metadata.avg_reward == 1.0
    assert results.outputs[0].error["kind"] == "reward" and "broken" in results.outputs[0]["scoring_errors"]


async def test_on_reward_error_restores_zero_or_raises():
    """The nearest setting wins: "zero" of the environment, "raise" of the call."""

    def broken():
        raise RuntimeError("no")

    env = environment([broken], n=1, on_reward_error="zero")
    assert (await env.evaluate(FunctionClient(), "m")).reward == [0.0]
    with pytest.raises(RewardError):
        await env.evaluate(FunctionClient(), "m", on_reward_error="raise")


async def test_refused_authentication_ends_the_run():
    """Every further request would be refused, so the error comes out at once."""
    client = FunctionClient(lambda question, number: AuthenticationError("401"))
    with pytest.raises(AuthenticationError):
        await environment(n=100).evaluate(client, "m", max_concurrent=1)
    assert next(client.numbers) == 1


async def test_what_ends_a_run_keeps_its_cause():
    """Whoever reads the error sees what was behind it."""

    def answer(question, number):
        raise AuthenticationError("refused", cause=ValueError("the key has a space in it"))

    with pytest.raises(AuthenticationError) as raised:
        await environment().evaluate(FunctionClient(answer), "m")
    assert isinstance(raised.value.__cause__, ValueError)


async def test_only_the_failed_rollout_is_tried_again(monkeypatch):
    """A retryable failure is played again; the record keeps the earlier error; the others are played once."""
    monkeypatch.setattr(retries.RetryPolicy, "delay", lambda *_: 0.0)
    seen = []

    def answer(question, number):
        seen.append(question)
        return EndpointUnavailableError("gone") if question == "q1" and seen.count("q1") < 3 else question

    results = await environment(n=3).evaluate(FunctionClient(answer), "m", max_retries=2)
    assert results.reward == [1.0, 1.0, 1.0]
    assert [len(output.attempts) for output in results.outputs] == [0, 2, 0]
    assert results.outputs[1].attempts[0]["error"] == "EndpointUnavailableError"
    assert sorted(seen) == ["q0", "q1", "q1", "q1", "q2"]


async def test_a_prompt_too_long_is_a_failure_first_and_a_truncation_later():
    """Before any reply there is nothing to score; after one the rollout is truncated and scored."""

    class Talk(MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return "go on"

    def answer(question, number):
        return OverlongPromptError("too long") if number == 1 or question == "q1" else question

    env = Talk(dataset=questions(2), max_turns=3, rubric=Rubric(funcs=[lambda completion: 1.0]))
    results = await env.evaluate(FunctionClient(answer), "m", max_concurrent=1)
    assert outcomes(results) == ["truncated", "failed"]
    assert results.reward == [1.0, None]
    assert [output.stop_condition for output in results.outputs] == ["prompt_too_long", "has_error"]
    assert results.outputs[1].error["kind"] == "limit"


@pytest.mark.parametrize("limit", [1, 3, 16])
async def test_the_concurrency_asked_for_is_the_number_of_rollouts_in_flight(limit):
    """Groups of four do not divide it (the 0.1 series counted groups)."""
    client = FunctionClient(lambda question, number: asyncio.sleep(0.01, question))
    results = await environment(n=8).evaluate(client, "m", rollouts_per_example=4, max_concurrent=limit)
    assert client.most == limit and len(results.outputs) == 32


async def test_scoring_has_its_own_limit_and_overlaps_generation():
    """With one scoring place rollouts are scored one at a time, while others are generated."""
    running, most, overlapped = 0, 0, False
    client = FunctionClient(lambda question, number: asyncio.sleep(0.005, question))

    async def slow():
        nonlocal running, most, overlapped
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        overlapped |= client.running > 0
        running -= 1
        return 1.0

    await environment([slow], n=8).evaluate(client, "m", max_concurrent=2, max_concurrent_scoring=1)
    assert most == 1 and overlapped


async def test_group_functions_see_the_whole_group_and_failed_members_leave_its_mean():
    """A group function gets the valid members only; advantages are relative to their mean."""

    def ranks(completions) -> list[float]:
        return [float(number) for number in range(len(completions))]

    def answer(question, number):
        return ModelError("broken") if number == 1 else question

    env = environment([ranks], n=1)
    results = await env.evaluate(
        FunctionClient(answer), "m", rollouts_per_example=3, max_concurrent=1, state_columns=["advantage"]
    )
    assert results.reward == [0.0, None, 1.0]
    assert [output["advantage"] for output in results.outputs] == [-0.5, None, 0.5]


async def test_independent_scoring_refuses_group_functions():
    """They need the group, so the run does not even start."""

    def ranks(completions) -> list[float]:
        return [0.0] * len(completions)

    client = FunctionClient()
    with pytest.raises(RewardError, match="whole group"):
        await environment([ranks]).evaluate(client, "m", independent_scoring=True)
    assert next(client.numbers) == 0


async def test_ids_do_not_depend_on_the_order_of_completion():
    """The same rows and seed give the same rollout ids in every run; another seed gives others."""

    async def run(seed, delay):
        client = FunctionClient(lambda question, number: asyncio.sleep(delay(number), question))
        results = await environment(n=3).evaluate(client, "m", rollouts_per_example=2, seed=seed)
        return [(output.task_id, output.rollout_id, output.rollout_index) for output in results.outputs]

    first = await run(1, lambda number: 0.001 * number)
    assert first == await run(1, lambda number: 0.006 - 0.001 * number)
    assert len({rollout for _, rollout, _ in first}) == 6
    assert {rollout for _, rollout, _ in first}.isdisjoint(rollout for _, rollout, _ in await run(2, lambda _: 0))


async def test_cancellation_runs_the_cleanup_of_everything_in_flight():
    """Cleanup handlers finish even if the run is cancelled twice; finished rollouts are not cleaned again."""
    started, cleaned = asyncio.Event(), []

    class Held(MultiTurnEnv):
        @cleanup
        async def release(self, state):
            await asyncio.sleep(0.01)
            cleaned.append(state["example_id"])

    async def hang(question):
        started.set()
        await asyncio.sleep(60)

    env = Held(dataset=questions(2), max_turns=1, rubric=Rubric())
    task = asyncio.create_task(env.evaluate(FunctionClient(lambda question, number: hang(question)), "m"))
    await started.wait()
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(cleaned) == [0, 1]


async def test_a_raising_cleanup_is_recorded_and_the_next_one_runs():
    """The rollout keeps its score."""
    ran = []

    class Messy(MultiTurnEnv):
        @cleanup(priority=2)
        async def first(self, state):
            raise OSError("disk")

        @cleanup(priority=1)
        def second(self, state):
            ran.append(state["example_id"])

    env = Messy(dataset=questions(1), max_turns=1, rubric=Rubric(funcs=[lambda completion: 1.0]))
    results = await env.evaluate(FunctionClient(), "m")
    assert ran == [0] and results.reward == [1.0]
    assert results.outputs[0]["cleanup_errors"][0]["handler"] == "first"


async def test_a_rollout_out_of_time_is_scored_if_it_has_a_reply():
    """`timeout_seconds` ends the turns, not the score; without any reply it is a failure."""

    class Talk(MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return "go on"

    def answer(question, number):
        return asyncio.sleep(60) if question in ("go on", "q1") else question

    env = Talk(dataset=questions(2), timeout_seconds=0.05, rubric=Rubric(funcs=[lambda completion: 1.0]))
    results = await env.evaluate(FunctionClient(answer), "m")
    assert [output.stop_condition for output in results.outputs] == ["timeout_reached", "timeout_reached"]
    assert outcomes(results) == ["ok", "failed"] and not results.outputs[0].is_truncated


async def test_a_run_and_its_group_calls_give_the_same_records():
    """`run_group` and `run_rollout` play and score like `evaluate`."""
    env = environment(n=2)
    rows = [dict(env.get_dataset()[0])] * 2
    records = await env.run_group(rows, FunctionClient(), "m")
    assert [record["reward"] for record in records] == [1.0, 1.0]
    assert len({record["rollout_id"] for record in records}) == 2
    assert (await env.run_rollout(rows[0], FunctionClient(), "m"))["reward"] == 1.0


def test_sync_calls_work_outside_and_inside_a_running_loop():
    """`evaluate_sync` is usable from a script and from a notebook's loop (verifiers#155)."""
    env = environment(n=1)
    assert env.evaluate_sync(FunctionClient(), "m").reward == [1.0]

    async def notebook():
        return env.generate_sync(env.get_dataset(), FunctionClient(), "m").reward

    assert asyncio.run(notebook()) == [1.0]


async def test_only_marked_methods_are_hooks_and_each_is_called_once():
    """A mock on an environment is no stop condition; a handler on the instance replaces that of its class."""
    ran = []

    class Env(MultiTurnEnv):
        @cleanup
        def release(self, state):
            ran.append("class")

    env = Env(dataset=questions(1), max_turns=1, rubric=Rubric(funcs=[lambda completion: 1.0]))
    env.client = MagicMock()
    env.release = cleanup(lambda state: ran.append("instance"))
    results = await env.evaluate(FunctionClient(), "m")
    assert results.outputs[0].stop_condition == "max_turns_reached" and ran == ["instance"]


@pytest.mark.parametrize("scoring_places", [1, 2])
async def test_cancelling_while_scoring_cleans_up_after_every_finished_rollout(scoring_places):
    """The rubric's cleanup runs for a rollout that is being scored, and for one that waits for its turn."""
    scoring, cleaned = asyncio.Event(), []

    class Slow(Rubric):
        @cleanup
        async def release(self, state):
            cleaned.append(state["example_id"])

    async def slow():
        scoring.set()
        await asyncio.sleep(60)

    env = environment(n=2)
    env.rubric = Slow(funcs=[slow])
    run = env.evaluate(FunctionClient(), "m", max_concurrent=2, max_concurrent_scoring=scoring_places)
    task = asyncio.create_task(run)
    await scoring.wait()
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(cleaned) == [0, 1]


@pytest.mark.parametrize("answer", [0, 0.0, False, 1, "", "0", None], ids=repr)
async def test_an_answer_of_zero_is_saved(answer):
    """It is an answer like any other, and who scores the record again needs it."""
    env = environment([lambda: 1.0], n=1)
    row = {**env.get_dataset()[0], "answer": answer}
    [output] = (await env.generate([row], FunctionClient(), "m")).outputs
    saved = from_json(encode_record(output))
    assert ("answer" in saved) == (answer is not None and answer != "")
    assert task_of(saved).get("answer", answer) == answer
    assert ("answer" in task_of(saved)) == ("answer" in saved)


@pytest.mark.parametrize("ending", ["in order", "in reverse", "cancelled"])
async def test_the_interpreter_is_tuned_for_as_long_as_any_rollout_is_played(ending):
    """Plays overlap, as a trainer's do: none that ends takes the setting from the others; the last one puts it back."""
    before, env, gates = (gc.get_threshold(), sys.getswitchinterval()), environment(n=3), {}
    playing = asyncio.Event()

    def answer(question, number):
        gates[question] = asyncio.Event()
        if len(gates) == 3:
            playing.set()
        return gates[question].wait()

    engine, rows = Engine(env, FunctionClient(answer), "m"), env.get_dataset()
    plan = plan_rollouts(rows)
    plays = [asyncio.create_task(engine.play(rows, [one], lambda record, state: None)) for one in plan]
    await playing.wait()
    tuned = (gc.get_threshold(), sys.getswitchinterval())
    assert tuned != before
    for number in [2, 1, 0] if ending == "in reverse" else [0, 1, 2]:
        assert (gc.get_threshold(), sys.getswitchinterval()) == tuned
        plays[number].cancel() if ending == "cancelled" else gates[f"q{number}"].set()
        await asyncio.wait({plays[number]})
    assert (gc.get_threshold(), sys.getswitchinterval()) == before


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("raises", [False, True])
async def test_what_is_shielded_comes_to_its_end_and_swallows_no_cancellation(raises, cancelled):
    """A cancellation comes out also where the shielded work raised: whoever cancelled waits for it."""
    gate, ended = asyncio.Event(), []

    async def work():
        await gate.wait()
        ended.append(True)
        if raises:
            raise ValueError("broken")

    task = asyncio.create_task(shielded(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    if cancelled:
        task.cancel()
        await asyncio.sleep(0)
    gate.set()
    await asyncio.wait({task})
    assert ended and task.cancelled() == cancelled
    if not cancelled:
        assert isinstance(task.exception(), ValueError) == raises


@pytest.mark.parametrize("ids", [[1, 0], [None, 3], ["b", 2], ["b", "a"], [None, None]], ids=repr)
async def test_whatever_number_a_row_has_its_rollout_is_not_lost(ids):
    """Rows that a caller made come back numbers first, then by text."""
    env = environment(n=2)
    rows = [{**row, "example_id": example_id} for row, example_id in zip(env.get_dataset(), ids, strict=True)]
    results = await env.generate(rows, FunctionClient(), "m")
    expected = sorted(ids, key=lambda one: (not isinstance(one, int), one if isinstance(one, int) else str(one)))
    assert [output["example_id"] for output in results.outputs] == expected
    assert results.reward == [1.0, 1.0]
