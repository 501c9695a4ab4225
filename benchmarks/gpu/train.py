"""Training on one GPU: `python -m benchmarks.gpu.train` on an H200 or H100; `--tiny` in a second or two on a CPU.

A model in the shape of Qwen3-0.6B with random weights, bf16 autocast, packed rows of `--length` tokens. Printed as JSON
lines: tokens/s and MFU of updates by reinforcement learning and by imitation, the time that new weights take into the
engine of this process (median of five, after one), and the mismatch KL between the engine's logprobs and the trainer's,
with the engine in bf16 and in fp32. How long servers of vLLM take for new weights is not measured here.

MFU counts 6 FLOPs a parameter and token, the output layer's for sampled tokens only, since it computes no others, and
attention (12·L·H·T, halved by its mask), against `--peak` TFLOP/s (989: dense bf16 of H100 and H200). prime-rl
publishes for one H100, Qwen3-0.6B (BENCHMARKS.md of 2026-02-01): RL at 16k 11,900 tokens/s and 11.1 %, SFT at 8k 26,010
tokens/s and 16.8 %.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from typing import Any

import torch

from verifiers.train.build import make_sft_learner
from verifiers.train.config import LossConfig, ModelConfig, TrainerConfig
from verifiers.train.engines.torch_engine import TorchEngine
from verifiers.train.models import find_device, policy_of
from verifiers.train.rows import Row
from verifiers.train.trainer import TorchLearner

PUBLISHED = {"rl": {"tokens_per_s": 11_900, "mfu": 0.111}, "sft": {"tokens_per_s": 26_010, "mfu": 0.168}}


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.train")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and short rows, for a CPU")
    parser.add_argument("--length", type=int, help="tokens of a row (16384; 64 if tiny)")
    parser.add_argument("--steps", type=int, default=5, help="updates that are measured, after two")
    parser.add_argument("--peak", type=float, default=989.0, help="TFLOP/s of the device")
    given = parser.parse_args(arguments)
    length = given.length or (64 if given.tiny else 16_384)
    device = find_device("auto")
    for kind, size in (("rl", length), ("sft", max(1, length // 2))):
        print(json.dumps(updates(kind, size, device, given)), flush=True)
    print(json.dumps(asyncio.run(handed_over(device, given))), flush=True)


def model_of(tiny: bool, dtype: Any, device: Any) -> Any:
    """Random weights in the shape of Qwen3-0.6B, or tiny."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(0)
    shape = {
        "vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960,
        "tie_word_embeddings": True,
    }  # fmt: skip
    if tiny:
        shape |= {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    return AutoModelForCausalLM.from_config(Qwen3Config(**shape), dtype=dtype).to(device)


def updates(kind: str, length: int, device: Any, given: Any) -> dict[str, Any]:
    """Tokens a second and MFU of updates with four rows of that length."""
    model = model_of(given.tiny, torch.float32, device)
    policy = policy_of(model, ModelConfig(gradient_checkpointing=not given.tiny))
    config = TrainerConfig(lr=1e-6, autocast="none" if given.tiny else "bfloat16", tokens_per_microbatch=length)
    learner = TorchLearner(policy, config, LossConfig()) if kind == "rl" else make_sft_learner(policy, config, 10)
    rows = [row(length, model.config.vocab_size, seed) for seed in range(4)]
    seconds = []
    for _ in range(2 + given.steps):
        begun = time.perf_counter()
        learner.step(rows)
        _wait(device)
        seconds.append(time.perf_counter() - begun)
    per_s = 4 * length / statistics.median(seconds[2:])
    sampled = sum(one.trainable for one in rows) / (4 * length)
    used = mfu(model, length, sampled, per_s, given.peak)
    figures = {"case": kind, "length": length, "tokens_per_s": per_s, "mfu": used}
    peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None
    return {**figures, "peak_gib": peak, "prime_rl_1xh100": PUBLISHED[kind]}


def mfu(model: Any, length: int, sampled: float, tokens_per_s: float, peak: float) -> float:
    """Share of the device's FLOP/s that such a model needs for so many tokens; recomputation is not counted.

    sampled: share of the tokens whose logits are computed. The output layer is the embedding, which costs nothing.
    """
    config = model.config
    head = model.get_output_embeddings().weight.numel()
    body = sum(value.numel() for value in model.parameters()) - head
    attention = 6 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * length
    return float(tokens_per_s * (6 * (body + sampled * head) + attention) / (peak * 1e12))


def row(length: int, vocabulary: int, seed: int) -> Row:
    """Half prompt, half reply, at random."""
    rng = random.Random(seed)
    sampled = [place >= length // 2 for place in range(length)]
    return Row(
        tokens=[rng.randrange(vocabulary) for _ in range(length)],
        mask=sampled,
        logprobs=[-11.0 * one for one in sampled],
        versions=[0] * length,
        advantages=[(-1.0) ** seed * one for one in sampled],
        reward=float(seed % 2),
        rollout_id=str(seed),
    )


async def handed_over(device: Any, given: Any) -> dict[str, Any]:
    """Seconds that new weights take from the learner into the engine, and the mismatch KL in bf16 and fp32."""
    figures: dict[str, Any] = {"case": "weights"}
    policy = policy_of(model_of(given.tiny, torch.float32, device), ModelConfig())
    learner = TorchLearner(policy, TrainerConfig(lr=1e-6, tokens_per_microbatch=4096), LossConfig())
    rng = random.Random(0)
    prompts = [[rng.randrange(policy.vocabulary) for _ in range(32)] for _ in range(8)]
    for name in ("bfloat16", "float32"):
        engine = TorchEngine(
            model_of(given.tiny, getattr(torch, name), device), max_batch=8, max_context=512, stop_token_ids=[]
        )
        seconds = []
        for version in range(1, 7):
            begun = time.perf_counter()
            await engine.update_weights(learner.weights(), version)
            _wait(device)
            seconds.append(time.perf_counter() - begun)
        figures[f"update_s/{name}"] = statistics.median(seconds[1:])
        params = {"max_tokens": 16 if given.tiny else 256, "temperature": 1.0}
        replies = await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))
        rows = [
            Row(
                tokens=prompt + reply.tokens,
                mask=[False] * len(prompt) + [True] * len(reply.tokens),
                logprobs=[0.0] * len(prompt) + reply.logprobs,
                versions=[1] * (len(prompt) + len(reply.tokens)),
                advantages=[0.0] * (len(prompt) + len(reply.tokens)),
                reward=0.0,
            )
            for prompt, reply in zip(prompts, replies, strict=True)
        ]
        figures[f"mismatch_kl/{name}"] = learner.step(rows)["loss/mismatch_kl"]
        await engine.close()
    return figures


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
