"""The forward pass of Llama and its like, written for decoding: a fifth of the operations of the model classes.

    lean = Lean(model) if fits(model) else None
    logits = lean(cache, ids, positions, mask, last=True)

One token for each of a few sequences is so little arithmetic that the time goes into calling operations, on a CPU as
on a GPU. Here the three projections of attention are one product, and so are the two of the MLP: their weights lie in
one tensor, of which the model's own parameters become views, so that they are in memory once and loading new ones goes
on as before. `verifiers.train.engines.forward.Runner` compares it with the model's plain pass before it is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

CLASSES = frozenset(("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"))
"""Of transformers: layers of RMSNorm, rotary positions, grouped queries and a gated SiLU."""

STEADY = frozenset(("default", "linear", "yarn", "llama3"))
"""Kinds of rotary positions whose angles are the same in sequences of every length."""


def fits(model: Any) -> bool:
    """Whether a model is of a known class, as it is now, and nothing was added to it: no hooks, no adapter."""
    known = type(model).__name__ in CLASSES and type(model).__module__.startswith("transformers.")
    if not known or model.config.hidden_act != "silu" or model.config._attn_implementation != "sdpa":
        return False
    modules = dict(model.named_modules())
    linear = [module for name, module in modules.items() if name.endswith(("_proj", "lm_head"))]
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in modules.values())
    # Of other kinds of rotary positions ("dynamic", "longrope") the angles depend on how long a sequence is.
    steady = (getattr(model.config, "rope_parameters", None) or {}).get("rope_type", "default") in STEADY
    return steady and not hooked and all(type(module) is torch.nn.Linear for module in linear)


class Lean:
    """See the module. `model` belongs to it: where its weights are in memory is changed."""

    def __init__(self, model: Any) -> None:
        self._embeddings = model.get_input_embeddings()
        self._rotary = model.model.rotary_emb
        self._angles: tuple[Any, Any] | None = None
        self._layers = [_Layer(layer) for layer in model.model.layers]
        self._norm = _Norm(model.model.norm)
        self._head = _joined([model.lm_head])

    def __call__(self, cache: Any, ids: Any, positions: Any, mask: Any, *, last: bool) -> Any:
        """Logits [B, T, V] of ids [B, T] at positions [B, T], or [B, 1, V] of the last of each row.

        mask: [B, 1, T, window], 0 for what each token may look at of the slots that `cache.place` has named, and the
        lowest number for what it may not.
        """
        hidden = self._embeddings(ids)
        cos, sin = self._turned_to(mask.shape[-1], hidden)
        rotation = cos[positions][:, None], sin[positions][:, None]
        for number, layer in enumerate(self._layers):
            hidden = layer(cache, number, hidden, rotation, mask)
        return functional.linear(self._norm(hidden[:, -1:] if last else hidden), *self._head)

    def _turned_to(self, length: int, like: Any) -> tuple[Any, Any]:
        """Cosines and sines of the positions below `length` and of more, [positions, head size].

        They are the same in every step. rotate_half(x) * sin is x rolled by half, times the sine with a minus in its
        first half.
        """
        if self._angles is None or len(self._angles[0]) < length:
            cos, sin = self._rotary(like, torch.arange(2 * length, device=like.device)[None])
            half = cos.shape[-1] // 2
            self._angles = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)
        return self._angles


class _Layer:
    def __init__(self, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._size = attention.head_dim
        self._scale = attention.scaling
        self._groups = attention.num_key_value_groups
        self._key_heads = attention.k_proj.out_features // self._size
        self._query_heads = self._key_heads * self._groups
        self._before, self._between = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self._norms = [_Norm(norm) for name in ("q_norm", "k_norm") if (norm := getattr(attention, name, None))]
        self._project = _joined([attention.q_proj, attention.k_proj, attention.v_proj])
        self._out = _joined([attention.o_proj])
        self._gate_up = _joined([mlp.gate_proj, mlp.up_proj])
        self._down = _joined([mlp.down_proj])

    def __call__(self, cache: Any, number: int, hidden: Any, rotation: Any, mask: Any) -> Any:
        hidden = hidden + self._attend(cache, number, self._before(hidden), rotation, mask)
        gate, up = functional.linear(self._between(hidden), *self._gate_up).chunk(2, -1)
        return hidden + functional.linear(functional.silu(gate) * up, *self._down)

    def _attend(self, cache: Any, number: int, hidden: Any, rotation: tuple[Any, Any], mask: Any) -> Any:
        rows, length, _ = hidden.shape
        heads = functional.linear(hidden, *self._project).view(rows, length, -1, self._size).transpose(1, 2)
        placed, values = heads.split((self._query_heads + self._key_heads, self._key_heads), 1)
        if self._norms:
            both = placed.split((self._query_heads, self._key_heads), 1)
            placed = torch.cat([norm(part) for norm, part in zip(self._norms, both, strict=True)], 1)
        cos, sin = rotation
        placed = torch.addcmul(placed * cos, placed.roll(self._size // 2, -1), sin)
        queries, keys = placed.split((self._query_heads, self._key_heads), 1)
        keys, values = cache.update(keys, values, number)
        if length == 1:  # the queries of a group are like tokens that look at the same
            queries = queries.reshape(rows, self._key_heads, self._groups, self._size)
        elif self._groups > 1:
            keys, values = (part.repeat_interleave(self._groups, 1) for part in (keys, values))
        seen = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=self._scale)
        seen = seen.reshape(rows, self._query_heads, length, self._size)
        return functional.linear(seen.transpose(1, 2).reshape(rows, length, -1), *self._out)


class _Norm:
    def __init__(self, norm: Any) -> None:
        self._weight, self._epsilon = norm.weight, norm.variance_epsilon

    def __call__(self, hidden: Any) -> Any:
        return functional.rms_norm(hidden, self._weight.shape, self._weight, self._epsilon)


def _joined(parts: list[Any]) -> tuple[Any, Any]:
    """Weight and bias of several linear layers as one, which become views of it."""
    weight = _shared([part.weight for part in parts])
    return weight, None if parts[0].bias is None else _shared([part.bias for part in parts])


def _shared(parameters: list[Any]) -> Any:
    if len(parameters) == 1:
        return parameters[0].detach()
    whole = torch.cat([parameter.detach() for parameter in parameters])
    for parameter, part in zip(parameters, whole.split([len(one) for one in parameters]), strict=True):
        parameter.data = part
    return whole
