"""New weights while requests run: from where, when, and what is left of the old ones."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import save_tiny, tiny_model  # noqa: E402
from tests.train.engines.contract import logprobs_of  # noqa: E402
from verifiers.clients.sampler import Completion  # noqa: E402
from verifiers.errors import ConfigError  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402
from verifiers.train.learner import Weights  # noqa: E402

pytestmark = pytest.mark.train

PROMPT = list(range(20))
PARAMS = {"max_tokens": 24, "seed": 1, "ignore_eos": True}


def engine_of(kind: str = "qwen2", **options: Any) -> TorchEngine:
    """An engine on the loop, so that a test decides after which token something happens."""
    return TorchEngine(tiny_model(kind), **{"max_batch": 4, "max_context": 128, "threaded": False, **options})


async def swapped(engine: TorchEngine, source: Any, after: int = 10) -> Completion:
    """A completion whose weights are replaced after so many of its tokens."""
    task = asyncio.ensure_future(engine.generate(PROMPT, PARAMS))
    while engine.load()["sampled"] < after:  # noqa: ASYNC110 - the engine steps on this loop
        await asyncio.sleep(0)
    await engine.update_weights(source, 1)
    return await task


async def test_a_completion_names_the_weights_of_each_token() -> None:
    """With the cache made again, tokens before the swap have the old model's logprobs and those after it the new
    one's."""
    engine = engine_of(recompute_cache=True)
    completion = await swapped(engine, tiny_model(seed=1).state_dict())
    assert completion.versions == [0] * 10 + [1] * 14
    for seed, part in ((0, slice(10)), (1, slice(10, None))):
        expected = logprobs_of(tiny_model(seed=seed).eval(), PROMPT, completion.tokens)
        assert completion.logprobs[part] == pytest.approx(expected[part], abs=1e-5)


async def test_a_kept_cache_is_the_old_models() -> None:
    """Without that, the new model reads keys and values which the old one made: exactly those, and no others."""
    from transformers import DynamicCache

    engine = engine_of()
    completion = await swapped(engine, tiny_model(seed=1).state_dict())
    old, new = tiny_model(seed=0).eval(), tiny_model(seed=1).eval()
    seen = torch.tensor([PROMPT + completion.tokens])
    cache = DynamicCache(config=old.config)
    fed = len(PROMPT) + 9  # the tenth token is fed by the new weights
    with torch.inference_mode():
        before = old(input_ids=seen[:, :fed], cache=cache, use_cache=True).logits[0]
        after = [
            new(input_ids=seen[:, at : at + 1], cache=cache, use_cache=True).logits[0]
            for at in range(fed, seen.shape[1] - 1)
        ]
    logits = torch.cat([before, *after])[len(PROMPT) - 1 :]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]
    assert completion.logprobs == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe"])
async def test_folders_and_tensors_are_the_same_weights(kind: str, tmp_path: Path) -> None:
    """A folder, `Weights` with a folder and `Weights` with tensors give the same replies, of the new model."""
    folder = save_tiny(tmp_path / "new", kind, seed=1)
    tensors = tiny_model(kind, seed=1).state_dict()
    sources = (folder, str(folder), tensors, Weights(1, folder=folder), Weights(1, tensors=tensors))
    expected = await engine_of(kind).generate(PROMPT, PARAMS)
    replies = []
    for source in sources:
        engine = engine_of(kind)
        await engine.update_weights(source, 1)
        replies.append(await engine.generate(PROMPT, PARAMS))
    assert all(reply.logprobs == replies[0].logprobs for reply in replies)
    assert replies[0].tokens != expected.tokens
    reference = logprobs_of(tiny_model(kind, seed=1).eval(), PROMPT, replies[0].tokens)
    assert replies[0].logprobs == pytest.approx(reference, abs=1e-5)


async def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    """Missing and unknown names, other shapes, no files: ConfigErrors that leave weights and version as they were."""
    engine = engine_of()
    tensors = tiny_model(seed=1).state_dict()
    short = dict(list(tensors.items())[:-2])
    odd = {**tensors, "model.norm.weight": torch.zeros(3)}
    narrow = save_tiny(tmp_path / "narrow", hidden_size=32)
    for source in (short, {**tensors, "other": torch.zeros(1)}, odd, tmp_path, narrow):
        with pytest.raises(ConfigError):
            await engine.update_weights(source, 1)
    completion = await engine.generate(PROMPT, PARAMS)
    assert set(completion.versions) == {0}
    assert completion.logprobs == pytest.approx(logprobs_of(tiny_model().eval(), PROMPT, completion.tokens), abs=1e-5)


def adapted(seed: int, model_seed: int = 0) -> Any:
    """A model with a LoRA adapter that changes it."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"])
    model = peft.get_peft_model(tiny_model(seed=model_seed), config)
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    return model.eval()


async def test_adapters_from_folders_and_tensors(tmp_path: Path) -> None:
    """A LoRA adapter is applied, replaced by the next one, and dropped by whole weights."""
    peft = pytest.importorskip("peft")
    engine = engine_of(adapter=peft.LoraConfig(r=4, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"]))
    first, second = adapted(1), adapted(2)
    first.save_pretrained(tmp_path)
    steps = (
        (Weights(1, folder=tmp_path, adapter=True), first),
        (Weights(2, tensors=peft.get_peft_model_state_dict(second), adapter=True), second),
        (tiny_model(seed=1).state_dict(), tiny_model(seed=1).eval()),
    )
    for version, (source, model) in enumerate(steps, 1):
        await engine.update_weights(source, version)
        completion = await engine.generate(PROMPT, PARAMS)
        assert set(completion.versions) == {version}
        assert completion.logprobs == pytest.approx(logprobs_of(model, PROMPT, completion.tokens), abs=2e-5)


async def test_an_adapter_without_its_configuration_is_refused() -> None:
    """Tensors of an adapter say nothing of their scale."""
    peft = pytest.importorskip("peft")
    weights = Weights(1, tensors=peft.get_peft_model_state_dict(adapted(1)), adapter=True)
    with pytest.raises(ConfigError, match="nothing says how to apply them"):
        await engine_of().update_weights(weights, 1)


async def test_updates_do_not_wait_for_a_pause() -> None:
    """In a thread too weights are swapped between tokens while requests run, and all of them end."""
    engine = engine_of(threaded=True, max_context=256)
    tasks = [asyncio.ensure_future(engine.generate([seed], {**PARAMS, "max_tokens": 200})) for seed in range(4)]
    for version in range(1, 6):
        await engine.update_weights(tiny_model(seed=version % 2).state_dict(), version)
        await asyncio.sleep(0.02)
    for completion in await asyncio.gather(*tasks):
        assert completion.versions == sorted(completion.versions)
        assert len(completion.tokens) == len(completion.versions)
    await engine.close()


@pytest.mark.parametrize("count", [12, pytest.param(300, marks=pytest.mark.slow)])
async def test_everything_at_once(count: int) -> None:
    """While requests come, are given up, and share beginnings, weights change and the engine pauses: every token still
    has the logprob that the weights of its version give it."""
    rng = random.Random(count)
    weights = [tiny_model(seed=seed).state_dict() for seed in range(3)]
    models = [tiny_model(seed=seed).eval() for seed in range(3)]
    ends = range(0, 259, 37)
    engine = engine_of(threaded=True, max_batch=6, max_context=160, recompute_cache=True, stop_token_ids=ends)
    running = True

    async def ask(number: int) -> None:
        prompt = list(range(rng.randint(1, 90))) if number % 2 else [rng.randrange(259) for _ in range(30)]
        temperature = rng.choice([0.7, 1.0])
        task = asyncio.ensure_future(
            engine.generate(prompt, {"max_tokens": rng.randint(1, 60), "temperature": temperature})
        )
        if number % 4 == 0:
            await asyncio.sleep(0.01)
            task.cancel()
        try:
            reply = await task
        except asyncio.CancelledError:
            return
        for version in set(reply.versions):
            expected = logprobs_of(models[version % 3], prompt, reply.tokens, temperature)
            chosen = [place for place, own in enumerate(reply.versions) if own == version]
            assert [reply.logprobs[place] for place in chosen] == pytest.approx(
                [expected[place] for place in chosen], abs=1e-5
            )

    async def disturb() -> None:
        version = 0
        while running:
            version += 1
            await engine.pause()
            await engine.update_weights(weights[version % 3], version)
            await engine.score(list(range(40)))
            await engine.resume()
            await asyncio.sleep(0.02)

    disturbing = asyncio.ensure_future(disturb())
    waiting = iter(range(count))

    async def work() -> None:
        for number in waiting:
            await ask(number)

    await asyncio.gather(*(work() for _ in range(12)))
    running = False
    await disturbing
    assert engine.load()["running"] == engine.load()["waiting"] == 0
    await engine.close()
