"""A client for a sampler in this process: messages in, a message out, and exact token evidence.

    client = SamplerClient(engine, TokenizerRenderer(tokenizer, context=1024))
    results = await env.evaluate(client, "policy", sampling_args={"max_tokens": 64})

Any `verifiers.clients.sampler.Sampler` will do, and a tokenizer of Hugging Face's with its chat template. From the
second turn on a prompt is, id for id, what the sampler has seen and sampled followed by what is new
(`verifiers.clients.continuation`), so that all turns of a rollout become one training row; `counts` says how often it
was, and why not. A prompt that is a text (completion mode) or token ids is continued as it is. Tool calls are read
where the template writes them as Hermes and Qwen do; thinking stays in the text.

No torch is imported here. A reply without text is a reply: its tokens are evidence like any others.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from verifiers.clients import sdk, wire
from verifiers.clients.base import Client
from verifiers.clients.continuation import DoubtError, Framing
from verifiers.clients.prompts import Prompts
from verifiers.clients.rendering import REMEMBERED_TEXTS, Rendered
from verifiers.clients.routes import pack_routes
from verifiers.clients.sampler import Completion, Sampler
from verifiers.clients.token_in import CHAT_ONLY, TEMPLATE_ARGUMENTS
from verifiers.clients.tool_text import hermes_message
from verifiers.errors import ConfigError, ModelError
from verifiers.types import (
    FinishReason,
    Message,
    Response,
    ResponseMessage,
    ResponseTokens,
    SamplingArgs,
    Tool,
    Usage,
    exactness_of,
)

_DECODED_BY_BACKEND = "transformers.tokenization_utils_base", "transformers.tokenization_utils_tokenizers"
"""Where `decode` and `_decode` of a tokenizer with a backend in Rust are defined."""

K = TypeVar("K")
V = TypeVar("V")


class TokenizerRenderer:
    """A `Renderer` over a tokenizer of Hugging Face's. `context`: the model's, in tokens."""

    def __init__(self, tokenizer: Any, context: int | None = None) -> None:
        self.tokenizer = tokenizer
        self._plain = _leaves_decoding_to_backend(tokenizer)
        self._context = context
        self._remembered: OrderedDict[str, list[int]] = OrderedDict()
        self._rendered: OrderedDict[bytes, Rendered] = OrderedDict()

    async def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, arguments: Mapping[str, Any]
    ) -> Rendered:
        """The conversation up to the prompt of the next reply. ModelError if the template refuses it.

        What was rendered lately is remembered: the rollouts of a group begin with one prompt.
        """
        key = _json_of((messages, tools, arguments))
        rendered = None if key is None else self._rendered.get(key)
        if rendered is None:
            text = self._text(messages, tools, arguments)
            rendered = Rendered(text, await self.ids(text), self._context)
            if key is not None:
                _remember(self._rendered, key, rendered)
        return rendered

    def _text(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, arguments: Mapping[str, Any]
    ) -> str:
        options = {**arguments, **(arguments.get("chat_template_kwargs") or {})}
        options.pop("chat_template_kwargs", None)
        try:
            text: str = self.tokenizer.apply_chat_template(
                [_parsed(wire.with_plain_text(message)) for message in messages],
                tools=list(tools) if tools else None,
                tokenize=False,
                **{"add_generation_prompt": True, **options},
            )
        except Exception as error:  # templates are programs: they raise whatever they like
            raise ModelError(
                f"the chat template refuses the messages: {type(error).__name__}: {error}",
                hint="Look at the tokenizer's chat_template; base models have none: use completion mode.",
            ) from error
        return text

    async def ids(self, text: str) -> list[int]:
        """The ids of a text that `render` gave, or of a beginning of it."""
        if text not in self._remembered:
            _remember(self._remembered, text, self.encode(text))
        return self._remembered[text]

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text. Special tokens in it are read as such; with `special` the tokenizer adds its own."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=special)
        return ids

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids, without special tokens unless asked for."""
        decoder = self.tokenizer.backend_tokenizer if self._plain else self.tokenizer
        text: str = decoder.decode(list(ids), skip_special_tokens=not special)
        return text


class SamplerClient(Client):
    """Asks a sampler of this process. `model` in requests names nothing here: there is one."""

    def __init__(self, sampler: Sampler, renderer: TokenizerRenderer) -> None:
        super().__init__()
        self.sampler = sampler
        self.renderer = renderer
        self.counts: Counter[str] = Counter()
        """How prompts were made, and how often."""
        self._prompts = Prompts(renderer, self.counts)
        self._name = f"local-{os.urandom(8).hex()}"
        self._replies = itertools.count(1)

    def read_prompt(self, prompt: Any) -> Any:
        """A text and token ids pass as they are (completion mode), anything else becomes messages."""
        is_ids = isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt)
        return prompt if isinstance(prompt, str) or is_ids else super().read_prompt(prompt)

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        """Messages in OpenAI's form; the messages themselves go along, to be held against earlier turns."""
        if isinstance(messages, str) or (messages and isinstance(messages[0], int)):
            return messages, {}
        return [wire.native_message(message) for message in messages], {"messages": messages}

    async def to_native_tool(self, tool: Tool) -> dict[str, Any]:
        """A function schema."""
        return wire.native_tool(tool)

    async def get_native_response(
        self,
        prompt: Any,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[Any] | None = None,
        **kwargs: Any,
    ) -> Response:
        """Make the prompt's ids, sample, and read the reply."""
        body = wire.sampling_body(sampling_args)
        sdk.request_options(body)
        if meant := CHAT_ONLY.intersection(body):
            raise ConfigError(
                f"a sampler in this process does not know the sampling argument {min(meant)}",
                hint="Leave it out, or use an endpoint's chat route.",
            )
        framing = Framing(tools, {name: body.pop(name) for name in TEMPLATE_ARGUMENTS if name in body})
        steps = (kwargs.get("state") or {}).get("trajectory") or []
        messages: list[Message] | None = kwargs.get("messages")
        if messages is None:
            ids = self._text_ids(prompt, steps)
        else:
            ids = await self._chat_ids(prompt, messages, framing, steps, bool(body.get("stop")))
        completion = await self.sampler.generate(ids, body)
        return self._response(ids, completion, body, model, has_tools=bool(tools))

    async def raise_from_native_response(self, response: Any) -> None:
        """Nothing to refuse: the sampler has raised, or this is its reply."""

    async def from_native_response(self, response: Response) -> Response:
        """It is one already."""
        return response

    # --- prompts ----------------------------------------------------------------------------------------------

    async def _chat_ids(
        self, prompt: Any, messages: list[Message], framing: Framing, steps: Sequence[Any], stop: bool
    ) -> list[int]:
        for message in prompt:
            content = message.get("content")
            if isinstance(content, list) and any(part.get("type") != "text" for part in content):
                raise ConfigError(
                    "a sampler in this process takes text only, no pictures and no sound",
                    hint="Serve the model with vLLM.",
                )
        if framing.tools:
            try:
                await self._prompts.check_tools(framing)
            except DoubtError:
                raise ConfigError(
                    "the tokenizer's chat template does not write tool calls as Hermes and Qwen do, so replies "
                    "could not be read",
                    hint="Serve the model with vLLM and its parser of tool calls.",
                ) from None
        return await self._prompts.ids(prompt, messages, framing, steps, stop=stop)

    def _text_ids(self, prompt: str | list[int], steps: Sequence[Any]) -> list[int]:
        """Ids of a text: those of the latest turn that it continues, if its reply is in it to the letter."""
        if not isinstance(prompt, str):
            return prompt
        for step in reversed(steps):
            tokens = step.get("tokens") or {}
            said = isinstance(step["prompt"], str) and step["prompt"] + step["completion"]
            if not said or not prompt.startswith(said) or exactness_of(tokens) != "exact":
                continue
            if self.renderer.decode(tokens["completion_ids"], special=True) == step["completion"]:
                rest = prompt[len(said) :]
                return [*tokens["prompt_ids"], *tokens["completion_ids"], *self.renderer.encode(rest)]
        return self.renderer.encode(prompt, special=True)

    # --- replies ----------------------------------------------------------------------------------------------

    def _response(
        self, ids: list[int], completion: Completion, body: Mapping[str, Any], model: str, *, has_tools: bool
    ) -> Response:
        text = cut_at(self.renderer.decode(completion.tokens), body.get("stop"))
        fields: dict[str, Any] = {"content": text}
        reason: FinishReason | None = completion.finish_reason
        if has_tools:
            message = hermes_message(text)
            fields["content"] = message["content"]
            if calls := message.get("tool_calls"):
                fields["tool_calls"] = [wire.tool_call(call) for call in calls]
                reason = "tool_calls" if reason == "stop" else reason
        tokens = ResponseTokens(
            prompt_ids=ids,
            completion_ids=completion.tokens,
            completion_logprobs=completion.logprobs,
            completion_versions=completion.versions,
            routed_experts=pack_routes(completion.routed_experts),
        )
        return Response(
            id=f"{self._name}-{next(self._replies)}",
            created=int(time.time()),
            model=model,
            message=ResponseMessage(**fields, finish_reason=reason, tokens=tokens),
            usage=Usage(len(ids), len(completion.tokens)),
        )


def _leaves_decoding_to_backend(tokenizer: Any) -> bool:
    """Whether transformers adds nothing to what the backend decodes but a look at each id."""
    methods = [getattr(type(tokenizer), name, None) for name in ("decode", "_decode")]
    own = tuple(getattr(method, "__module__", None) for method in methods) == _DECODED_BY_BACKEND
    return own and not tokenizer.clean_up_tokenization_spaces


def _remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    while len(memory) >= REMEMBERED_TEXTS:
        memory.popitem(last=False)
    memory[key] = value


def _json_of(value: Any) -> bytes | None:
    """The value as JSON, None for what can not be written so."""
    import orjson

    try:
        return orjson.dumps(value)
    except TypeError:
        return None


def cut_at(text: str, stop: str | Sequence[str] | None) -> str:
    """A reply up to the first of the texts that end it."""
    stops = [stop] if isinstance(stop, str) else stop or ()
    places = [text.find(mark) for mark in stops if mark in text]
    return text[: min(places)] if places else text


def _parsed(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message as templates read it: arguments of tool calls as an object, where they are one (as vLLM does)."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    return {**message, "tool_calls": [{**call, "function": _with_object(call["function"])} for call in calls]}


def _with_object(function: Mapping[str, Any]) -> Mapping[str, Any]:
    import orjson

    try:
        arguments = orjson.loads(function["arguments"])
    except (TypeError, orjson.JSONDecodeError):
        return function
    return {**function, "arguments": arguments} if isinstance(arguments, dict) else function
