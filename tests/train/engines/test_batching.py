"""What requests share in a batch, and that none sees the others."""

import asyncio
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings, strategies as st  # noqa: E402

from tests.support.tiny_model import END, tiny_model  # noqa: E402
from tests.train.engines.contract import logprobs_of  # noqa: E402
from verifiers.clients.sampler import Completion  # noqa: E402
from verifiers.errors import ConfigError  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402

pytestmark = pytest.mark.train

PROMPTS = ([1, 2, 3], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], list(range(40)), [250] * 17)
KINDS = ("qwen2", "qwen3_moe")

plans = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 12), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=10
)
"""Requests: prompt, length, seed, and after how many turns of the loop it comes."""


async def play(engine: TorchEngine, plan: list[tuple[int, int, int, int]]) -> list[Completion]:
    """The completions of a plan, on an engine that steps on the loop."""

    async def one(prompt: int, length: int, seed: int, late: int) -> Completion:
        for _ in range(late):
            await asyncio.sleep(0)
        params = {"max_tokens": length, "seed": seed, "ignore_eos": True, "temperature": 1.3}
        return await engine.generate(PROMPTS[prompt], params)

    return list(await asyncio.gather(*(one(*request) for request in plan)))


def inline(kind: str = "qwen2", **options: Any) -> TorchEngine:
    """An engine on the loop."""
    return TorchEngine(
        tiny_model(kind), **{"max_batch": 4, "max_context": 64, "threaded": False, "stop_token_ids": [END], **options}
    )


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6)
@given(plan=plans)
def test_bits_do_not_depend_on_the_company(kind: str, plan: list[tuple[int, int, int, int]]) -> None:
    """A deterministic engine gives each request the tokens and the bits of the logprobs that it has alone, whatever
    joins and leaves meanwhile."""
    engine = inline(kind, deterministic=True)

    async def both() -> None:
        together = await play(engine, plan)
        for request, completion in zip(plan, together, strict=True):
            (alone,) = await play(engine, [request])
            assert completion.tokens == alone.tokens
            assert completion.logprobs == alone.logprobs

    asyncio.run(both())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=6)
@given(plan=plans)
def test_whatever_is_shared_logprobs_are_the_models(kind: str, plan: list[tuple[int, int, int, int]]) -> None:
    """Taking over beginnings of prompts, moving together and growing leave every logprob what the model says."""
    engine = inline(kind)
    model = tiny_model(kind).eval()
    for (prompt, *_), completion in zip(plan, asyncio.run(play(engine, plan)), strict=True):
        expected = logprobs_of(model, PROMPTS[prompt], completion.tokens, 1.3)
        assert completion.logprobs == pytest.approx(expected, abs=1e-5)


async def test_a_group_feeds_its_prompt_once() -> None:
    """Eight members with one prompt cost one pass over it."""
    engine = inline(max_batch=8)
    await asyncio.gather(*(engine.generate(list(range(40)), {"max_tokens": 2, "seed": seed}) for seed in range(8)))
    assert engine.load()["fed"] == 40


async def test_the_next_turn_feeds_only_what_is_new() -> None:
    """A prompt that continues an earlier reply takes over what is computed; not after new weights."""
    engine = inline()
    first = await engine.generate(list(range(40)), {"max_tokens": 5, "seed": 1, "ignore_eos": True})
    before = engine.load()["fed"]
    longer = [*range(40), *first.tokens, 7, 8]
    second = await engine.generate(longer, {"max_tokens": 2, "seed": 1, "ignore_eos": True})
    assert engine.load()["fed"] - before == 3  # the reply's last token was never fed
    assert second.logprobs == pytest.approx(logprobs_of(tiny_model().eval(), longer, second.tokens), abs=1e-5)
    await engine.update_weights(tiny_model(seed=1).state_dict(), 1)
    third = await engine.generate(longer, {"max_tokens": 2, "seed": 1, "ignore_eos": True})
    assert third.logprobs == pytest.approx(logprobs_of(tiny_model(seed=1).eval(), longer, third.tokens), abs=1e-5)


async def test_more_requests_than_places_wait_in_order() -> None:
    """With one place requests are answered one after another, all of them."""
    engine = inline(max_batch=1)
    ended: list[int] = []

    async def one(number: int) -> None:
        await engine.generate([number + 1], {"max_tokens": 3})
        ended.append(number)

    await asyncio.gather(*(one(number) for number in range(5)))
    assert ended == list(range(5))


@pytest.mark.parametrize("threaded", [True, False])
async def test_a_cancelled_request_frees_its_place(threaded: bool) -> None:
    """The only place is free again when the request that held it is given up."""
    engine = inline(max_batch=1, threaded=threaded, max_context=2000, stop_token_ids=[])
    long = asyncio.ensure_future(engine.generate([1], {}))
    while engine.load()["running"] == 0:  # noqa: ASYNC110 - the engine may be in another thread
        await asyncio.sleep(0.001)
    long.cancel()
    assert len((await engine.generate([2], {"max_tokens": 3})).tokens) == 3
    assert long.cancelled()
    assert engine.load()["running"] == 0
    await engine.close()


async def test_stop_texts_end_a_reply_across_tokens() -> None:
    """A text of several tokens ends the reply with the token that completes it."""
    from tests.support.tiny_model import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    engine = inline(decode=tokenizer.decode)
    free = await engine.generate([1, 2, 3], {"max_tokens": 40, "seed": 5, "ignore_eos": True})
    text = tokenizer.decode(free.tokens)
    stop = next(text[at : at + 2] for at in range(10, len(text)) if text[at : at + 2].isascii() and text[at + 1 :])
    ended = await engine.generate([1, 2, 3], {"max_tokens": 40, "seed": 5, "ignore_eos": True, "stop": stop})
    assert ended.finish_reason == "stop"
    assert ended.tokens == free.tokens[: len(ended.tokens)]
    said = tokenizer.decode(ended.tokens)
    assert stop in said
    assert stop not in tokenizer.decode(ended.tokens[:-1])


async def test_a_reply_fills_the_context_at_most() -> None:
    """Without a limit a reply ends with "length" where the context does, and a longer limit is cut to it."""
    engine = inline(max_context=16, stop_token_ids=[])
    for params in ({}, {"max_tokens": 1000}):
        completion = await engine.generate([1] * 10, params)
        assert (len(completion.tokens), completion.finish_reason) == (6, "length")


async def test_without_a_seed_the_engines_own_decides() -> None:
    """Requests without a seed differ from each other, and engines with the same seed agree."""
    replies = []
    for seed in (1, 1, 2):
        engine = inline(seed=seed)
        both = [await engine.generate([1, 2, 3], {"max_tokens": 8, "ignore_eos": True}) for _ in range(2)]
        replies.append([completion.tokens for completion in both])
    assert replies[0] == replies[1] != replies[2]
    assert replies[0][0] != replies[0][1]


async def test_turns_of_one_seed_are_not_alike() -> None:
    """A rollout asks every turn with its seed; the random numbers are others for each length of prompt."""
    engine = inline()
    prompts = ([1, 2, 3], [1, 2, 3, 4])
    drawn = []
    for prompt in prompts:
        sampled = await engine.generate(prompt, {"max_tokens": 8, "seed": 3, "ignore_eos": True, "temperature": 1e9})
        drawn.append(sampled.tokens)  # at this temperature tokens are the random numbers themselves
    assert drawn[0] != drawn[1]


async def test_prompts_that_are_none_are_refused() -> None:
    """No token, an id that the vocabulary does not have, stop texts without a tokenizer: ConfigErrors."""
    engine = inline()
    for prompt, params in (([], {}), ([259], {}), ([-1], {}), ([1], {"stop": "x"}), ([1], {"max_tokens": 0})):
        with pytest.raises(ConfigError):
            await engine.generate(prompt, params)
    with pytest.raises(ConfigError) as near:
        await engine.generate([1], {"temprature": 1.0})
    assert near.value.hint == "Did you mean temperature?"
