"""The ids of a prompt: those of an earlier turn and what is new where that is certain, rendered in full otherwise.

    prompts = Prompts(renderer, counts)
    ids = await prompts.ids(native, messages, Framing(tools, {}), state["trajectory"], stop=False)

`counts` is told how each prompt was made: "first", "continued", "rendered:CAUSE".
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from verifiers.clients.continuation import Continuations, DoubtError, Framing, Native
from verifiers.clients.rendering import Renderer
from verifiers.clients.tool_text import is_hermes
from verifiers.errors import ModelError
from verifiers.types import Message, exactness_of

logger = logging.getLogger(__name__)


class Prompts:
    """Makes the prompts of one renderer. `limit` is the model's context in tokens, None until it is told."""

    def __init__(self, renderer: Renderer, counts: Counter[str]) -> None:
        self.renderer = renderer
        self.limit: int | None = None
        self._continuations = Continuations(renderer)
        self._counts = counts
        self._writes_hermes: dict[str, bool] = {}

    async def ids(
        self,
        prompt: Sequence[Native],
        messages: Sequence[Message],
        framing: Framing,
        steps: Sequence[Mapping[str, Any]],
        *,
        stop: bool,
    ) -> list[int]:
        """The ids of a prompt, given both ways, after the turns `steps`. `stop`: a text may end replies."""
        try:
            ids = await self._continued(prompt, messages, framing, steps, stop) if steps else None
            how = "first" if ids is None else "continued"
        except DoubtError as doubt:
            ids, how = None, f"rendered:{doubt.cause}"
        if ids is None:
            rendered = await self.renderer.render(prompt, framing.tools, framing.arguments)
            ids, self.limit = rendered.ids, rendered.limit
        count(self._counts, how)
        return ids

    async def check_tools(self, framing: Framing) -> None:
        """Raise DoubtError unless the template writes tool calls in a form that can be read here."""
        key = repr(framing.arguments)
        if key not in self._writes_hermes:
            self._writes_hermes[key] = await self._probe_tools(framing)
        if not self._writes_hermes[key]:
            raise DoubtError("tools")

    async def _continued(
        self,
        prompt: Sequence[Native],
        messages: Sequence[Message],
        framing: Framing,
        steps: Sequence[Mapping[str, Any]],
        stop: bool,
    ) -> list[int]:
        """The ids of the latest turn that the messages continue, and those of what is new. Raises DoubtError."""
        step, length = _continued_step(steps, messages)
        tokens = step.get("tokens") or {}
        if exactness_of(tokens) != "exact":
            raise DoubtError("evidence")
        if step.get("is_truncated") or tokens.get("is_truncated"):
            raise DoubtError("truncated")
        if stop:
            raise DoubtError("stop")  # a reply that a text ended has no stop token
        seen = [*tokens["prompt_ids"], *tokens["completion_ids"]]
        try:
            return seen + await self._continuations.ids(prompt[:length], prompt[length:], seen[-1], framing)
        except ModelError as error:
            if error.retryable:
                raise
            raise DoubtError("refused") from error  # the template takes no stand-in conversation

    async def _probe_tools(self, framing: Framing) -> bool:
        call = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
        conversation: list[Native] = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_0", "content": "seen"},
        ]
        try:
            rendered = await self.renderer.render(conversation, framing.tools, framing.arguments)
        except ModelError as error:
            if error.retryable:
                raise
            return False
        return is_hermes(rendered.text, "look", {"at": 1})


def _continued_step(
    steps: Sequence[Mapping[str, Any]], messages: Sequence[Message]
) -> tuple[Mapping[str, Any], int]:
    """The turn with the longest conversation that `messages` begin with, the last of several, and that length."""
    lengths = [len(step["prompt"]) + len(step["completion"]) for step in steps]
    for length, number in sorted(zip(lengths, range(len(steps)), strict=True), reverse=True):
        step = steps[number]
        if isinstance(step["prompt"], list) and [*step["prompt"], *step["completion"]] == messages[:length]:
            return step, length
    raise DoubtError("context")


def count(counts: Counter[str], how: str) -> None:
    """Count how a prompt was made; the first of each doubtful way is told."""
    counts[how] += 1
    if counts[how] == 1 and ":" in how:
        way, cause = how.split(":")
        what = "rendered in full" if way == "rendered" else "sent to the chat route"
        logger.warning("token-in mode: a prompt was %s (cause: %s); each such turn may begin a row", what, cause)
