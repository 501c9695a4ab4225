"""Any environment on our engine, in this process and through its server: exact evidence, one row a rollout."""

import copy
from contextlib import asynccontextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import END, PAD, tiny_tokenizer  # noqa: E402
from tests.support.training import TableSampler  # noqa: E402
from tests.train.engines.contract import logprobs_of  # noqa: E402
from tests.train.engines.taught import CALL, Talk, add, taught_model, tool_env  # noqa: E402
from verifiers.clients import wire  # noqa: E402
from verifiers.clients.client import as_client  # noqa: E402
from verifiers.clients.local import SamplerClient, TokenizerRenderer  # noqa: E402
from verifiers.envs.multiturn_env import MultiTurnEnv  # noqa: E402
from verifiers.envs.singleturn_env import SingleTurnEnv  # noqa: E402
from verifiers.errors import ConfigError, ModelError  # noqa: E402
from verifiers.rubrics.rubric import Rubric  # noqa: E402
from verifiers.train.engines.server import SamplerServer  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402
from verifiers.train.merge import MergeReport, rows_of  # noqa: E402
from verifiers.train.rows import Row  # noqa: E402
from verifiers.types import ClientConfig, UserMessage  # noqa: E402

pytestmark = pytest.mark.train

SAMPLING = {"max_tokens": 120, "temperature": 0.5, "seed": 1}
WAYS = ("local", "openai_chat_completions", "openai_chat_completions_token")


@asynccontextmanager
async def client_of(way: str, model: Any = None):
    """A client of the engine in this process, or through its server."""
    tokenizer = tiny_tokenizer()
    engine = TorchEngine(model or copy.deepcopy(taught_model()), max_batch=8, max_context=1024, decode=tokenizer.decode)
    renderer = TokenizerRenderer(tokenizer, 1024)
    server = SamplerServer(engine, renderer)
    if way == "local":
        client: Any = SamplerClient(engine, renderer)
    else:
        url = await server.start()
        client = as_client(ClientConfig(client_type=way, api_base_url=url + "/v1", api_key_var="NONE", max_retries=0))
    try:
        yield client
    finally:
        await client.close()
        await server.stop()
        await engine.close()


async def play(env: Any, client: Any, n: int = 2, **sampling: Any) -> tuple[list[list[Row]], MergeReport, list[Any]]:
    """The rows of some rollouts, how they merged, and the records."""
    played = await env.evaluate(
        client,
        "policy",
        sampling_args={**SAMPLING, **sampling},
        num_examples=1,
        rollouts_per_example=n,
        state_columns=["trajectory"],
    )
    report = MergeReport()
    return [rows_of(record, report=report) for record in played["outputs"]], report, played["outputs"]


def check(row: Row) -> None:
    """Its logprobs are the model's own, for exactly these ids."""
    assert row.exactness == "exact"
    expected = logprobs_of(taught_model(), row.tokens[:1], row.tokens[1:], SAMPLING["temperature"])
    for place, trained in enumerate(row.mask):
        if trained:
            assert row.logprobs[place] == pytest.approx(expected[place - 1], abs=2e-5)


@pytest.mark.parametrize("way", WAYS)
async def test_turns_make_one_row(way: str) -> None:
    """Three turns of talk become one row, id for id what the engine saw, with its versions."""
    async with client_of(way) as client:
        rolled, report, records = await play(Talk(), client)
    for rows, record in zip(rolled, records, strict=True):
        assert [message["content"] for message in record["completion"]][::2] == ["yo"] * 3
        assert len(rows) == 1
        check(rows[0])
        assert rows[0].trainable == 9
        assert set(rows[0].versions) == {0}
    assert report.breaks.total() == 0


@pytest.mark.parametrize("way", WAYS)
async def test_calls_of_tools_make_one_row(way: str) -> None:
    """A tool is called, its result read, and both replies are in one row."""
    async with client_of(way) as client:
        rolled, _, records = await play(tool_env(), client)
    for rows, record in zip(rolled, records, strict=True):
        assert record["reward"] == 1.0
        (call,) = record["completion"][0]["tool_calls"]
        assert (call["name"], record["completion"][1]["content"]) == (CALL["name"], str(add(2, 3)))
        assert len(rows) == 1
        check(rows[0])


LOOK = '{"name": "add", "arguments": {"a": 2, "b": 3}}'
HALF = tiny_tokenizer().encode("é")[:1]
RESPELLED = {
    "half a character": (HALF, f"<tool_call>\n{LOOK}\n</tool_call>"),
    "a special token": ([PAD], f"<tool_call>\n{LOOK}\n</tool_call>"),
    "space before a call": ([], f"well  \n\n<tool_call>\n{LOOK}\n</tool_call>"),
    "text behind a call": ([], f"<tool_call>\n{LOOK}\n</tool_call> done"),
    "no newline in a call": ([], f"<tool_call>{LOOK}</tool_call>"),
    "a call that is not closed": ([], f"<tool_call>\n{LOOK}"),
    "another order": ([], '<tool_call>\n{"arguments": {"b": 3,"a":2}, "name": "add"}\n</tool_call>'),
    "arguments as a text": ([], r'<tool_call>{"name": "add", "arguments": "{\"a\": 2, \"b\": 3}"}</tool_call>'),
    "an escape": ([], r'<tool_call>{"name": "\u0061dd", "arguments": {"a": 2, "b": 3}}</tool_call>'),
    "half a character alone": (HALF, "yo"),
}
"""Replies that the template would write otherwise than they were sampled: the first ids, and a text."""


async def play_reply(reply: list[int]) -> tuple[list[Row], Any, list[list[int]]]:
    """Two turns of this reply and more; the rows, how prompts were made, and those that a template would write."""
    renderer = TokenizerRenderer(tiny_tokenizer(), 1024)
    client = SamplerClient(TableSampler(lambda seed: reply), renderer)
    env = tool_env() if "<tool_call>" in renderer.decode(reply) else Talk()
    (rows,), _, (record,) = await play(env, client, n=1)
    tools = [wire.native_tool(tool) for tool in env.tool_defs] or None
    prompts = [[wire.native_message(message) for message in step["prompt"]] for step in record["trajectory"]]
    return rows, client.counts, [(await renderer.render(prompt, tools, {})).ids for prompt in prompts]


@pytest.mark.parametrize("case", RESPELLED)
async def test_what_a_template_would_spell_otherwise_stays_as_it_was_sampled(case: str) -> None:
    """Each prompt is what was sampled, id for id, and what is new; so all turns are one row."""
    first, text = RESPELLED[case]
    reply = [*first, *tiny_tokenizer().encode(text), END]
    rows, counts, rendered = await play_reply(reply)
    assert counts == {"first": 1, "continued": len(rendered) - 1}
    assert [row.trainable for row in rows] == [len(reply) * len(rendered)]
    assert rendered[1][: len(rendered[0]) + len(reply)] != rendered[0] + reply


async def test_another_end_than_the_template_s_begins_a_row() -> None:
    """What the model would be given behind an end token that no template writes is not known: it is rendered anew."""
    rows, counts, rendered = await play_reply([*tiny_tokenizer().encode("yo"), PAD])
    assert counts == {"first": 1, "rendered:stop": 2}
    assert [row.trainable for row in rows] == [3, 3, 3]
    assert [row.tokens[:-3] for row in rows] == rendered


async def test_the_ways_agree() -> None:
    """With the same seeds the same tokens come out in this process and through the server."""
    tokens = []
    for way in WAYS:
        async with client_of(way) as client:
            rolled, _, _ = await play(Talk(), client, n=3, temperature=1.0)
        tokens.append([row.tokens for rows in rolled for row in rows])
    assert tokens[0] == tokens[1] == tokens[2]


async def test_one_turn_and_a_limit() -> None:
    """A reply that the limit cut is truncated and still exact."""
    env = SingleTurnEnv(dataset=[{"question": "2+3?"}], rubric=Rubric(funcs=[lambda: 1.0]))
    async with client_of("local") as client:
        (rows, _), _, _ = await play(env, client, max_tokens=2, ignore_eos=True)
    assert rows[0].truncated
    assert rows[0].trainable == 2
    check(rows[0])


async def test_completion_mode_continues_a_text() -> None:
    """A text is continued as it is; the ids of a later text that continues it to the letter are those of the reply."""

    class Story(MultiTurnEnv):
        async def env_response(self, messages, state, **kwargs):
            return " and"

    env = Story(
        dataset=[{"prompt": "once", "answer": ""}],
        rubric=Rubric(funcs=[lambda: 1.0]),
        message_type="completion",
        max_turns=2,
    )
    async with client_of("local") as client:
        (rows,), _, (record,) = await play(env, client, n=1, max_tokens=5, ignore_eos=True)
    first, second = record["trajectory"]
    assert first["tokens"]["prompt_ids"] == tiny_tokenizer().encode("once", add_special_tokens=False)
    assert second["prompt"] == first["prompt"] + first["completion"] + " and"
    seen = first["tokens"]["prompt_ids"] + first["tokens"]["completion_ids"]
    assert second["tokens"]["prompt_ids"][: len(seen)] == seen
    assert [row.trainable for row in rows] == [10]
    check(rows[0])


async def test_an_empty_reply_is_trained_on() -> None:
    """A policy that ends at once has sampled one token, with a logprob, and no error."""
    async with client_of("local") as client:
        response = await client.get_response([UserMessage("2+3?")], "policy", {"max_tokens": 1, "temperature": 0.0})
        ended = await client.get_response([10, 11], "policy", {"max_tokens": 1, "stop_token_ids": list(range(259))})
    assert len(response["message"]["tokens"]["completion_ids"]) == 1
    assert ended["message"]["finish_reason"] == "stop"


async def test_a_tokenizer_without_a_template_is_told() -> None:
    """Chat needs a template; the error says so."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ModelError, match="template"):
        await TokenizerRenderer(tokenizer).render([{"role": "user", "content": "hi"}], None, {})


@pytest.mark.parametrize("cleans_up", [False, True])
def test_replies_are_decoded_as_the_tokenizer_decodes_them(cleans_up: bool) -> None:
    """With special tokens and without, a tokenizer with a way of its own included."""

    class Shouting(type(tiny_tokenizer())):  # type: ignore[misc]
        def _decode(self, *args: Any, **options: Any) -> str:
            return str(super()._decode(*args, **options)).upper()

    for cls in (type(tiny_tokenizer()), Shouting):
        tokenizer = cls(
            tokenizer_object=tiny_tokenizer().backend_tokenizer,
            eos_token="<|im_end|>",
            clean_up_tokenization_spaces=cleans_up,
        )
        ids = [*tokenizer.encode("an end . É"), END, 255, 196]
        for special in (False, True):
            text = tokenizer.decode(ids, skip_special_tokens=not special)
            assert TokenizerRenderer(tokenizer).decode(ids, special=special) == text
            assert text.startswith("AN END" if cls is Shouting else "an end")


async def test_what_the_sampler_does_not_know_is_refused() -> None:
    """Arguments of a chat route, pictures and unknown names are ConfigErrors with a hint."""
    async with client_of("local") as client:
        for refused in ({"response_format": {}}, {"tempreature": 1.0}, {"top_p": 0.5}):
            with pytest.raises(ConfigError):
                await client.get_response([UserMessage("hi")], "policy", refused)
        picture = {"type": "image_url", "image_url": {"url": "data:,"}}
        with pytest.raises(ConfigError, match="text only"):
            await client.get_response([{"role": "user", "content": [picture]}], "policy", {})
