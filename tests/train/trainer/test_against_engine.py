"""What the engine of this process samples, the trainer scores alike: ids, temperatures, weights, experts, adapters."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.support.tiny_model import tiny_model  # noqa: E402
from verifiers.clients.routes import pack_routes  # noqa: E402
from verifiers.train.config import LoraConfig, LossConfig, ModelConfig, TrainerConfig  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402
from verifiers.train.models import policy_of  # noqa: E402
from verifiers.train.rows import Row  # noqa: E402
from verifiers.train.trainer import TorchLearner  # noqa: E402
from verifiers.train.weights import WeightFolders  # noqa: E402

pytestmark = pytest.mark.train

PROMPTS = [list(range(3, 3 + length)) for length in (5, 12, 9, 30)]


async def sampled(engine: TorchEngine, temperature: float) -> list[Row]:
    """Rows of what the engine says to each prompt, with advantages that differ."""
    rows = []
    for number, prompt in enumerate(PROMPTS):
        params = {"temperature": temperature, "max_tokens": 10, "seed": number, "ignore_eos": True}
        reply = await engine.generate(prompt, params)
        before, n = len(prompt), len(reply.tokens)
        rows.append(
            Row(
                tokens=prompt + reply.tokens,
                mask=[False] * before + [True] * n,
                logprobs=[0.0] * before + reply.logprobs,
                versions=[0] * before + reply.versions,
                reward=1.0,
                advantages=[0.0] * before + [(-1.0) ** number] * n,
                sampling=params,
                routed_experts=None if reply.routed_experts is None else [pack_routes(reply.routed_experts)],
            )
        )
    return rows


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe", "lora"])
@pytest.mark.parametrize("way", ["tensors", "folder"])
async def test_the_ratio_to_the_engine_is_one_after_each_update(
    kind: str, way: str, tmp_path: Any
) -> None:
    """Three turns of sampling, training and handing over the weights: on fresh tokens r = 1 to 1e-4 throughout."""
    lora = LoraConfig(rank=4) if kind == "lora" else None
    architecture = "qwen2" if lora else kind
    policy = policy_of(tiny_model(architecture), ModelConfig(lora=lora))
    learner = TorchLearner(policy, TrainerConfig(lr=5e-3), LossConfig(kind="icepop"))
    folders = WeightFolders(tmp_path, durable=False)
    adapter = policy.model.peft_config["default"] if lora else None
    engine = TorchEngine(
        tiny_model(architecture), max_context=64, record_routes=kind == "qwen3_moe", adapter=adapter
    )
    try:
        for version in range(3):
            rows = await sampled(engine, temperature=0.7)
            assert {v for row in rows for v, m in zip(row.versions, row.mask, strict=True) if m} == {version}
            figures = learner.step(rows)
            assert figures["loss/ratio"] == pytest.approx(1, abs=1e-4)
            assert figures["loss/mismatch_kl/max"] < 1e-6
            weights = learner.weights()
            if way == "folder":
                weights = folders.publish(weights.version, policy.model, weights.tensors)
            await engine.update_weights(weights, weights.version)
    finally:
        await engine.close()
