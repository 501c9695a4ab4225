"""What the tests of servers over HTTP share: a prompt, and what a model of a seed says of it."""

import torch

from tests.support.tiny_model import tiny_model

PROMPT = [10, 20, 30, 40]


def expected(seed: int, tokens: list[int], count: int, temperature: float) -> list[float]:
    """The logprobs of the last `count` tokens, from a model of that seed, at a temperature."""
    with torch.no_grad():
        logits = tiny_model(seed=seed)(torch.tensor([tokens])).logits[0].double() / temperature
    return logits.log_softmax(-1)[-count - 1 : -1].gather(1, torch.tensor(tokens[-count:])[:, None])[:, 0].tolist()
