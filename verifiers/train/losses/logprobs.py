"""Logprobs and entropy of sampled tokens from logits, in fp32, without a fp32 copy of all logits.

    logprobs, entropy = token_logprobs(logits, targets, temperatures)       # [N, V], [N], [N] → [N], [N]

The logits are divided by the sampling temperature first, as the sampler did: otherwise the ratio is wrong from the
first token on (huggingface/trl#4159). A naive log_softmax keeps two copies [N, V] in fp32, 10 GB for 8,192 tokens of a
vocabulary of 152,000. Here the graph keeps the logits as they are, and a number a token; both passes work in chunks.
"""

from __future__ import annotations

from typing import Any

import torch

CHUNK = 1 << 24
"""Numbers of a chunk at most, 64 MB in fp32."""


def token_logprobs(
    logits: Any, targets: Any, temperatures: Any, *, entropy_gradient: bool = False, chunk: int | None = None
) -> tuple[Any, Any]:
    """[N] logprobs of `targets` with gradient, and the [N] entropy of each distribution in nats.

    logits: [N, V], any floating dtype. targets: [N] ids. temperatures: [N] or a number, above 0. Both results are
    float32, or float64 for such logits. entropy_gradient: whether the entropy has one too. chunk: tokens worked on at
    once.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    scale = torch.as_tensor(temperatures, dtype=dtype, device=logits.device).expand(len(logits))
    chunk = chunk or max(1, CHUNK // logits.shape[-1])
    logprobs, entropy = _TokenLogprobs.apply(logits, targets, scale, chunk)
    return logprobs, entropy if entropy_gradient else entropy.detach()


class _TokenLogprobs(torch.autograd.Function):  # type: ignore[misc]
    """z = logits/T, p = softmax(z); d log p_y/dz = 1_y − p, dH/dz = −p·(log p + H), d/dlogits = d/dz / T.

    log_softmax and softmax are one kernel each, together quicker than logsumexp and exp, also where both are needed.
    """

    @staticmethod
    def forward(ctx: Any, logits: Any, targets: Any, temperatures: Any, chunk: int) -> tuple[Any, Any]:
        logprobs, entropy = torch.empty_like(temperatures), torch.empty_like(temperatures)
        for begin in range(0, len(logits), chunk):
            part = slice(begin, begin + chunk)
            z = logits[part].to(temperatures.dtype) / temperatures[part, None]
            log_p = z.log_softmax(-1)
            logprobs[part] = log_p.gather(-1, targets[part, None]).squeeze(-1)
            entropy[part] = -_times(z.softmax(-1), log_p).sum(-1)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, targets, temperatures, entropy)
        ctx.chunk = chunk
        return logprobs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, to_logprobs: Any, to_entropy: Any) -> tuple[Any, None, None, None]:
        logits, targets, temperatures, entropy = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        to_logprobs = torch.zeros_like(entropy) if to_logprobs is None else to_logprobs
        for begin in range(0, len(logits), ctx.chunk):
            part = slice(begin, begin + ctx.chunk)
            z = logits[part].to(temperatures.dtype) / temperatures[part, None]
            p = z.softmax(-1)
            grad = p * -to_logprobs[part, None]
            grad.scatter_add_(-1, targets[part, None], to_logprobs[part, None])
            if to_entropy is not None:
                by_log = _times(p, z.log_softmax(-1) + entropy[part, None])
                grad -= to_entropy[part, None] * by_log
            gradient[part] = grad.div_(temperatures[part, None])
        return gradient, None, None, None


def _times(p: Any, log_p: Any) -> Any:
    """p·log p, in place of p; a logit of −inf has probability 0, and adds nothing."""
    return p.mul_(log_p).nan_to_num_(nan=0.0)
