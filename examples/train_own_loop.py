"""A training loop of one's own: rollouts of an environment, their rows, a loss in plain torch, new weights.

    python examples/train_own_loop.py [MODEL_FOLDER]

Needs `pip install 'verifiers[train]>=1'`. Without a folder it trains a random model of 90,000 parameters on this
machine's CPU, in seconds. `vf-train` does the same with everything that a long run needs.
"""

import asyncio
import copy
import sys
from typing import Any

try:
    import torch
    from toy_model import toy_environment, toy_model, toy_tokenizer
except ImportError as error:
    sys.exit(f"{error}. This example needs: pip install 'verifiers[train]>=1'")

import verifiers as vf
from verifiers.train.engines.torch_engine import TorchEngine
from verifiers.train.models import load_model


def loss_of(model: torch.nn.Module, row: vf.Row) -> torch.Tensor:
    """REINFORCE with the sampler's probabilities below: tokens count by their advantage, the environment's do not."""
    ids, mask = torch.tensor([row.tokens]), torch.tensor(row.mask)[1:]
    logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    ratio = (logprobs - torch.tensor(row.logprobs)[1:]).exp()
    return -(ratio * torch.tensor(row.advantages)[1:])[mask].sum()


async def train(model: Any, tokenizer: Any, env: vf.Environment, steps: int, lr: float, max_tokens: int) -> list[float]:
    """One update a step from eight rollouts of each task. Returns the mean reward of every step."""
    sampler = TorchEngine(copy.deepcopy(model), stop_token_ids=[tokenizer.eos_token_id], deterministic=True)
    client = vf.SamplerClient(sampler, vf.TokenizerRenderer(tokenizer))
    options = vf.EngineOptions(state_columns=("trajectory",), seed=0)
    player = vf.Engine(env, client, "policy", {"temperature": 1.0, "max_tokens": max_tokens}, options)
    algorithm = vf.make_algorithm(vf.AdvantageConfig(overlong="keep"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    curve = []
    async with vf.GroupSource(env.get_dataset(), lambda request: player) as source:
        for step in range(steps):
            for task in source.task_ids:
                await source.submit(vf.RolloutRequest(task, f"{step}/{task}", n=8, seed=step, policy_version=step))
            ended = sorted([await anext(source.results()) for _ in source.task_ids], key=lambda r: r.request.group_id)
            rows = [row for result in ended for row in algorithm(vf.group_of(result))]
            (sum(loss_of(model, row) for row in rows) / sum(row.trainable for row in rows)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            await sampler.update_weights(model.state_dict(), step + 1)
            rewards = [member.record["reward"] for result in ended for member in result.valid]
            curve.append(sum(rewards) / len(rewards))
    await sampler.close()
    return curve


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    try:
        model, tokenizer = load_model(folder, "cpu") if folder else (toy_model(), toy_tokenizer())
    except vf.Error as error:
        sys.exit(f"{error}. {error.hint}")
    curve = asyncio.run(train(model, tokenizer, toy_environment(), 50, 1e-5 if folder else 2e-3, 3))
    print("reward", *(f"{reward:.2f}" for reward in curve[::5]), f"… {max(curve[-5:]):.2f}")
