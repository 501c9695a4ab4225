"""The forward pass of Llama and its like with half of the operations of the model classes, for training on a CPU.

    lean = Lean(model) if suits(model) else None
    logits = lean(tokens, positions, mask, places)      # of these places alone; for backward, as the model's would be

Small models spend their time in calling operations: of a step of two layers and 64 numbers a token, matrix products
and attention are a half. Here norms and rotations are one node of the graph each, which keeps its input and nothing
else, residuals are added by the product before them, and only the places that are asked for pass the last norm.
`verifiers.train.forward.sharing_of` compares it with the model's own pass before it is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from verifiers.train.engines.lean import Angles, fits


def suits(model: Any) -> bool:
    """Whether a model is of a known class and has nothing added, is in single or double precision, and on a CPU."""
    weight = model.get_input_embeddings().weight
    return fits(model) and weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.float64)


class Lean:
    """See the module. Everything is read from `model`, which stays as it is."""

    def __init__(self, model: Any) -> None:
        self._model = model.model
        self._head = model.lm_head
        self._angles = Angles(self._model.rotary_emb)

    def __call__(self, tokens: Any, positions: Any, mask: Any, places: Any) -> Any:
        """[N, V] logits of the [N] flat places, from int64 [B, T] tokens and positions, which are below T.

        mask: [B, 1, T, T], true for what each place may look at.
        """
        hidden = self._model.embed_tokens(tokens.view(-1))  # [B * T, size] from here on
        cos, sin = self._angles(tokens.shape[1], hidden)
        flat = positions.view(-1)
        rotation = cos.index_select(0, flat)[:, None], sin.index_select(0, flat)[:, None]
        for layer in self._model.layers:
            seen = _attend(layer.self_attn, _normed(layer.input_layernorm, hidden), rotation, mask)
            hidden = _added(hidden, seen, layer.self_attn.o_proj)
            mlp, between = layer.mlp, _normed(layer.post_attention_layernorm, hidden)
            hidden = _added(hidden, functional.silu(mlp.gate_proj(between)) * mlp.up_proj(between), mlp.down_proj)
        hidden = _normed(self._model.norm, hidden.index_select(0, places))
        return functional.linear(hidden, self._head.weight, self._head.bias)


def _attend(module: Any, hidden: Any, rotation: tuple[Any, Any], mask: Any) -> Any:
    size, (count, _, width, _) = module.head_dim, mask.shape
    projections = (module.q_proj, module.k_proj, module.v_proj)
    queries, keys, values = (project(hidden).view(count * width, -1, size) for project in projections)
    if hasattr(module, "q_norm"):
        queries, keys = _normed(module.q_norm, queries), _normed(module.k_norm, keys)
    placed = *_Rotated.apply(queries, keys, *rotation), values
    queries, keys, values = (part.view(count, width, -1, size).transpose(1, 2) for part in placed)
    seen = functional.scaled_dot_product_attention(
        queries,
        keys,
        values,
        attn_mask=mask,
        scale=module.scaling,
        enable_gqa=module.num_key_value_groups > 1,
    )
    return seen.transpose(1, 2).reshape(count * width, -1)


def _added(hidden: Any, change: Any, linear: Any) -> Any:
    hidden = torch.addmm(hidden, change, linear.weight.t())
    return hidden if linear.bias is None else hidden + linear.bias


def _normed(norm: Any, hidden: Any) -> Any:
    return _Normed.apply(hidden, norm.weight, norm.variance_epsilon)


class _Normed(torch.autograd.Function):  # type: ignore[misc]
    """RMSNorm of [..., size]: y = n·w with n = x/√(mean x² + ε); dx = (g·w − n·mean(g·w·n))·n/x, dw = Σ g·n."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, epsilon: float) -> Any:
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        scale = length.square_().div_(hidden.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(hidden, scale, weight)
        return (hidden * scale).mul_(weight)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Any) -> tuple[Any, Any, None]:
        hidden, scale, weight = ctx.saved_tensors
        normed = hidden * scale
        by_weight = gradient * normed
        mean = torch.matmul(by_weight, weight).unsqueeze(-1)
        to_hidden = torch.addcmul(gradient * weight, normed, mean, value=-1 / len(weight)).mul_(scale)
        return to_hidden, by_weight.view(-1, len(weight)).sum(0), None


class _Rotated(torch.autograd.Function):  # type: ignore[misc]
    """Queries and keys [N, heads, size] turned by their places: x·cos + rolled(x)·sin, the sine with its signs."""

    @staticmethod
    def forward(ctx: Any, queries: Any, keys: Any, cos: Any, sin: Any) -> tuple[Any, Any]:
        ctx.save_for_backward(cos, sin)
        half = cos.shape[-1] // 2
        turned = (torch.addcmul(part * cos, part.roll(half, -1), sin) for part in (queries, keys))
        return next(turned), next(turned)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, Any, None, None]:
        cos, sin = ctx.saved_tensors
        half = cos.shape[-1] // 2
        back = ((part * cos).add_((part * sin).roll(half, -1)) for part in gradients)
        return next(back), next(back), None, None
