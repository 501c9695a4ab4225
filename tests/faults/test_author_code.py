"""Author code that raises, returns nonsense or blocks: one named outcome for each rollout, and exact means.

`tests/rubrics` and `tests/rollouts` have each of these by itself; here they meet in one saved run.
"""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import suppress

import pytest

from tests.support.command import settled
from tests.support.play import FunctionClient, echo, questions
from verifiers.decorators import cleanup
from verifiers.envs import lifecycle
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.envs.singleturn_env import SingleTurnEnv
from verifiers.envs.tool_env import ToolEnv
from verifiers.errors import MissingKeyError
from verifiers.rubrics.rubric import Rubric
from verifiers.types import Response, ResponseMessage, ToolCall, Usage


@pytest.fixture
def never():
    """An event that nobody sets while the test runs; set at its end, so that its threads end."""
    event = threading.Event()
    yield event
    event.set()


BROKEN = {"q1": "raises", "q3": "nan", "q4": "text", "q6": "never"}


async def test_broken_rewards_leave_their_rollouts_unscored(tmp_path, never):
    """Raising, NaN, a text and never returning, each for one task of eight: the mean is over the other four."""

    def reward(completion, answer):
        match BROKEN.get(answer):
            case "raises":
                raise ValueError("author's mistake")
            case "nan":
                return math.nan
            case "text":
                return "0.5"
            case "never":
                never.wait()
        return 1.0 if answer in ("q0", "q2") else 0.0

    rubric = Rubric(funcs=[reward])
    rubric.reward_timeout = 0.3
    env = SingleTurnEnv(dataset=questions(8), rubric=rubric)
    await env.evaluate(FunctionClient(), "m", results_path=tmp_path)
    records = {record["prompt"][-1]["content"]: record for record in settled(tmp_path, 8)}
    unscored = {name for name, record in records.items() if record["outcome"] == "unscored"}
    assert unscored == set(BROKEN)
    assert {records[name]["error"]["error"] for name in unscored} == {"RewardError"}
    assert "author's mistake" in records["q1"]["error"]["message"]
    assert [records[f"q{n}"]["reward"] for n in (0, 2, 5, 7)] == [1.0, 1.0, 0.0, 0.0]


class Replies(MultiTurnEnv):
    """Says the same between its two turns; `over` names what it sets first."""

    reply: object = None
    over: tuple[str, object] | None = None

    async def env_response(self, messages, state, **kwargs):
        if self.over is not None:
            state[self.over[0]] = self.over[1]
        return self.reply


async def replied(reply, over=None):
    """The record of a rollout whose environment replies so."""
    env = Replies(dataset=questions(1), rubric=Rubric(funcs=[echo]), max_turns=2)
    env.reply, env.over = reply, over
    return (await env.evaluate(FunctionClient(), "m", save_results=False))["outputs"][0]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (None, "env_response returned None"),
        ((None, None), "env_response returned None"),
        (7, "not int"),
        ([7], "not int"),
        ([{"role": "narrator", "content": "Go on."}], "unknown message role 'narrator'"),
        ({"content": "Go on."}, "unknown message role None"),
        ([None], "not NoneType"),
    ],
    ids=["none", "none-and-state", "number", "list-of-number", "role", "no-role", "list-of-none"],
)
async def test_a_reply_that_is_none_fails_its_rollout(reply, told):
    """A forgotten `return`, and what is no message, are the environment's failure and no reward."""
    record = await replied(reply)
    assert (record["outcome"], record["reward"]) == ("failed", None)
    assert record["error"]["error"] == "EnvironmentCodeError"
    assert "env_response returned" in record["error"]["message"] and told in record["error"]["message"]


@pytest.mark.parametrize(
    ("reply", "over", "turns"),
    [
        ([], None, 2),
        ("Go on.", None, 2),
        ({"role": "user", "content": "Go on."}, None, 2),
        (None, ("final_env_response", "Over."), 1),
        (None, ("final_env_response", []), 1),
    ],
    ids=["empty", "text", "dict", "final", "final-empty"],
)
async def test_replies_that_may_be_short(reply, over, turns):
    """An empty list says nothing, a text or a dict is one message, and None is read after the end alone."""
    record = await replied(reply, over)
    assert record["error"] is None and record["reward"] is not None
    assert record["metrics"]["num_turns"] == turns


class Caller(FunctionClient):
    """Calls the tool `wait` in its first turn, then says what the tool said."""

    async def get_response(self, prompt, model, sampling_args, tools=None, **kwargs):
        if prompt[-1]["role"] == "tool":
            message = ResponseMessage(prompt[-1]["content"], finish_reason="stop")
        else:
            call = ToolCall("call_1", "wait", "{}")
            message = ResponseMessage("", tool_calls=[call], finish_reason="tool_calls")
        return Response("id", 0, model, message, Usage(2, 3))


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_tool_that_blocks_is_given_up_on(tmp_path, never, kind):
    """The model is told that the tool did not finish, and the rollout is scored."""

    def wait() -> str:
        """Wait for ever."""
        never.wait()
        return "done"

    async def wait_too() -> str:
        """Wait for ever."""
        await asyncio.Event().wait()
        return "done"

    wait_too.__name__ = "wait"

    def told(completion):
        return float("did not finish" in completion[-1]["content"])

    tool = wait if kind == "sync" else wait_too
    rubric = Rubric(funcs=[told])
    env = ToolEnv(tools=[tool], tool_timeout=0.3, dataset=questions(3), max_turns=3, rubric=rubric)
    await env.evaluate(Caller(), "m", results_path=tmp_path)
    assert [record["reward"] for record in settled(tmp_path, 3)] == [1.0, 1.0, 1.0]


class Untidy(SingleTurnEnv):
    """One of its cleanup handlers raises for one task, hangs for another, and for a third never ends."""

    cleaned: list[str]
    over: asyncio.Event

    @cleanup(priority=5)
    async def breaks(self, state):
        if state["answer"] == "q1":
            raise OSError("no such sandbox")
        if state["answer"] == "q2":
            await asyncio.Event().wait()
        while state["answer"] == "q3" and not self.over.is_set():
            with suppress(asyncio.CancelledError):
                await self.over.wait()

    @cleanup
    async def after(self, state):
        self.cleaned.append(state["answer"])


async def test_a_cleanup_that_raises_hangs_or_never_ends_costs_no_score(tmp_path, monkeypatch):
    """The rollouts keep their rewards, the failure is on their records, and the next handler runs."""
    monkeypatch.setattr(lifecycle, "CLEANUP_SECONDS", 0.3)
    monkeypatch.setattr(lifecycle, "GRACE_S", 0.3)
    env = Untidy(dataset=questions(4), rubric=Rubric(funcs=[echo]))
    env.cleaned, env.over = [], asyncio.Event()
    await env.evaluate(FunctionClient(), "m", results_path=tmp_path)
    records = {record["answer"]: record for record in settled(tmp_path, 4)}
    assert {record["reward"] for record in records.values()} == {1.0}
    assert sorted(env.cleaned) == ["q0", "q1", "q2", "q3"]
    damage = {name: record["cleanup_errors"] for name, record in records.items() if "cleanup_errors" in record}
    assert {name: errors[0]["handler"] for name, errors in damage.items()} == dict.fromkeys(
        ["q1", "q2", "q3"], "breaks"
    )
    env.over.set()


class Slow(MultiTurnEnv):
    """Its reply to a turn takes longer than the rollout may, and it reacts to being cancelled in some way."""

    def __init__(self, react, **kwargs):
        super().__init__(timeout_seconds=0.3, max_turns=3, rubric=Rubric(funcs=[lambda completion: 1.0]), **kwargs)
        self.react = react

    async def env_response(self, messages, state, **kwargs):
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.react()
        return "late"


def passes_on():
    raise asyncio.CancelledError


def raises():
    raise KeyError("while stopping")


REACTIONS = {
    "lets it through": (passes_on, "ok"),
    "goes on": (lambda: None, "ok"),
    "raises": (raises, "failed"),
}


@pytest.mark.parametrize(("react", "outcome"), REACTIONS.values(), ids=REACTIONS)
async def test_a_time_out_ends_the_rollout_whatever_the_environment_does(tmp_path, react, outcome):
    """It is scored with the turn it has; an exception on the way out is its failure."""
    await Slow(react, dataset=questions(3)).evaluate(FunctionClient(), "m", results_path=tmp_path)
    records = settled(tmp_path, 3)
    assert {record["outcome"] for record in records} == {outcome}
    assert {record["stop_condition"] for record in records} == {"timeout_reached"}


async def test_cancelling_a_run_cancels_rollouts_that_have_a_deadline():
    """Ctrl-C during a rollout with `timeout_seconds` runs its cleanup, and nothing goes on behind."""
    asked, cleaned = asyncio.Event(), []

    class Env(Slow):
        async def setup_state(self, state):
            asked.set()
            return await super().setup_state(state)

        @cleanup
        async def tidy(self, state):
            cleaned.append(state["answer"])

    env = Env(passes_on, dataset=questions(1))
    env.timeout_seconds = 3600
    task = asyncio.create_task(env.evaluate(FunctionClient(), "m"))
    await asked.wait()
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.all_tasks() == {asyncio.current_task()} and cleaned == ["q0"]


async def test_a_fatal_error_below_a_deadline_ends_the_run():
    """A missing key is no rollout's failure, also where the rollout is played in a task of its own."""

    class Env(Slow):
        async def setup_state(self, state):
            raise MissingKeyError("SOME_KEY")

    with pytest.raises(MissingKeyError):
        await Env(passes_on, dataset=questions(2)).evaluate(FunctionClient(), "m")
