"""What the training examples train where no model is given: a random one of 90,000 parameters, made in code.

It reads bytes, and learns to answer "A" with capitals and "a" with small letters.
"""

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config

import verifiers as vf

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role[0] }}{{ message.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>a{% endif %}"
)


def toy_tokenizer() -> Any:
    """Every byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {"eos_token": "<|im_end|>", "pad_token": "<|pad|>", "extra_special_tokens": ["<|im_start|>"]}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE, **special)


def toy_model() -> Any:
    """Two layers, and weights wide enough for a random model to hear its prompt."""
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"vocab_size": 259, "eos_token_id": 256, "pad_token_id": 257, "bos_token_id": None}
    config = Qwen2Config(**shape, **ids, num_key_value_heads=2, initializer_range=0.15, tie_word_embeddings=True)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def toy_environment() -> vf.Environment:
    """Two tasks; the reward is the share of two characters that are of the kind asked for."""

    def of_kind(completion: list[dict], answer: str) -> float:
        kind = str.isupper if answer == "A" else str.islower
        return sum(character.isascii() and kind(character) for character in completion[-1]["content"][:2]) / 2

    rows = [{"question": kind, "answer": kind} for kind in "Aa"]
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=vf.Rubric(funcs=[of_kind]))
