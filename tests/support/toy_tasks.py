"""Toy environments that a tiny model learns by GRPO from random weights, in some forty updates of a minute's CPU.

    folder = save_toy(tmp_path / "model")    # a model of `tiny_model` that hears its prompt, and a short template
    env = single_turn()                      # "A", "a" or "0": write four capitals, small letters, other characters

A random model of bytes hits a class of characters one time in ten, so that every group of rollouts has differences to
learn from, and it has to read the prompt, since the classes share no character. When to stop is not learned: one token
in 259 is too rare to be found in so few updates.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import verifiers as vf

LENGTH = 4
"""Characters of a right reply, and tokens that it may have: it is always cut off (`advantage.overlong = "keep"`)."""

CLASSES: dict[str, Callable[[str], bool]] = {
    "A": lambda character: "A" <= character <= "Z",
    "a": lambda character: "a" <= character <= "z",
    "0": lambda character: "!" <= character <= "@" or "[" <= character <= "`" or "{" <= character <= "~",
}

MEMBERS = {name: [chr(code) for code in range(33, 127) if is_in(chr(code))] for name, is_in in CLASSES.items()}
"""All characters of each class."""

PLACES = "klmnopqrstuv"
"""Where one may look."""

CALLS = [f'<tool_call>\n{{"name": "look", "arguments": {{"at": "{at}"}}}}\n</tool_call>' for at in PLACES]
"""Tool calls that `save_toy`'s tokenizer has as one token each. Others take some forty bytes."""

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
"""As the template shows them."""

TEMPLATE = """\
{%- for tool in tools or [] %}{{ tool.function.name }} {% endfor -%}
{%- for message in messages %}<|im_start|>{{ message.role[0] }}{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>{% endfor %}<|im_end|>{% endfor %}
{%- if add_generation_prompt %}<|im_start|>a{% endif %}"""
"""As short as a template with tools can be: a token a byte makes long prompts."""


def score(reply: str, wanted: str, length: int = LENGTH) -> float:
    """Share of the characters that are of the class; a call of a tool is none, though it is full of letters."""
    return sum(map(CLASSES[wanted], reply)) / length if len(reply) <= length else 0.0


def save_toy(folder: Path, kind: str = "qwen2", seed: int = 0, **changes: Any) -> Path:
    """Model and tokenizer as files. Weights are wide enough for the prompt to be heard through two random layers."""
    from tokenizers import AddedToken

    from tests.support.tiny_model import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer(TEMPLATE)
    tokenizer.add_tokens([AddedToken(call, normalized=False) for call in CALLS])
    shape = {"vocab_size": len(tokenizer), "initializer_range": 0.1}
    model = tiny_model(kind, seed, **{**shape, **changes})
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def single_turn(length: int = LENGTH) -> vf.SingleTurnEnv:
    """The prompt names a class; the reply is to have that many characters of it."""
    rows = [{"question": name, "answer": name} for name in CLASSES]

    def of_class(completion: Any, answer: str) -> float:
        return score(completion[-1]["content"] or "", answer, length)

    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([of_class]))


def look(at: str, found: str) -> str:
    """What is at a place."""
    return found


class LookEnv(vf.StatefulToolEnv):
    """The tool finds what the task has hidden; the prompt says nothing of it."""

    def update_tool_args(
        self, tool_name: str, tool_args: dict[str, Any], messages: Any, state: vf.State, **kwargs: Any
    ) -> dict[str, Any]:
        """The hidden class, for the tool."""
        return {**tool_args, "found": state["answer"]}


def tool_use() -> LookEnv:
    """What to write is seen by looking: a fifth for looking anywhere, the rest for writing what was seen.

    A call has to end: what is written behind it stands in no message, so that nothing else would speak against it.
    """

    def written(completion: Any, answer: str, state: vf.State) -> float:
        if len(completion) < 3 or state["trajectory"][0]["is_truncated"]:  # a call, the tool's message, a reply
            return 0.0
        return 0.2 + 0.8 * score(completion[-1]["content"] or "", answer)

    rows = [{"question": "?", "answer": name} for name in "Aa"]
    env = LookEnv(dataset=rows, rubric=vf.Rubric([written]), max_turns=2)
    env.add_tool(look, args_to_skip=["found"])
    return env


class CompactedEnv(vf.MultiTurnEnv):
    """Several classes in turn; each prompt is the number of the turn and its class, without what came before."""

    async def get_prompt_messages(self, state: vf.State) -> vf.Messages:
        """The present request alone, so that every turn begins a row."""
        turn = len(state["trajectory"])
        return [vf.UserMessage(f"{turn}{state['answer'][turn]}")]


def compacted() -> CompactedEnv:
    """Two turns with nothing in common: each rollout gives two rows."""
    pairs = ["Aa", "aA", "0A", "A0", "a0", "0a"]
    rows = [{"question": f"0{pair[0]}", "answer": pair} for pair in pairs]

    def of_classes(state: vf.State, answer: str) -> float:
        replies = [step["completion"][-1]["content"] or "" for step in state["trajectory"]]
        return sum(map(score, replies, answer)) / len(answer)

    return CompactedEnv(dataset=rows, rubric=vf.Rubric([of_classes]), max_turns=2)
