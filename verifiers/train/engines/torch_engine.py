"""`TorchEngine`: a sampler in this process, for any causal language model of transformers, on a CPU or a GPU.

    engine = TorchEngine(model, max_batch=32, max_context=1024, stop_token_ids=[tokenizer.eos_token_id])
    completion = await engine.generate([1, 2, 3], {"temperature": 0.7, "max_tokens": 64, "seed": 3})
    await engine.pause()                              # running requests stand still between two tokens
    await engine.update_weights(learner.weights(), 1) # between two tokens too, paused or not
    await engine.resume()

The model belongs to the engine: it is never the one that is being trained. Logprobs are the log-softmax of logits /
temperature over the whole vocabulary in float32; sampling arguments that would sample from anything else are refused.

Running requests keep the keys and values that the weights of their time made (as all engines do that update in
flight); `recompute_cache=True` makes them again with the new ones. Each token carries the version that sampled it.

`deterministic=True`: the tokens and the bits of the logprobs of a request depend on its prompt, its sampling arguments
with their seed, and the weights alone, whatever runs beside it. It rests on matrix products whose rows do not depend on
their number; that is tried when the engine is made, and refused where it is not so. It holds on CPUs in float32, for
dense models and mixtures of experts. Prompts are then fed one by one, what earlier turns computed is not taken over,
and a step has at least 8 rows. `threaded=False` decodes on the event loop, one token at a time between its callbacks:
with it the order of everything is the loop's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from verifiers.clients.sampler import Completion, EngineInfo
from verifiers.errors import ConfigError, Error, OverlongPromptError
from verifiers.train.engines.cache import KvCache
from verifiers.train.engines.decoder import MIN_ROWS, Decoder
from verifiers.train.engines.driver import InlineDriver, ThreadDriver
from verifiers.train.engines.forward import PREFILL_TOKENS, Runner
from verifiers.train.engines.loading import Loader
from verifiers.train.engines.requests import Limits, Request
from verifiers.train.engines.sampling import read_sampling
from verifiers.train.learner import Weights
from verifiers.types import SamplingArgs


class TorchEngine:
    """A `verifiers.clients.sampler.Sampler`. Used from one event loop at a time.

    stop_token_ids: end every reply, unless it asks for `ignore_eos`; None takes the model's own (`stop_tokens`).
    decode: ids to text, for stop texts. version: of the weights the model has now. seed: for requests without one.
    adapter: PEFT's configuration for LoRA weights that come as tensors. record_routes: give
    `Completion.routed_experts`.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_batch: int = 64,
        max_context: int = 4096,
        name: str = "policy",
        stop_token_ids: Collection[int] | None = None,
        decode: Callable[[list[int]], str] | None = None,
        device: str = "auto",
        version: int = 0,
        seed: int = 0,
        deterministic: bool = False,
        threaded: bool = True,
        recompute_cache: bool = False,
        record_routes: bool = False,
        adapter: Any = None,
    ) -> None:
        self.name = name
        self._runner = Runner(
            model, device=device, record_routes=record_routes, row_invariant=deterministic
        )
        self._decode = decode
        self._stop_ids = stop_tokens(model) if stop_token_ids is None else frozenset(stop_token_ids)
        self._limits = Limits(max_batch, _context(self._runner, max_context))
        if deterministic:
            self._runner.check_rows(min(MIN_ROWS, max_batch), max_batch)
        self._recompute = recompute_cache
        self._loader = Loader(model, adapter)
        self._decoder = Decoder(
            self._runner, self._limits, version=version, seed=seed, deterministic=deterministic, decode=decode
        )
        self._driver = ThreadDriver(self._decoder) if threaded else InlineDriver(self._decoder)

    # --- the protocol -----------------------------------------------------------------------------------------

    async def generate(self, token_ids: list[int], params: SamplingArgs) -> Completion:
        """Continue `token_ids`. Cancelling it frees its place.

        Raises OverlongPromptError if not even one token fits behind the prompt, ConfigError for arguments that cannot
        be kept, EngineError if the engine failed. A reply that fills the context ends with "length".
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        request = self._request(token_ids, params, lambda outcome: self._driver.settle(loop, future, outcome))
        self._driver.submit(request)
        try:
            return await future
        except asyncio.CancelledError:
            self._driver.cancel(request)
            raise

    async def score(self, token_ids: list[int]) -> list[float]:
        """The logprob of each token given those before it, at temperature 1; the first is 0.

        OverlongPromptError for more tokens than the context has.
        """
        self._check_ids(token_ids)
        if len(token_ids) > self._limits.max_context:
            raise self._overlong("text", token_ids)
        return await self._driver.call(lambda: self._scores(token_ids))

    async def pause(self) -> None:
        """Stand still between two tokens. Requests, running and new ones, wait."""
        await self._driver.pause()

    async def resume(self) -> None:
        """Go on where `pause` stopped."""
        self._driver.resume()

    async def update_weights(self, source: Weights | Mapping[str, Any] | str | Path, version: int) -> None:
        """Load weights between two tokens and name them `version`.

        source: `Weights`, tensors by name, or a folder. ConfigError if they do not fit: then nothing has changed.
        """
        await self._driver.call(lambda: self._load(source, version))

    def info(self) -> EngineInfo:
        """Name, vocabulary, context in tokens, present policy version."""
        return EngineInfo(self.name, self._runner.vocabulary, self._limits.max_context, self._decoder.version)

    # --- beyond it --------------------------------------------------------------------------------------------

    @property
    def failure(self) -> Error | None:
        """Why the engine is of no use any more, None while it is healthy."""
        return self._driver.failure

    @property
    def paused(self) -> bool:
        """Whether it stands still."""
        return self._driver.paused

    def load(self) -> dict[str, int]:
        """How much it has to do: `running` and `waiting` requests, tokens `sampled` and prompt tokens `fed` so far."""
        decoder = self._decoder
        return {
            "running": decoder.running,
            "waiting": len(decoder.waiting),
            "sampled": decoder.sampled,
            "fed": decoder.fed,
        }

    async def close(self) -> None:
        """End the engine; what it is generating ends with an EngineError."""
        await self._driver.close()

    def _request(self, ids: list[int], params: SamplingArgs, deliver: Callable[[Any], None]) -> Request:
        self._check_ids(ids)
        sampling = read_sampling(params)
        if len(ids) >= self._limits.max_context:
            raise self._overlong("prompt", ids)
        if sampling.stop and self._decode is None:
            raise ConfigError(
                "stop texts need a tokenizer, which this engine was made without",
                hint="Make it with decode=tokenizer.decode, or use stop_token_ids.",
            )
        own = frozenset() if sampling.ignore_eos else self._stop_ids
        return Request(list(ids), sampling, deliver, own | sampling.stop_token_ids)

    def _check_ids(self, ids: list[int]) -> None:
        if not ids:
            raise ConfigError("an engine continues at least one token", hint="Begin with a start token.")
        if min(ids) < 0 or max(ids) >= self._runner.vocabulary:
            raise ConfigError(
                f"{self.name} has {self._runner.vocabulary} token ids, and {min(ids)} to {max(ids)} were given",
                hint="Use the tokenizer of the engine's model.",
            )

    def _overlong(self, what: str, ids: list[int]) -> OverlongPromptError:
        return OverlongPromptError(
            f"the {what} has {len(ids)} tokens and the context of {self.name} {self._limits.max_context}",
            hint=f"Raise sampler.max_context, or shorten the {what}.",
        )

    def _load(self, source: Any, version: int) -> None:
        self._loader.load(source)
        self._runner.weights_changed()
        self._decoder.weights_changed(version, recompute=self._recompute)

    def _scores(self, ids: list[int]) -> list[float]:
        """In pieces, so that the logits of a long text need not be held at once."""
        cache = KvCache(1, len(ids))
        cache.reserve(1, len(ids))
        row, places, tokens = torch.zeros(1, dtype=torch.int64), torch.arange(len(ids)), torch.tensor(ids)
        scores = [0.0]
        with torch.inference_mode():
            for at in range(0, len(ids) - 1, PREFILL_TOKENS):
                part = slice(at, min(at + PREFILL_TOKENS, len(ids) - 1))
                logits = self._runner.forward(cache, row, places[None, part], tokens[None, part], all_logits=True)
                following = tokens[part.start + 1 : part.stop + 1].to(logits.device)
                scores += torch.log_softmax(logits[0], dim=-1).gather(1, following[:, None])[:, 0].tolist()
        return scores


def stop_tokens(model: Any, tokenizer: Any = None) -> frozenset[int]:
    """What ends a reply: the end tokens that the model's settings name, and the tokenizer's, which a chat template
    closes turns with."""
    ids: set[int] = set()
    for settings in (getattr(model, "generation_config", None), model.config.get_text_config(), tokenizer):
        named = getattr(settings, "eos_token_id", None)
        ids.update(named if isinstance(named, list | tuple) else () if named is None else (int(named),))
    return frozenset(ids)


def _context(runner: Runner, wanted: int) -> int:
    known = getattr(runner.config, "max_position_embeddings", None)
    rope = getattr(runner.config, "rope_parameters", None) or {}
    if rope.get("rope_type") in ("dynamic", "longrope"):
        # Beyond this the longest row of a batch would change the frequencies of all others.
        known = rope.get("original_max_position_embeddings") or known
    return min(wanted, int(known)) if known else wanted

