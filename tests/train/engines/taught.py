"""A tiny model that has learned two conversations by heart, one with a call of a tool, for real replies in tests."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from tests.support.tiny_model import END, PAD, tiny_model, tiny_tokenizer
from verifiers.envs.multiturn_env import MultiTurnEnv
from verifiers.envs.tool_env import ToolEnv
from verifiers.rubrics.rubric import Rubric
from verifiers.types import UserMessage

CALL = {"name": "add", "arguments": {"a": 2, "b": 3}}
STEPS = 70


def add(a: int, b: int) -> int:
    """Add.

    Args:
        a: one
        b: two
    """
    return a + b


class Talk(MultiTurnEnv):
    """Says "more" after every reply."""

    def __init__(self, turns: int = 3) -> None:
        super().__init__(dataset=[{"question": "hi"}], rubric=Rubric(funcs=[lambda: 1.0]), max_turns=turns)

    async def env_response(self, messages, state, **kwargs):
        return [UserMessage("more")]


def tool_env() -> ToolEnv:
    """One question that a tool answers."""
    return ToolEnv(
        dataset=[{"question": "2+3?", "answer": "5"}],
        tools=[add],
        rubric=Rubric(funcs=[lambda completion, answer: float(answer in str(completion[-1]["content"]))]),
        max_turns=4,
    )


def _conversations() -> list[tuple[list[dict[str, Any]], Any]]:
    function = {"name": CALL["name"], "arguments": CALL["arguments"]}
    call = {"id": "c", "type": "function", "function": function}
    tools = [tool.nested() for tool in tool_env().tool_defs]
    talk = [{"role": "user", "content": "hi"}]
    for _ in range(3):
        talk += [{"role": "assistant", "content": "yo"}, {"role": "user", "content": "more"}]
    return [
        (talk[:-1], None),
        (
            [
                {"role": "user", "content": "2+3?"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "5", "tool_call_id": "c"},
                {"role": "assistant", "content": "5"},
            ],
            tools,
        ),
    ]


def _example(text: str) -> tuple[list[int], list[int]]:
    """Ids of a conversation, and labels of the replies in it."""
    tokenizer = tiny_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    opening = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    labels = [-100] * len(ids)
    for place in range(len(ids)):
        if ids[place - len(opening) : place] == opening:
            end = ids.index(END, place) + 1
            labels[place:end] = ids[place:end]
    return ids, labels


@cache
def taught_model() -> Any:
    """The model, trained once a process. Whoever changes it takes a copy."""
    tokenizer = tiny_tokenizer()
    examples = [
        _example(tokenizer.apply_chat_template(messages, tools=tools, tokenize=False))
        for messages, tools in _conversations()
    ]
    longest = max(len(ids) for ids, _ in examples)
    ids = torch.tensor([ids + [PAD] * (longest - len(ids)) for ids, _ in examples])
    labels = torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in examples])
    model = tiny_model(seed=3).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()
