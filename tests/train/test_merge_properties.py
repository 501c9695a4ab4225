"""Laws of the merge, over rollouts of an engine whose tokenizer and templates break token identity between turns."""

import json
from collections import Counter
from typing import Any

from hypothesis import given, strategies as st

from tests.support.fake_engine import TEMPLATES, VOCABULARY, FakeEngine, Sample, decode, encode
from verifiers.train.evidence import Checks
from verifiers.train.merge import MergeOptions, MergeReport, merge, rows_of, turns_of
from verifiers.train.rows import row_from_dict, row_to_dict
from verifiers.types import ResponseTokens

STOPS = set(encode("<|im_end|><|user|><|observation|>"))
moves = st.lists(st.sampled_from(["render", "verbatim", "prune", "restart", "branch"]), min_size=1, max_size=7)


def message_of(sample: Sample) -> dict[str, Any]:
    """The reply as a message."""
    text = decode([token for token in sample.completion if token not in STOPS])
    return {"role": "assistant", "content": text}


def step_of(prompt: list[Any], sample: Sample) -> dict[str, Any]:
    """The turn as it stands in a trajectory."""
    tokens = ResponseTokens(sample.prompt, sample.completion, sample.logprobs)
    cut = sample.finish_reason == "length"
    return {
        "prompt": prompt,
        "completion": [message_of(sample)],
        "response": {"message": {"finish_reason": sample.finish_reason}},
        "tokens": {**tokens, "overlong_prompt": False, "is_truncated": cut},
        "is_truncated": cut,
    }


def play(engine: FakeEngine, chosen: list[str]) -> dict[str, Any]:
    """A rollout: each move says how the next prompt comes about."""
    steps: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = [{"role": "user", "content": "ab"}]
    for number, move in enumerate(chosen):
        if steps and move == "branch":
            messages = [*steps[0]["prompt"], *steps[0]["completion"], {"role": "user", "content": f"b{number}"}]
        elif steps and move != "restart":
            past = steps[-1]["prompt"][2 * (move == "prune") :]
            messages = [*past, *steps[-1]["completion"], {"role": "user", "content": f"ba{number}"}]
        prompt = encode(engine.render(messages))
        if steps and move == "verbatim":
            tokens = steps[-1]["tokens"]
            prompt = tokens["prompt_ids"] + tokens["completion_ids"] + encode(f"\n<|im_start|>user\n{number}")
        steps.append(step_of(messages, engine.sample(prompt)))
    return {"outcome": "ok", "reward": 0.5, "trajectory": steps, "rollout_id": "r", "example_id": 0}


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[FakeEngine, dict[str, Any]]:
    """An engine and a rollout played on it."""
    template = draw(st.sampled_from(sorted(TEMPLATES)))
    engine = FakeEngine(template, draw(st.integers(0, 10**6)), kinds=("plain", "think", "cut"))
    return engine, play(engine, draw(moves))


@given(rollouts())
def test_every_sampled_token_is_trainable_exactly_once(played: tuple[FakeEngine, dict[str, Any]]) -> None:
    """The trainable (token, logprob) pairs of the rows are those that the engine sampled, each once."""
    engine, rollout = played
    rows = rows_of(rollout)
    trained = Counter(
        (token, logprob)
        for row in rows
        for token, flag, logprob in zip(row.tokens, row.mask, row.logprobs, strict=True)
        if flag
    )
    sampled = Counter(pair for call in engine.log for pair in zip(call.completion, call.logprobs, strict=True))
    assert trained == sampled


@given(rollouts())
def test_every_context_is_a_prompt_that_the_engine_saw(played: tuple[FakeEngine, dict[str, Any]]) -> None:
    """Before each sampled run of tokens a row holds exactly a logged prompt, and behind it that call's tokens."""
    engine, rollout = played
    logged = {(tuple(call.prompt), tuple(call.completion)) for call in engine.log}
    covered = set()
    for row in rows_of(rollout):
        begin = 0
        while begin < len(row.tokens):
            start = row.mask.index(True, begin)
            # A run may hold two calls only if the second's prompt added nothing, which these engines never do.
            end = next((i for i in range(start, len(row.mask)) if not row.mask[i]), len(row.mask))
            covered.add((tuple(row.tokens[:start]), tuple(row.tokens[start:end])))
            begin = end
    assert covered == logged


@given(rollouts())
def test_arrays_weights_and_json(played: tuple[FakeEngine, dict[str, Any]]) -> None:
    """Arrays have one length, the weights sum to 1 in the share of trainable tokens, JSON changes nothing."""
    rows = rows_of(played[1], MergeOptions(version=4))
    total = sum(row.trainable for row in rows)
    assert abs(sum(row.weight for row in rows) - 1) < 1e-9
    for row in rows:
        assert len(row.tokens) == len(row.mask) == len(row.logprobs) == len(row.versions)
        assert row.weight == row.trainable / total and set(row.versions) == {4}
        assert row_from_dict(json.loads(json.dumps(row_to_dict(row)))) == row


@given(rollouts())
def test_saved_and_merged_again(played: tuple[FakeEngine, dict[str, Any]]) -> None:
    """A record read back from JSON gives the same rows as before, as often as it is asked."""
    rollout = played[1]
    saved = json.loads(json.dumps(rollout))
    assert rows_of(saved) == rows_of(rollout) == rows_of(rollout)


@given(rollouts(), st.randoms(use_true_random=False))
def test_the_order_of_independent_turns_does_not_matter(
    played: tuple[FakeEngine, dict[str, Any]], random: Any
) -> None:
    """Turns in any order that keeps a turn behind those it continues: as many rows, the same tokens trained."""
    turns = turns_of(played[1])
    ends = [turn.prompt_ids + turn.completion_ids for turn in turns]
    waiting, shuffled = list(range(len(turns))), []
    while waiting:
        free = [
            i for i in waiting
            if not any(j != i and turns[i].prompt_ids[: len(ends[j])] == ends[j] for j in waiting)
        ]  # fmt: skip
        chosen = random.choice(free)
        waiting.remove(chosen)
        shuffled.append(turns[chosen])
    drafts, breaks = merge(turns)
    again, broken = merge(shuffled)
    assert len(again) == len(drafts) and len(broken) == len(breaks) == len(drafts) - 1
    assert sum(sum(draft.mask) for draft in again) == sum(sum(draft.mask) for draft in drafts)


@given(rollouts())
def test_the_report_adds_up(played: tuple[FakeEngine, dict[str, Any]]) -> None:
    """Each turn extended a row, began the first, or is a break with a cause; the engine's checks pass."""
    engine, rollout = played
    report = MergeReport()
    checks = Checks(vocabulary=VOCABULARY, stop_ids=STOPS, decode=decode, decode_share=1.0)
    rows = rows_of(rollout, MergeOptions(checks=checks), report=report)
    assert report.turns == len(engine.log) == report.extended + report.breaks.total() + 1
    assert report.rows == len(rows) == report.breaks.total() + 1
    assert report.tokens == sum(len(row.tokens) for row in rows)
    figures = report.metrics()
    assert 0 <= figures["rows/duplicate_context"] < 1 and figures["rows/per_rollout"] == len(rows)
    assert figures["rows/masked"] == (report.tokens - report.trainable) / report.tokens
