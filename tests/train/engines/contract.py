"""What every sampler must do, whatever runs behind it: one suite for all.

    class TestMine(SamplerContract):
        @pytest.fixture
        async def sampler(self): ...        # serves `tiny_model("qwen2", seed=0)` as version 0, context CONTEXT

`other_weights` are those of `tiny_model("qwen2", seed=1)`, in a form that the sampler's `update_weights` takes.
"""

from __future__ import annotations

import asyncio
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.tiny_model import END, START, save_tiny, tiny_model
from verifiers.clients.sampler import Completion, Sampler
from verifiers.errors import ConfigError, OverlongPromptError
from verifiers.train.learner import Weights

CONTEXT = 128
PROMPT = [START, *b"user\nhello"]
PARAMS = {"temperature": 0.8, "max_tokens": 12, "seed": 7, "ignore_eos": True}


@cache
def reference(seed: int) -> Any:
    """The model itself, run without an engine."""
    return tiny_model(seed=seed).eval()


def logprobs_of(model: Any, prompt: list[int], tokens: list[int], temperature: float = 1.0) -> list[float]:
    """Logprobs of `tokens` after `prompt`, from one plain forward pass."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0].float() / temperature
    following = torch.log_softmax(logits, dim=-1)[len(prompt) - 1 : -1]
    values: list[float] = following.gather(1, torch.tensor(tokens)[:, None])[:, 0].tolist()
    return values


async def started(sampler: Sampler, params: dict[str, Any]) -> asyncio.Task[Completion]:
    """A long request that has certainly begun: one that came later has ended."""
    task = asyncio.ensure_future(sampler.generate(PROMPT, params))
    await sampler.generate([1, 2, 3], {"max_tokens": 2})
    return task


class SamplerContract:
    """Inherit, and give the fixture `sampler`."""

    tolerance = 1e-5

    @pytest.fixture
    def other_weights(self, tmp_path: Path) -> Weights:
        return Weights(version=1, folder=save_tiny(tmp_path / "other", seed=1))

    async def test_logprobs_are_those_of_the_model(self, sampler: Sampler) -> None:
        """The logprobs of what was sampled equal a plain forward pass of the model, at the temperature asked for."""
        completion = await sampler.generate(PROMPT, PARAMS)
        assert len(completion.tokens) == len(completion.logprobs) == len(completion.versions) == 12
        expected = logprobs_of(reference(0), PROMPT, completion.tokens, 0.8)
        assert completion.logprobs == pytest.approx(expected, abs=self.tolerance)
        assert set(completion.versions) == {0}
        assert completion.finish_reason == "length"

    async def test_a_seed_gives_the_same_reply_in_any_company(self, sampler: Sampler) -> None:
        """The tokens of a request with a seed are the same alone and beside others, and other seeds give others."""
        alone = await sampler.generate(PROMPT, PARAMS)
        prompts = [PROMPT, PROMPT, [1, 2, 3], PROMPT * 3, PROMPT]
        seeds = [7, 8, 7, 9, 7]
        together = await asyncio.gather(
            *(sampler.generate(ids, {**PARAMS, "seed": seed}) for ids, seed in zip(prompts, seeds, strict=True))
        )
        assert together[0].tokens == together[4].tokens == alone.tokens
        assert together[0].logprobs == pytest.approx(alone.logprobs, abs=self.tolerance)
        assert together[1].tokens != alone.tokens

    async def test_a_reply_ends_at_its_stop_token(self, sampler: Sampler) -> None:
        """A token of `stop_token_ids` ends the reply, belongs to it, and is the reason."""
        free = await sampler.generate(PROMPT, PARAMS)
        stop = free.tokens[5]
        stopped = await sampler.generate(PROMPT, {**PARAMS, "stop_token_ids": [stop]})
        assert stopped.tokens == free.tokens[: free.tokens.index(stop) + 1]
        assert stopped.finish_reason == "stop"

    async def test_greedy_takes_the_likeliest(self, sampler: Sampler) -> None:
        """At temperature 0 every token is the model's first choice, with its logprob at temperature 1."""
        completion = await sampler.generate(PROMPT, {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True})
        with torch.inference_mode():
            logits = reference(0)(input_ids=torch.tensor([PROMPT + completion.tokens])).logits[0]
        assert completion.tokens == logits[len(PROMPT) - 1 : -1].argmax(dim=-1).tolist()
        expected = logprobs_of(reference(0), PROMPT, completion.tokens)
        assert completion.logprobs == pytest.approx(expected, abs=self.tolerance)

    async def test_score_is_the_models(self, sampler: Sampler) -> None:
        """`score` gives one logprob a token, 0 for the first, those of the model for the others."""
        scores = await sampler.score(PROMPT)
        assert scores[0] == 0.0
        assert scores[1:] == pytest.approx(logprobs_of(reference(0), PROMPT[:1], PROMPT[1:]), abs=self.tolerance)

    async def test_a_pause_keeps_what_runs(self, sampler: Sampler) -> None:
        """Nothing ends while paused; what ran goes on as if nothing had been, and new requests wait."""
        undisturbed = await sampler.generate(PROMPT, {**PARAMS, "max_tokens": 60})
        running = await started(sampler, {**PARAMS, "max_tokens": 60})
        await sampler.pause()
        waiting = asyncio.ensure_future(sampler.generate(PROMPT, PARAMS))
        done, _ = await asyncio.wait([running, waiting], timeout=0.2)
        assert waiting not in done
        await sampler.resume()
        assert (await running).tokens == undisturbed.tokens
        assert (await waiting).tokens == undisturbed.tokens[:12]

    async def test_new_weights_name_their_version(self, sampler: Sampler, other_weights: Weights) -> None:
        """After `update_weights` replies come from the new weights, and say so."""
        await sampler.pause()
        await sampler.update_weights(other_weights, 5)
        await sampler.resume()
        assert sampler.info().version == 5
        completion = await sampler.generate(PROMPT, PARAMS)
        assert set(completion.versions) == {5}
        expected = logprobs_of(reference(1), PROMPT, completion.tokens, 0.8)
        assert completion.logprobs == pytest.approx(expected, abs=self.tolerance)

    async def test_what_samples_from_less_than_the_policy_is_refused(self, sampler: Sampler) -> None:
        """Truncated sampling and penalties are ConfigErrors: their logprobs are not the policy's."""
        for refused in ({"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.1}, {"repetition_penalty": 1.1}):
            with pytest.raises(ConfigError):
                await sampler.generate(PROMPT, {**PARAMS, **refused})

    async def test_a_prompt_that_does_not_fit_is_refused(self, sampler: Sampler) -> None:
        """A prompt as long as the context is an OverlongPromptError, and the sampler goes on."""
        with pytest.raises(OverlongPromptError):
            await sampler.generate([1] * (CONTEXT + 1), PARAMS)
        assert len((await sampler.generate(PROMPT, PARAMS)).tokens) == 12

    async def test_a_cancelled_request_harms_nobody(self, sampler: Sampler) -> None:
        """A request that is given up leaves the others as they are."""
        undisturbed = await sampler.generate(PROMPT, PARAMS)
        given_up = [await started(sampler, {**PARAMS, "max_tokens": 100}) for _ in range(3)]
        kept = asyncio.ensure_future(sampler.generate(PROMPT, PARAMS))
        for task in given_up:
            task.cancel()
        assert (await kept).tokens == undisturbed.tokens
        ended = await asyncio.gather(*given_up, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError | Completion) for end in ended)

    async def test_it_says_what_it_serves(self, sampler: Sampler) -> None:
        """`info` tells vocabulary, context and version."""
        info = sampler.info()
        assert (info.vocabulary, info.context, info.version) == (259, CONTEXT, 0)
        assert info.model
        assert math.isfinite(sum((await sampler.generate([END], {"max_tokens": 1})).logprobs))
