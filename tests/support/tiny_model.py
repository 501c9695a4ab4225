"""Language models that are made here: a tokenizer of bytes and random weights of a known architecture, in code.

    tokenizer = tiny_tokenizer()             # 256 bytes and the special tokens of ChatML, and a template with tools
model = tiny_model()                     # Qwen2, two layers, about 90,000 parameters
folder = save_tiny(tmp_path / "model")   # what from_pretrained reads
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END, PAD, START = 256, 257, 258

TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools:{% for tool in tools %} {{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""ChatML, with tool calls in the form of the Hermes family."""


def tiny_tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    """Every byte is a token; ids 0 to 255 are the bytes in the order of GPT-2's byte alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
    )
    wrapped.chat_template = template
    return wrapped


def tiny_config(kind: str = "qwen2", **changes: Any) -> Any:
    """A configuration: "qwen2" (dense), or "qwen3_moe" (four experts, two a token)."""
    from transformers import Qwen2Config, Qwen3MoeConfig

    shape: dict[str, Any] = {
        "vocab_size": 259,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": True,
        "pad_token_id": PAD,
        "eos_token_id": END,
        "bos_token_id": None,
    }
    if kind == "qwen2":
        return Qwen2Config(**{**shape, **changes})
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 16}
    return Qwen3MoeConfig(**{**shape, **experts, **changes})


def tiny_model(kind: str = "qwen2", seed: int = 0, **changes: Any) -> Any:
    """A model with random weights, float32."""
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(tiny_config(kind, **changes), dtype=torch.float32)


def save_tiny(folder: Path, kind: str = "qwen2", seed: int = 0, **changes: Any) -> Path:
    """Model and tokenizer as files."""
    tiny_model(kind, seed, **changes).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


def write_gguf(path: Path, model: Any) -> None:
    """The tiny model in llama.cpp's format, with a tokenizer of bytes."""
    import gguf
    import numpy as np

    config, writer = model.config, gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    vocabulary = {**tiny_tokenizer().get_vocab(), "ab": 259}
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(256)
    writer.add_pad_token_id(257)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, value in model.named_parameters():
        writer.add_tensor(names.get_name(name, (".weight", ".bias")), value.detach().numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
