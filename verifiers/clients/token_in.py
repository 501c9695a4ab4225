"""The chat client that speaks in token ids: what was sampled is never tokenised again.

    client = as_client(ClientConfig(client_type="openai_chat_completions_token", api_base_url=…))
    await client.get_response(messages, model, sampling_args, tools, state=state)

The server's own template and tokenizer make the ids of the first prompt. From then on a prompt is, id for id, what the
engine has seen and sampled, followed by the new messages (`verifiers.clients.continuation`); so all turns of a rollout
become one training row. The ids go to the standard completions route. It takes a server with llama.cpp's or vLLM's
tokenizer routes.

Wherever it is not certain what the ids have to be, the conversation is rendered in full, as the chat route does it, and
where a reply cannot be read here, the chat route itself is asked. Either may cost a row and never gives a wrong token.
`counts` says how often each happened: "continued", "first", "rendered:CAUSE", "chat:CAUSE".

The completions route has no parsers behind it. Tool calls are read here, for templates that write them as Hermes and
Qwen do; thinking stays in the text, as from a server without a reasoning parser.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from verifiers.clients import sdk, wire
from verifiers.clients.chat import OpenAIChatCompletionsClient
from verifiers.clients.continuation import DoubtError, Framing, Native
from verifiers.clients.prompts import Prompts, count
from verifiers.clients.rendering import renderer_of
from verifiers.clients.tool_text import hermes_message
from verifiers.clients.transport import Retry, Transport
from verifiers.errors import ConfigError, EmptyModelResponseError
from verifiers.types import Message, Response, SamplingArgs

if TYPE_CHECKING:
    from verifiers.types import ClientConfig

TEMPLATE_ARGUMENTS = ("chat_template_kwargs",)
"""Request fields that change what the template writes, and that its own route takes too."""

CHAT_ONLY = frozenset(
    ("response_format", "tool_choice", "parallel_tool_calls", "chat_template", "documents", "modalities")
    + ("reasoning_effort", "add_generation_prompt", "continue_final_message", "reasoning_format", "thinking")
    + ("functions", "function_call", "audio")
)
"""Request fields whose meaning only the chat route knows."""

RENDER_RETRIES = 2
"""Templates refuse messages with a 500 (llama.cpp), which more attempts would not change."""


class OpenAIChatCompletionsTokenClient(OpenAIChatCompletionsClient):
    """Messages in and a message out, token ids in between. Made from a ClientConfig only."""

    def __init__(self, client_or_config: Any = None, *, retry: Retry | None = None) -> None:
        super().__init__(client_or_config, retry=retry)
        if self._config is None:
            raise ConfigError(
                "token-in mode needs a ClientConfig, not an SDK object",
                hint='Pass ClientConfig(client_type="openai_chat_completions_token", api_base_url=…).',
            )
        self.counts: Counter[str] = Counter()
        """How prompts were made, and how often."""
        self._roots = {
            id(transport): Transport(_beside(replica), retry, retried=self.retried)
            for transport, replica in zip(self._transports, self._config.expanded(), strict=True)
        }
        self._servers: dict[tuple[int, str], Prompts | None] = {}

    async def to_native_prompt(self, messages: list[Message]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Messages in OpenAI's form; the messages themselves go along, to be held against earlier turns."""
        native, extra = await super().to_native_prompt(messages)
        return native, {**extra, "messages": messages}

    async def get_native_response(
        self,
        prompt: Any,
        model: str,
        sampling_args: SamplingArgs,
        tools: list[Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """A reply in the form of the chat route, whichever route it came from."""
        messages = kwargs.pop("messages")
        state = kwargs.get("state")
        transport = self._transport(state)
        body = wire.sampling_body(sampling_args)
        framing = Framing(tools, {name: body.pop(name) for name in TEMPLATE_ARGUMENTS if name in body})
        try:
            server = await self._server(transport, model, body, prompt)
            if tools:
                await server.check_tools(framing)
        except DoubtError as doubt:
            count(self.counts, f"chat:{doubt.cause}")
            asked = await super().get_native_response(
                prompt, model, _with_evidence(sampling_args), tools, **kwargs
            )
            return sdk.plain_reply(asked)
        steps = (state or {}).get("trajectory") or []
        ids = await server.ids(prompt, messages, framing, steps, stop=bool(body.get("stop")))
        options = sdk.request_options(body)
        headers = {**(options.get("extra_headers") or {}), **(kwargs.get("extra_headers") or {})}
        data = await transport.post(
            "/completions",
            {"model": model, "prompt": ids, **_completions_body(body, len(ids), server.limit)},
            headers=headers or None,
            timeout=options.get("timeout"),
        )
        return _as_chat(data, ids, bool(tools))

    async def raise_from_native_response(self, response: Any) -> None:
        """InvalidModelResponseError unless there is one choice. With the ids of what was sampled, a reply without text
        is a reply: it is trained on like any other."""
        try:
            await super().raise_from_native_response(response)
        except EmptyModelResponseError:
            if not wire.the_choice(response).get("token_ids"):
                raise

    async def from_native_response(self, response: Any) -> Response:
        """The reply; prompt ids that the engine may not have seen are marked as rebuilt."""
        answer = await super().from_native_response(response)
        if response.get("prompt_rebuilt") and answer["message"]["tokens"] is not None:
            answer["message"]["tokens"]["prompt_rebuilt"] = True
        return answer

    async def close(self) -> None:
        """Close the connections."""
        await super().close()
        for transport in self._roots.values():
            await transport.close()

    # --- the prompt -------------------------------------------------------------------------------------------

    async def _server(
        self, transport: Transport, model: str, body: Mapping[str, Any], prompt: Sequence[Native]
    ) -> Prompts:
        """The server's tokenizer. DoubtError where only the chat route can answer."""
        if not CHAT_ONLY.isdisjoint(body):
            raise DoubtError("arguments")
        if any(_has_media(message) for message in prompt):
            raise DoubtError("media")
        key = (id(transport), model)
        if key not in self._servers:
            renderer = await renderer_of(self._roots[id(transport)], model)
            self._servers[key] = None if renderer is None else Prompts(renderer, self.counts)
        server = self._servers[key]
        if server is None:
            raise DoubtError("server")
        return server


def _beside(replica: ClientConfig) -> ClientConfig:
    """How the routes beside `/v1` are reached: over few connections, since each may take a thread of the server."""
    changes = {
        "api_base_url": replica.api_base_url.removesuffix("/v1"),
        "max_connections": max(4, min(64, replica.max_connections // 8)),
        "max_retries": min(replica.max_retries, RENDER_RETRIES),
    }
    return replica.model_copy(update=changes)


# --- requests and replies -------------------------------------------------------------------------------------


def _completions_body(body: Mapping[str, Any], asked: int, limit: int | None) -> dict[str, Any]:
    """The sampling arguments as the completions route takes them, with the fields that ask for evidence.

    Its limit of the reply has another name, and another default (16 with vLLM) where the chat route has none.
    """
    native = {key: value for key, value in body.items() if key not in ("max_completion_tokens", "top_logprobs")}
    tokens = body.get("max_completion_tokens") or body.get("max_tokens")
    if tokens is None and limit is not None:
        tokens = max(1, limit - asked)
    if tokens is not None:
        native["max_tokens"] = tokens
    return {**native, "logprobs": 1, "return_token_ids": True, "return_tokens_as_token_ids": True}


def _with_evidence(sampling_args: SamplingArgs) -> SamplingArgs:
    """The sampling arguments of the chat route, asking for logprobs and ids."""
    body = dict(sampling_args.get("extra_body") or {})
    return {
        "top_logprobs": 1,
        **sampling_args,
        "logprobs": True,
        "extra_body": {"return_token_ids": True, **body},
    }


def _as_chat(data: Any, ids: list[int], has_tools: bool) -> dict[str, Any]:
    """A reply of the completions route in the form of the chat route, with the prompt ids it was asked with."""
    choice = dict(wire.the_choice(data))
    text = choice.get("text")
    if isinstance(text, str):
        choice["message"] = hermes_message(text) if has_tools else {"role": "assistant", "content": text}
        if choice["message"].get("tool_calls") and choice.get("finish_reason") == "stop":
            choice["finish_reason"] = "tool_calls"
    reply = {**data, "choices": [choice]}
    if not choice.get("prompt_token_ids"):
        reply["prompt_token_ids"] = ids
        counted = (data.get("usage") or {}).get("prompt_tokens")
        if isinstance(counted, int) and counted != len(ids):
            reply["prompt_rebuilt"] = True  # the engine counts others than it was sent
    return reply


def _has_media(message: Native) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") != "text" for part in content)
