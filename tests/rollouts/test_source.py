"""The source of a trainer's rollouts: every group is reported exactly once, with all its members, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter

import pytest
from hypothesis import given, settings, strategies as st

from tests.support.play import FunctionClient, echo, environment
from verifiers.decorators import cleanup
from verifiers.envs.singleturn_env import SingleTurnEnv
from verifiers.errors import AuthenticationError, ConfigError, InvalidTaskError, ModelError, RewardError
from verifiers.rollouts.engine import Engine, EngineOptions
from verifiers.rollouts.source import GroupSource, RolloutRequest
from verifiers.rubrics.rubric import Rubric
from verifiers.types import Outcome


def source_of(client=None, env=None, options=None, **limits):
    """A source over engines, one for each request, with its sampling arguments."""
    env = env if env is not None else environment(n=4)
    client = client if client is not None else FunctionClient()

    def player_for(request):
        return Engine(env, client, "m", request.sampling, options or EngineOptions())

    return GroupSource(env.get_dataset(), player_for, **limits)


def request(source, task=0, group="g", n=2, **fields):
    return RolloutRequest(source.task_ids[task], group, n, **fields)


async def collected(source):
    """Close the source and take what is left."""
    await source.close()
    return [result async for result in source.results()]


def outcomes(result):
    return [str(member.outcome) for member in result.members]


async def in_flight(source, rollouts):
    """Returns once so many are unfinished."""
    for _ in itertools.count():
        if (await source.health()).rollouts == rollouts:
            return
        await asyncio.sleep(0.001)


async def first(source):
    return await anext(source.results())


async def test_groups_are_played_and_reported_with_their_records():
    """All members in order, with the ids that seed and task decide."""
    source = source_of()
    for number in range(3):
        await source.submit(request(source, number, f"g{number}", 3, seed=number))
    results = [await first(source) for _ in range(3)]
    assert {result.request.group_id for result in results} == {"g0", "g1", "g2"}
    for result in results:
        assert [member.rollout_index for member in result.members] == [0, 1, 2]
        assert [member.record["reward"] for member in result.valid] == [1.0] * 3
    await source.submit(request(source, 0, "again", 3, seed=0))
    again = await first(source)
    (before,) = [result for result in results if result.request.group_id == "g0"]
    assert [one.rollout_id for one in again.members] == [one.rollout_id for one in before.members]
    health = await source.health()
    assert health.reported == 4 and health.outcomes == {"ok": 12} and health.rollouts == 0
    assert await collected(source) == []


async def test_one_failed_member_does_not_fail_its_group():
    """Its error is named; the others keep their rewards."""
    client = FunctionClient(lambda question, number: ModelError("refused") if number == 1 else question)
    source = source_of(client)
    await source.submit(request(source, n=4))
    result = await first(source)
    assert sorted(outcomes(result)) == ["failed", "ok", "ok", "ok"] and len(result.valid) == 3
    (failed,) = [member for member in result.members if member.outcome is Outcome.FAILED]
    assert failed.error["error"] == "ModelError" and failed.record["reward"] is None


async def test_what_ends_a_play_ends_one_group_only():
    """A raising reward function under "raise" is told of each member; the next group is played."""

    def raises(completion, answer):
        if answer == "q0":
            raise ValueError("no")
        return 1.0

    source = source_of(env=environment((raises,), on_reward_error="raise"))
    await source.submit(request(source, 0, "bad"))
    await source.submit(request(source, 1, "good"))
    results = {result.request.group_id: result for result in [await first(source), await first(source)]}
    assert outcomes(results["good"]) == ["ok", "ok"] and outcomes(results["bad"]) == ["failed", "failed"]
    assert results["bad"].members[0].error["error"] == RewardError.__name__


async def test_a_refused_key_is_told_by_health_and_by_the_next_submit():
    """Every further group would fail alike."""
    source = source_of(FunctionClient(lambda question, number: AuthenticationError("401")))
    await source.submit(request(source))
    assert outcomes(await first(source)) == ["failed", "failed"]
    assert isinstance((await source.health()).error, AuthenticationError)
    with pytest.raises(AuthenticationError):
        await source.submit(request(source, 1, "next"))


class Held(SingleTurnEnv):
    """Rollouts whose answer is `hold` wait until they are cancelled."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.cleaned = 0

    @cleanup
    async def count(self, state):
        self.cleaned += 1


def held():
    """An environment of one task, and a client that answers every second call only."""

    async def wait():
        await asyncio.sleep(3600)

    env = Held(dataset=[{"question": "q", "answer": "q"}], rubric=Rubric(funcs=[echo]))
    return env, FunctionClient(lambda question, number: wait() if number % 2 else question)


async def test_a_straggler_is_cut_off_and_the_others_are_reported():
    """With its cleanup; what stopped it is named."""
    env, client = held()
    source = source_of(client, env, straggler_seconds=0.2)
    await source.submit(request(source, n=4))
    result = await first(source)
    assert sorted(outcomes(result)) == ["cancelled", "cancelled", "ok", "ok"] and env.cleaned == 4
    cut = next(member for member in result.members if member.outcome is Outcome.CANCELLED)
    assert cut.record is None and cut.error["error"] == "LimitError" and "0.2 s" in cut.error["message"]


async def test_records_with_turns_need_not_wait_for_a_straggler():
    """Training takes the turns of each rollout as it ends; its steps get no reward that only the group decides."""
    env, client = held()
    options = EngineOptions(state_columns=("trajectory",), whole_groups=False)
    source = source_of(client, env, options, straggler_seconds=0.2)
    await source.submit(request(source, n=4))
    result = await first(source)
    assert sorted(outcomes(result)) == ["cancelled", "cancelled", "ok", "ok"]
    assert [len(member.record["trajectory"]) for member in result.valid] == [1, 1]


async def test_code_that_swallows_its_cancellation_holds_up_neither_its_group_nor_the_end(monkeypatch, caplog):
    """It is reported as cut off, with what it had, and said to go on; closing the source leaves it behind, too."""
    monkeypatch.setattr("verifiers.rollouts.source.CLEANUP_GRACE_S", 0.05)
    given_up = asyncio.Event()

    async def stubborn(completion):
        while not given_up.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await given_up.wait()
        return 1.0

    env = SingleTurnEnv(dataset=[{"question": "q", "answer": "q"}], rubric=Rubric(funcs=[stubborn]))
    source = source_of(FunctionClient(), env, straggler_seconds=0.05)
    await source.submit(request(source, group="late"))
    result = await first(source)
    assert outcomes(result) == ["cancelled", "cancelled"] and result.members[0].error["error"] == "LimitError"
    assert "swallows its cancellation" in caplog.text
    await source.submit(request(source, group="closed"))
    await in_flight(source, 2)
    assert [outcomes(one) for one in await collected(source)] == [["cancelled", "cancelled"]]
    given_up.set()


async def test_groups_of_an_old_policy_and_of_a_cancelled_id_are_stopped():
    """They are reported with what they have; others go on."""
    env, client = held()
    source = source_of(client, env, max_lag=2)
    await source.submit(request(source, group="old", policy_version=1))
    await source.submit(request(source, group="new", policy_version=3))
    await in_flight(source, 2)
    await source.set_version(4)
    old = await first(source)
    assert old.request.group_id == "old" and old.version == 4
    assert sorted(outcomes(old)) == ["cancelled", "ok"]
    assert any("3 versions old" in member.error["message"] for member in old.members if member.error)
    assert await source.cancel("new") and not await source.cancel("old")
    assert sorted(outcomes(await first(source))) == ["cancelled", "ok"]


async def test_room_and_pause_hold_groups_back():
    """Submit waits for room among the rollouts in flight, and for resume; a large group is played alone."""
    env, client = held()
    source = source_of(client, env, max_rollouts=3)
    await source.submit(request(source, group="large", n=6))
    waiting = asyncio.create_task(source.submit(request(source, group="next", n=1)))
    await in_flight(source, 3)
    assert not waiting.done()
    await source.cancel("large")
    await waiting
    await source.pause()
    paused = asyncio.create_task(source.submit(request(source, group="paused", n=1)))
    await asyncio.sleep(0.01)
    assert not paused.done() and (await source.health()).paused
    await source.resume()
    await paused
    results = await collected(source)
    assert Counter(result.request.group_id for result in results) == {"large": 1, "next": 1, "paused": 1}


async def test_what_can_not_be_played_is_refused_before_it_is_taken():
    """An unknown task, a group without members, a group id in flight, a closed source."""
    env, client = held()
    source = source_of(client, env)
    with pytest.raises(ConfigError, match="no task 'absent'"):
        await source.submit(RolloutRequest("absent", "g"))
    with pytest.raises(ConfigError, match="at least one"):
        await source.submit(request(source, n=0))
    await source.submit(request(source))
    with pytest.raises(ConfigError, match="in flight"):
        await source.submit(request(source))
    assert len(await collected(source)) == 1
    with pytest.raises(ConfigError, match="closed"):
        await source.submit(request(source))


async def test_a_group_cancelled_before_its_first_step_is_reported():
    """Its task never ran."""
    source = source_of()
    await source.submit(request(source, n=3))
    assert await source.cancel("g")
    assert outcomes(await first(source)) == ["cancelled"] * 3


GROUPS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 4), st.sampled_from(["play", "cancel", "fail", "old"])), max_size=8
)


@given(groups=GROUPS, max_rollouts=st.integers(1, 6), closes_after=st.integers(0, 8))
@settings(max_examples=40)
def test_every_submitted_group_is_reported_exactly_once(groups, max_rollouts, closes_after):
    """Whatever is cancelled, fails, grows old, or is closed on the way."""

    async def scenario():
        def answer(question, number):
            return ModelError("refused") if number % 3 == 1 else question

        source = source_of(FunctionClient(answer), max_rollouts=max_rollouts, max_lag=0)
        asked, results = {}, []

        async def read():
            results.extend([result async for result in source.results()])

        reading = asyncio.create_task(read())
        for number, (task, n, fate) in enumerate(groups):
            if number == closes_after:
                break
            name = f"g{number}"
            version = (await source.health()).version
            await source.submit(request(source, task, name, n, seed=number, policy_version=version))
            asked[name] = n
            if fate == "cancel":
                await source.cancel(name)
            elif fate == "old":
                await source.set_version(version + 1)
        await source.close()
        await reading
        assert Counter(result.request.group_id for result in results) == dict.fromkeys(asked, 1)
        for result in results:
            assert [one.rollout_index for one in result.members] == list(range(asked[result.request.group_id]))
            assert all((one.outcome.is_scored) == (one in result.valid) for one in result.members)
            assert all(one.record["reward"] is not None for one in result.valid)
        health = await source.health()
        assert sum(health.outcomes.values()) == sum(asked.values()) and health.groups == 0

    asyncio.run(scenario())


async def test_an_unfit_task_is_told_apart_from_a_failure():
    """The environment raises InvalidTaskError: its rollouts have an outcome of their own, and no reward."""

    class Checking(SingleTurnEnv):
        async def setup_state(self, state):
            raise InvalidTaskError("its picture is missing")

    env = Checking(dataset=environment(n=2).get_dataset(), rubric=Rubric(funcs=[echo]))
    source = source_of(env=env)
    await source.submit(request(source))
    result = await first(source)
    assert outcomes(result) == ["invalid_task", "invalid_task"] and not result.valid
    assert result.members[0].error["message"] == "its picture is missing"
