"""Attention over packed rows by where they begin, instead of a mask over all pairs of tokens.

    register()                                         # then attn_implementation="segments" when a model is loaded
    model(…, segment_lengths=[310, 702, 8])            # of the one sequence; None is one row, or padded rows
    model(…, segment_lengths=[310, 102], segment_prompts=[(0, 0), (0, 200)])        # the second begins as the first

Each row goes through `scaled_dot_product_attention` alone, as plain causal attention, for which PyTorch has its flash
kernels; with a mask it has not, and 8 rows of 1,000 tokens cost eight times the arithmetic. For GPUs without the
flash-attn package. On a CPU, where rows are short, the mask is quicker.

A row whose prompt is another's (`verifiers.train.sharing`) is put together again here, and nowhere else.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface

from verifiers.errors import ConfigError

NAME = "segments"


def register() -> None:
    """Make the name known to transformers, which then makes no masks for it."""
    AttentionInterface.register(NAME, attend)


def check(config: Any) -> None:
    """Raise ConfigError for a model whose attention is limited by its mask alone, as Llama 4's is to chunks."""
    if "chunked_attention" in (getattr(config.get_text_config(), "layer_types", None) or ()):
        raise ConfigError(
            f"attention by segments knows no chunks, which {config.model_type} attends within",
            hint='Set model.attention = "eager", or "flash_attention_2" where that package is installed.',
        )


def attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    segment_lengths: list[int] | None = None,
    segment_prompts: list[tuple[int, int]] | None = None,
    **others: Any,
) -> tuple[Any, None]:
    """[B, heads, T, D] each, to [B, T, heads, D]; the form that transformers calls. ConfigError for what it lacks."""
    if attention_mask is not None or any(others.get(name) is not None for name in ("softcap", "s_aux")):
        raise ConfigError(
            f"attention by segments knows no {type(module).__name__}",
            hint='Set model.attention = "eager", or "flash_attention_2" where that package is installed.',
        )
    lengths = segment_lengths or [query.shape[2]]
    prompts = segment_prompts or [(0, 0)] * len(lengths)
    splits = (whole.split(lengths, 2) for whole in (query, key, value))
    parts = []
    for *own, (begin, end) in zip(*splits, prompts, strict=True):
        if end > begin:
            wholes = zip((query, key, value), own, strict=True)
            own = [torch.cat([whole[:, :, begin:end], part], 2) for whole, part in wholes]
        q, k, v = own
        part = torch.nn.functional.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=_window(q, sliding_window),
            dropout_p=dropout,
            is_causal=sliding_window is None or q.shape[2] <= sliding_window,
            scale=scaling,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        parts.append(part[:, :, end - begin :])
    return torch.cat(parts, 2).transpose(1, 2).contiguous(), None


def _window(query: Any, sliding_window: int | None) -> Any:
    """[T, T] bool of the last `sliding_window` tokens for each; None where plain causal attention says the same."""
    length = query.shape[2]
    if sliding_window is None or length <= sliding_window:
        return None
    at = torch.arange(length, device=query.device)
    back = at[:, None] - at[None, :]
    return (back >= 0) & (back < sliding_window)
