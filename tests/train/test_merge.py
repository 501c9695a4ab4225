"""From rollouts to rows: what extends a row, why a row ends, what is refused and what is counted."""

import base64
import io
import math
from typing import Any

import numpy as np
import pytest

from tests.support.play import echo, questions
from verifiers.clients.routes import pack_routes
from verifiers.clients.scripted import ScriptedClient
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.envs.singleturn_env import SingleTurnEnv
from verifiers.errors import EvidenceError, InexactEvidenceError
from verifiers.evals.encoding import encode_record, from_json
from verifiers.rollouts.source import GroupResult, Member, RolloutRequest
from verifiers.rubrics.rubric import Rubric
from verifiers.train.evidence import Checks
from verifiers.train.groups import group_of
from verifiers.train.merge import MergeOptions, MergeReport, collect, rows_of
from verifiers.train.routes import routes_of
from verifiers.types import Outcome, State, UserMessage


def turn(prompt: list[int], completion: list[int], logprobs: list[float] | None = None, **fields: Any) -> Any:
    """A step of a trajectory with evidence; `said` and `asked` are its messages."""
    said = fields.pop("said", {"role": "assistant", "content": "a"})
    tokens = {
        "prompt_ids": prompt,
        "completion_ids": completion,
        "completion_logprobs": [-0.5] * len(completion) if logprobs is None else logprobs,
        "overlong_prompt": fields.pop("overlong", False),
        "is_truncated": fields.get("is_truncated", False),
    }
    for name in ("completion_versions", "routed_experts", "prompt_rebuilt"):
        if name in fields:
            tokens[name] = fields.pop(name)
    asked = fields.pop("asked", [{"role": "user", "content": "u"}])
    reason = fields.pop("finish_reason", "stop")
    return {
        "prompt": asked,
        "completion": [said],
        "response": {"message": {"finish_reason": reason}},
        "tokens": tokens,
        "is_truncated": False,
        **fields,
    }


def record(*turns: Any, **fields: Any) -> dict[str, Any]:
    """A scored record with these turns."""
    return {"outcome": "ok", "reward": 1.0, "rollout_id": "r", "task_id": "t", "trajectory": list(turns), **fields}


ROUTES = {**(pack_routes(np.zeros((2, 1, 2))) or {}), "start": 3}
"""A report on two tokens of a turn from its fourth on."""


# --- merging ----------------------------------------------------------------------------------------------------


def test_a_turn_that_continues_all_ids_extends_the_row() -> None:
    """Two turns become one row; what the template put between them is context; versions stay with their tokens."""
    first = turn([1, 2], [3, 4], [-0.1, -0.2], completion_versions=[7, 8], routed_experts=[[[0, 1]]] * 3)
    second = turn([1, 2, 3, 4, 5], [6], [-0.3], completion_versions=[9], routed_experts=ROUTES)
    (row,) = rows_of(record(first, second, stop_condition="done", metrics={"m": 2, "none": None}))
    assert row.tokens == [1, 2, 3, 4, 5, 6] and row.mask == [False, False, True, True, False, True]
    assert row.logprobs == [0, 0, -0.1, -0.2, 0, -0.3] and row.versions == [7, 7, 7, 8, 9, 9]
    assert (row.weight, row.reward, row.exactness, row.stop_reason) == (1.0, 1.0, "exact", "done")
    assert row.metrics == {"m": 2.0} and row.routed_experts == [[[[0, 1]]] * 3, ROUTES]
    assert (row.rollout_id, row.task_id, row.group_id) == ("r", "t", "t")


def test_a_divergence_begins_a_row() -> None:
    """Other ids for the same text: two rows, weighted by what each trains; the copy in the second is context."""
    first, second = rows_of(record(turn([1], [2, 3, 9]), turn([1, 23, 9, 5], [6])))
    assert first.tokens == [1, 2, 3, 9] and second.tokens == [1, 23, 9, 5, 6]
    assert second.mask == [False] * 4 + [True] and (first.weight, second.weight) == (0.75, 0.25)


def test_the_longest_row_is_extended() -> None:
    """Of two rows that a prompt continues, the longer one grows: it has more of the prompt in it."""
    rows = rows_of(record(turn([1], [2]), turn([1], [2, 3]), turn([1, 2, 3, 4], [5])))
    assert [row.tokens for row in rows] == [[1, 2], [1, 2, 3, 4, 5]]


USER, OTHER = {"role": "user", "content": "u"}, {"role": "user", "content": "v"}
THOUGHT = {"role": "assistant", "content": "<think>x</think>a"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "f", "arguments": "{}"}]}


@pytest.mark.parametrize(
    ("cause", "said", "asked", "prompt"),
    [
        ("context", CALL, [OTHER], [1, 2, 40]),
        ("template", CALL, None, [1, 40]),
        ("stop_token", CALL, None, [1, 2, 3, 4, 40]),
        ("thinking", THOUGHT, None, [1, 2, 3, 40]),
        ("tool_calls", CALL, None, [1, 2, 3, 40]),
        ("retokenised", {"role": "assistant", "content": "a"}, None, [1, 2, 34, 9]),
        ("branch", CALL, None, [1, 2]),
    ],
)
def test_breaks_are_counted_by_cause(cause: str, said: Any, asked: Any, prompt: list[int]) -> None:
    """Where the ids part, and whether the conversation was only continued, names the cause."""
    report = MergeReport()
    asked = [USER, said, OTHER] if asked is None else asked
    rows_of(record(turn([1, 2], [3, 4, 9], said=said, asked=[USER]), turn(prompt, [7], asked=asked)), report=report)
    assert dict(report.breaks) == {cause: 1}
    assert report.metrics()[f"rows/breaks/{cause}"] == 1.0 and report.metrics()["rows/break_rate"] == 1.0


def test_a_second_continuation_is_a_branch() -> None:
    """Two turns that continue the same end: the first extends the row, the second is a branch with shared context."""
    report = MergeReport()
    rows = rows_of(record(turn([1], [2]), turn([1, 2, 5], [6]), turn([1, 2, 7], [8])), report=report)
    assert [row.tokens for row in rows] == [[1, 2, 5, 6], [1, 2, 7, 8]]
    assert sum(row.trainable for row in rows) == 3 and dict(report.breaks) == {"branch": 1}
    assert report.duplicated == 2


def test_what_was_cut_to_the_sequence_length() -> None:
    """A cut reply is trained as far as it was kept and marks its row; an overlong prompt gives nothing, counted."""
    cut = turn([1, 2], [3], is_truncated=True, finish_reason="length")
    report = MergeReport()
    (row,) = rows_of(record(cut, turn([1, 2, 3], [], overlong=True, is_truncated=True)), report=report)
    assert row.tokens == [1, 2, 3] and row.truncated
    assert report.metrics()["rows/overlong_turns"] == 0.5 and report.metrics()["rows/truncated"] == 1.0


# --- outcomes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "invalid_task"])
def test_a_rollout_without_result_gives_no_rows(outcome: str) -> None:
    """It is counted under its outcome, whatever its turns hold."""
    report = MergeReport()
    assert rows_of(record(turn([1], [2]), outcome=outcome, reward=None), report=report) == []
    assert report.metrics() == {f"rows/none/{outcome}": 1.0}


def test_an_unscored_rollout_has_no_reward() -> None:
    """Its rows have the reward None and the kind of what failed; a record of v0 is read by reward and error."""
    errors = {"right": {"kind": "judge", "message": "down"}}
    (row,) = rows_of(record(turn([1], [2]), outcome="unscored", reward=None, scoring_errors=errors))
    assert row.reward is None and row.error_kind == "judge"
    old = {"reward": 0.5, "example_id": 3, "trajectory": [turn([1], [2])]}
    assert rows_of(old)[0].reward == 0.5 and rows_of(old)[0].task_id == "3"
    assert rows_of({**old, "error": {"error": "E"}}) == []


# --- refusals ---------------------------------------------------------------------------------------------------


def test_only_exact_evidence_is_trained_on() -> None:
    """Ids without logprobs are refused with what to do, and accepted when asked for, with NaN for the logprobs."""
    rollout = record(turn([1], [2]), turn([1, 2, 3], [4], []))
    with pytest.raises(InexactEvidenceError, match=r"turn 1 is labelled 'rendered'.*no logprobs") as caught:
        rows_of(rollout)
    assert "openai_chat_completions_token" in caught.value.hint and caught.value.attribution == "user"
    (row,) = rows_of(rollout, MergeOptions(accept="rendered"))
    assert row.exactness == "rendered" and math.isnan(row.logprobs[3]) and row.logprobs[1] == -0.5


def test_rebuilt_prompts_are_labelled() -> None:
    """Prompt ids that were made again from the messages are not the engine's."""
    with pytest.raises(InexactEvidenceError, match="prompt ids were rebuilt"):
        rows_of(record(turn([1], [2], prompt_rebuilt=True)))


@pytest.mark.parametrize(("prompt", "completion", "said"), [([], [2], "no prompt ids"), ([1], None, "no token ids")])
def test_turns_that_cannot_make_a_row(prompt: list[int], completion: Any, said: str) -> None:
    """Without prompt ids, or without any ids, nothing can be accepted."""
    step = turn(prompt, completion or [])
    if completion is None:
        step["tokens"] = None
    with pytest.raises(InexactEvidenceError, match=said):
        rows_of(record(step), MergeOptions(accept="rendered"))


def test_a_record_without_turns() -> None:
    """The error says how to save them."""
    with pytest.raises(EvidenceError, match="holds no turns") as caught:
        rows_of({"outcome": "ok", "reward": 1.0})
    assert "trajectory" in caught.value.hint


CHECKS = Checks(vocabulary=100, stop_ids={9})
ASKED = {"max_tokens": 3}


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (turn([1], [2, 9], [-0.1, math.inf]), "inf is no logprob"),
        (turn([1], [2, 9], [-0.1, -9999.0]), "-9999.0 is no logprob"),
        (turn([1], [2, 9], completion_versions=[1]), "1 versions for 2"),
        (turn([1], [100, 9]), "no id of the vocabulary"),
        (turn([-1], [9]), "no id of the vocabulary"),
        (turn([1], [2, 3, 4, 9]), "4 tokens where at most 3"),
        (turn([1], [2, 3]), "ended by 'stop', but not in a stop token"),
        (turn([1], [2, 3], finish_reason="length"), "not marked as truncated"),
    ],
)
def test_evidence_that_contradicts_itself(step: Any, said: str) -> None:
    """Each contradiction has its message; a sound turn passes."""
    rows_of(record(turn([1], [2, 9]), sampling_args=ASKED), MergeOptions(checks=CHECKS))
    with pytest.raises(EvidenceError, match=said):
        rows_of(record(step, sampling_args=ASKED), MergeOptions(checks=CHECKS))


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({**ROUTES, "start": 5}, "up to token 7 of 6"),
        ({**ROUTES, "start": -1}, "from token -1 on"),
        ({**ROUTES, "shape": [2, 2]}, r"is \[2, 2\]"),
        ({**ROUTES, "data": "AAAA"}, "cut short"),
        ([[0, 1]], "is \\(1, 2\\)"),
        ("no file", "no routes of experts"),
    ],
)
def test_routes_of_experts_that_are_none_cost_one_rollout(report: Any, said: str) -> None:
    """The trainer would find them, too, in the middle of a step."""
    with pytest.raises(EvidenceError, match=f"turn 0 contradicts itself.*{said}"):
        rows_of(record(turn([1, 2, 3, 4, 5], [6], routed_experts=report)))


def test_routes_of_experts_as_vllm_sends_them() -> None:
    """An .npy file as base64, on the chat route as on the token route."""
    file = io.BytesIO()
    np.save(file, np.arange(10, dtype=np.uint8).reshape(5, 1, 2))
    sent = base64.b64encode(file.getvalue()).decode()
    (row,) = rows_of(record(turn([1, 2, 3, 4, 5], [6], routed_experts=sent)))
    found = routes_of(row)
    assert found is not None and found.tolist() == [[[2 * at, 2 * at + 1]] for at in range(5)] + [[[-1, -1]]]


def test_ids_that_say_something_else() -> None:
    """Where the ids are decoded, the text must hold the message that was delivered."""
    said = {"role": "assistant", "content": "b"}
    options = MergeOptions(checks=Checks(decode=lambda ids: "".join(map(chr, ids)), decode_share=1.0))
    assert rows_of(record(turn([1], [98], said=said)), options)
    with pytest.raises(EvidenceError, match="its ids say 'a'"):
        rows_of(record(turn([1], [97], said=said)), options)


def test_one_bad_rollout_fails_nobody_else() -> None:
    """It is left out and counted; only if nothing is left and evidence was refused does the error come out."""
    good, inexact = record(turn([1], [2])), record(turn([1], [2], []))
    broken = record(turn([1], [2], [5.0]))
    collected = collect([good, inexact, broken, record(outcome="failed", reward=None), record()])
    assert [row.tokens for row in collected.rows] == [[1, 2]] and len(collected.errors) == 2
    assert dict(collected.report.without_rows) == {"inexact": 1, "invalid": 1, "failed": 1, "empty": 1}
    assert collected.report.rollouts == 5 and collected.report.metrics()["rows/per_rollout"] == 1.0
    with pytest.raises(InexactEvidenceError):
        collect([broken, inexact])
    assert collect([broken]).rows == []


def test_a_group_counts_refused_members_as_a_collection_does() -> None:
    """Two names for one thing would be two figures; the members stay, without rows and with what was wrong."""
    played = [record(turn([1], [2])), record(turn([1], [2], [])), record(turn([1], [2], [5.0]))]
    members = [Member(f"r{number}", number, Outcome.OK, one) for number, one in enumerate(played)]  # type: ignore[arg-type]
    group = group_of(GroupResult(RolloutRequest("t", "g", 3), [*members, Member("r3", 3, Outcome.FAILED)]))
    assert dict(group.report.without_rows) == {"inexact": 1, "invalid": 1, "failed": 1}
    assert group.report.rollouts == 4 and [len(member.rows) for member in group.members] == [1, 0, 0, 0]
    assert "5.0 is no logprob" in str(group.members[2].error)


# --- real rollouts ----------------------------------------------------------------------------------------------


class Two(MultiTurnEnv):
    """Two turns."""

    async def env_response(self, messages, state, **kwargs):
        return [UserMessage("again")]


def replies(prompt: list[Any]) -> dict[str, Any]:
    """A reply with evidence whose prompt ids are those of the conversation."""
    ids = [len(message["content"]) for message in prompt]
    return {"content": "abc", "prompt_ids": ids, "completion_ids": [3], "completion_logprobs": [-0.25]}


async def test_a_live_state_and_its_saved_record_give_the_same_rows() -> None:
    """The engine's state, and the record saved with its turns and read back from JSON."""
    env = Two(max_turns=2, dataset=questions(1), rubric=Rubric(funcs=[lambda completion: 0.75]))
    results = await env.generate(
        env.get_dataset(), ScriptedClient(replies), "m", {"temperature": 1.0}, state_columns=["trajectory"]
    )
    (state,), (output,) = results.states, results.outputs
    assert isinstance(state, State)
    saved = from_json(encode_record(output))
    options = MergeOptions(sampling={"temperature": 1.0}, version=2)
    (live,), (read,) = rows_of(state, options), rows_of(saved, options)
    assert live.tokens == [2, 3, 5, 3] and live.mask == [False, True, False, True] and live.reward == 0.75
    assert read.rollout_id == live.rollout_id and len(read.rollout_id) == 32 and read.stop_reason == "max_turns_reached"
    assert read.task_id == live.task_id == output["task_id"]
    for name in ("tokens", "mask", "logprobs", "versions", "reward", "metrics", "sampling", "stop_reason"):
        assert getattr(read, name) == getattr(live, name)


async def test_a_failed_rollout_of_the_engine_gives_no_rows() -> None:
    """A model that fails leaves no reward and no rows."""
    env = SingleTurnEnv(dataset=questions(2), rubric=Rubric(funcs=[echo]))
    client = ScriptedClient([EvidenceError("made up"), replies([])])
    results = await env.generate(env.get_dataset(), client, "m", state_columns=["trajectory"])
    with pytest.raises(InexactEvidenceError):  # the other one's prompt is empty here
        collect(results.outputs)
    assert [output.reward for output in results.outputs].count(None) == 1
