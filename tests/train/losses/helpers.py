"""From the oracles' tokens to the package's, and one loss with its gradient as numpy."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests.train.losses.oracles import Array, Tokens
from verifiers.train.config import LossConfig
from verifiers.train.losses.loss import make_loss
from verifiers.train.losses.tokens import LossOutput, TokenBatch
from verifiers.train.tally import Tally

torch.set_num_threads(1)


@dataclass
class Result:
    """A loss in numpy: value and gradient a token, and the figures."""

    value: Array
    gradient: Array
    output: LossOutput
    figures: dict[str, float]


def batch_of(tokens: Tokens, dtype: Any = torch.float64) -> TokenBatch:
    """The tokens as tensors; log π (and the entropy) are leaves with gradient."""

    def tensor(values: Any) -> Any:
        return None if values is None else torch.tensor(np.asarray(values), dtype=dtype)

    weights = tokens.w if len(tokens.w) == len(tokens.lp) else np.ones(len(tokens.lp))
    entropy = tensor(tokens.ent)
    return TokenBatch(
        logprobs=tensor(tokens.lp).requires_grad_(),
        sampler_logprobs=tensor(tokens.mu),
        advantages=tensor(tokens.a),
        sequence=torch.tensor(tokens.row, dtype=torch.int64),
        weights=tensor(weights),
        old_logprobs=tensor(tokens.old),
        ref_logprobs=tensor(tokens.ref),
        entropy=None if entropy is None else entropy.requires_grad_(),
    )


def run(tokens: Tokens, dtype: Any = torch.float64, **settings: Any) -> Result:
    """The loss of these settings, the drift regulariser off unless asked for."""
    batch = batch_of(tokens, dtype)
    output = make_loss(LossConfig(**{"drift": 0.0, **settings}))(batch)
    output.per_token.sum().backward()
    return Result(
        output.per_token.detach().double().numpy(), batch.logprobs.grad.double().numpy(), output, figures(output)
    )


def figures(*outputs: LossOutput) -> dict[str, float]:
    """The figures of outputs taken together."""
    tally = Tally()
    for output in outputs:
        tally.add(output)
    return tally.figures()


def tokens_of(lp: Any, mu: Any, a: Any, row: Any = None, **more: Any) -> Tokens:
    """Tokens from lists; one row each unless said otherwise."""
    lp, mu, a = (np.asarray(values, dtype=np.float64) for values in (lp, mu, a))
    rows = np.arange(len(lp)) if row is None else np.asarray(row)
    return Tokens(lp, mu, np.broadcast_to(a, lp.shape).copy(), rows, np.ones(len(lp)), **more)
