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
        self._angles = Angles(model.model.rotary_emb)
        self._layers = [_Layer(layer) for layer in model.model.layers]
        self._norm = _Norm(model.model.norm)
        self._head = _joined([model.lm_head])

    def __call__(self, cache: Any, ids: Any, positions: Any, mask: Any, *, last: bool) -> Any:
        """Logits [B, T, V] of ids [B, T] at positions [B, T], or [B, 1, V] of the last of each row.

        mask: [B, 1, T, window], 0 for what each token may look at of the slots that `cache.place` has named, and the
        lowest number for what it may not.
        """
        rows, length = ids.shape
        hidden = self._embeddings(ids.reshape(-1))  # [B * T, size] from here on
        cos, sin = self._angles(mask.shape[-1], hidden)
        places = positions.reshape(-1)
        rotation = cos.index_select(0, places)[:, None], sin.index_select(0, places)[:, None]
        for number, layer in enumerate(self._layers):
            hidden = layer(cache, number, hidden, rotation, mask)
        if last and length > 1:
            hidden = hidden[length - 1 :: length]
        return functional.linear(self._norm(hidden), *self._head).view(rows, -1, len(self._head[0]))


class Angles:
    """Cosines and sines of positions, by the rotary module of a model; they are kept, being the same in every pass."""

    def __init__(self, rotary: Any) -> None:
        self._rotary = rotary
        self._kept: tuple[Any, Any] | None = None

    def __call__(self, length: int, like: Any) -> tuple[Any, Any]:
        """Of the positions below `length` and of more, [positions, head size].

        rotate_half(x) * sin is x rolled by half, times the sine with a minus in its first half.
        """
        if self._kept is None or len(self._kept[0]) < length:
            with torch.no_grad():
                cos, sin = self._rotary(like, torch.arange(2 * length, device=like.device)[None])
            half = cos.shape[-1] // 2
            self._kept = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)
        return self._kept


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
        self._out = _turned(*_joined([attention.o_proj]))
        self._gate_up = _joined([mlp.gate_proj, mlp.up_proj])
        self._down = _turned(*_joined([mlp.down_proj]))

    def __call__(self, cache: Any, number: int, hidden: Any, rotation: Any, mask: Any) -> Any:
        hidden = _added(hidden, self._attend(cache, number, self._before(hidden), rotation, mask), *self._out)
        gate, up = functional.linear(self._between(hidden), *self._gate_up).chunk(2, -1)
        return _added(hidden, functional.silu(gate).mul_(up), *self._down)

    def _attend(self, cache: Any, number: int, hidden: Any, rotation: tuple[Any, Any], mask: Any) -> Any:
        rows, _, length, _ = mask.shape
        heads = functional.linear(hidden, *self._project).view(len(hidden), -1, self._size)
        placed, values = heads.split((self._query_heads + self._key_heads, self._key_heads), 1)
        if self._norms:
            both = placed.split((self._query_heads, self._key_heads), 1)
            placed = torch.cat([norm(part) for norm, part in zip(self._norms, both, strict=True)], 1)
        cos, sin = rotation
        placed = torch.addcmul(placed * cos, placed.roll(self._size // 2, -1), sin)
        queries, keys = placed.split((self._query_heads, self._key_heads), 1)
        keys, values = cache.update(*(self._by_head(part, rows, length) for part in (keys, values)), number)
        if length == 1:  # the queries of a group are like tokens that look at the same
            queries = queries.reshape(rows, self._key_heads, self._groups, self._size)
            return self._seen(queries, keys, values, mask).view(rows, -1)
        if self._groups > 1:
            keys, values = (part.repeat_interleave(self._groups, 1) for part in (keys, values))
        seen = self._seen(self._by_head(queries, rows, length), keys, values, mask)
        return seen.transpose(1, 2).reshape(len(hidden), -1)

    def _by_head(self, part: Any, rows: int, length: int) -> Any:
        """[B, heads, T, size] from [B * T, heads, size]."""
        return part.unsqueeze(2) if length == 1 else part.unflatten(0, (rows, length)).transpose(1, 2)

    def _seen(self, queries: Any, keys: Any, values: Any, mask: Any) -> Any:
        return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=self._scale)


class _Norm:
    def __init__(self, norm: Any) -> None:
        self._weight, self._epsilon = norm.weight, norm.variance_epsilon
        self._small = torch.tensor(self._epsilon)
        # There torch puts its own together from ten operations.
        self._by_hand = norm.weight.device.type == "cpu" and norm.weight.dtype == torch.float32

    def __call__(self, hidden: Any) -> Any:
        if not self._by_hand:
            return functional.rms_norm(hidden, self._weight.shape, self._weight, self._epsilon)
        length = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        scale = torch.addcmul(self._small, length, length, value=1 / hidden.shape[-1]).rsqrt_()
        return (hidden * scale).mul_(self._weight)


def _added(hidden: Any, change: Any, weight: Any, bias: Any) -> Any:
    """hidden + change @ weight + bias, in one operation where there is no bias."""
    hidden = torch.addmm(hidden, change, weight)
    return hidden if bias is None else hidden + bias


def _turned(weight: Any, bias: Any) -> tuple[Any, Any]:
    return weight.t(), bias


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
