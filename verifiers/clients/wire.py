"""The OpenAI protocol as data: messages and tools on the way out, replies on the way in.

Pure functions over plain dicts, with no validation library in between: this runs once per model call. What an engine
reports beyond the protocol is kept: token ids and logprobs in the forms of vLLM (`prompt_token_ids`, `token_ids`),
SGLang (`return_tokens_as_token_ids` strings) and llama.cpp (an `id` in each entry of the logprobs).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from verifiers.errors import ConfigError, EmptyModelResponseError, InvalidModelResponseError
from verifiers.types import (
    FinishReason,
    Message,
    Response,
    ResponseMessage,
    ResponseTokens,
    SamplingArgs,
    Tool,
    ToolCall,
    Usage,
    message_text,
)

REASONING_FIELDS = ("reasoning", "reasoning_content", "reasoning_details")
"""Where servers put the reasoning: vLLM and OpenRouter, DeepSeek and SGLang, structured forms."""

LOGPROB_SENTINEL = -9999.0
"""What vLLM writes for a logprob it does not have."""

_OTHER_FIELDS = ("role", "content", "tool_call_id", "name")
_FINISH_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "tool_calls": "tool_calls"}

# --- requests -------------------------------------------------------------------------------------------------


def native_message(message: Message) -> dict[str, Any]:
    """One message as the chat route takes it: bare text as the user's, tool calls nested."""
    role = message["role"]
    if role == "text":
        return {"role": "user", "content": message["content"]}
    if role != "assistant":
        # Rows of a data set bring the unset fields of other roles along, which strict servers refuse.
        return (
            message if len(message) == 2 else {key: message[key] for key in _OTHER_FIELDS if message.get(key)}
        )
    calls = message.get("tool_calls")
    native = {key: message[key] for key in ("role", "content", "reasoning_content") if key in message}
    if calls:
        native["tool_calls"] = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in calls
        ]
    return native


def native_tool(tool: Tool) -> dict[str, Any]:
    """A tool as a function schema."""
    return tool.nested()


def has_audio(messages: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a message brings sound."""
    return any(
        str(part.get("type", "")).startswith("input_audio")
        for message in messages
        if isinstance(content := message.get("content"), list)
        for part in content
        if isinstance(part, Mapping)
    )


def sampling_body(sampling_args: SamplingArgs) -> dict[str, Any]:
    """The sampling arguments as fields of the request: None dropped, `extra_body` merged in.

    ConfigError for `stream` and for `n` other than 1, which would be paid for and thrown away.
    """
    body = {key: value for key, value in sampling_args.items() if value is not None}
    body.update(body.pop("extra_body", None) or {})
    if body.get("top_logprobs") == 0:  # the default; some servers refuse it beside logprobs
        del body["top_logprobs"]
    if body.pop("n", 1) != 1:
        raise ConfigError(
            "the sampling argument n must be 1", hint="Ask for several rollouts of each task instead (-r)."
        )
    if body.pop("stream", False):
        raise ConfigError("the sampling argument stream is not supported", hint="Leave it out.")
    return body


# --- replies --------------------------------------------------------------------------------------------------


def the_choice(data: Any) -> Mapping[str, Any]:
    """The one choice of a reply. InvalidModelResponseError for any other number, or for something else."""
    choices = data.get("choices") if isinstance(data, dict) else None
    if not isinstance(choices, list):
        raise InvalidModelResponseError(f"the reply has no choices: {_short(data)}")
    if len(choices) != 1:
        raise InvalidModelResponseError(f"the reply has {len(choices)} choices where 1 was asked for")
    if not isinstance(choices[0], dict):
        raise InvalidModelResponseError(f"the choice of the reply is no object: {_short(choices[0])}")
    return choices[0]


def check_chat(data: Any) -> None:
    """Raise unless the reply has one choice with text, a refusal, a tool call or reasoning."""
    message = the_choice(data).get("message")
    if not isinstance(message, dict):
        raise InvalidModelResponseError(f"the choice of the reply has no message: {_short(message)}")
    if not (
        message_text(message.get("content"))
        or message.get("refusal")
        or message.get("tool_calls")
        or any(message.get(name) for name in REASONING_FIELDS)
        or _reasoning_tokens(data.get("usage"))
    ):
        raise EmptyModelResponseError("the model gave no text and called no tool")


def chat_response(data: Mapping[str, Any]) -> Response:
    """A checked reply of the chat route."""
    choice = data["choices"][0]
    message = choice["message"]
    content = message.get("content")
    if not message_text(content):
        content = message.get("refusal") or content
    fields: dict[str, Any] = {}
    reasoning = _reasoning(message)
    if reasoning:
        fields["reasoning_content"] = reasoning
    if calls := message.get("tool_calls"):
        fields["tool_calls"] = [tool_call(call) for call in calls]
    return _response(data, choice, ResponseMessage(content, **fields, **_ending(choice)))


def check_text(data: Any) -> None:
    """Raise unless the reply has one choice with text."""
    text = the_choice(data).get("text")
    if not isinstance(text, str):
        raise InvalidModelResponseError(f"the choice of the reply has no text: {_short(text)}")
    if not text:
        raise EmptyModelResponseError("the model gave no text")


def text_response(data: Mapping[str, Any]) -> Response:
    """A checked reply of the completions route."""
    choice = data["choices"][0]
    return _response(data, choice, ResponseMessage(choice["text"], **_ending(choice)))


def tool_call(call: Any) -> ToolCall:
    """A tool call of a reply. InvalidModelResponseError if it names no tool.

    The arguments stay as the model wrote them, valid or not: whoever runs the tool answers for bad ones. A missing
    id becomes the name.
    """
    function = call.get("function") if isinstance(call, dict) else None
    source = function if isinstance(function, dict) else call
    if not isinstance(source, dict) or not source.get("name"):
        raise InvalidModelResponseError(f"a tool call names no tool: {_short(call)}")
    arguments = source.get("arguments")
    if not isinstance(arguments, str):
        arguments = _json(arguments) if arguments is not None else "{}"
    return ToolCall(str(call.get("id") or source["name"]), str(source["name"]), arguments)


def _response(data: Mapping[str, Any], choice: Mapping[str, Any], message: ResponseMessage) -> Response:
    tokens = tokens_of(data, choice)
    if tokens is not None:
        message["tokens"] = tokens
    created = data.get("created")
    response = Response(
        id=str(data.get("id") or ""),
        created=int(created) if isinstance(created, int | float) else 0,
        model=str(data.get("model") or ""),
        message=message,
        usage=usage_of(data.get("usage")),
    )
    if tokens is None and choice.get("logprobs"):
        response["logprobs"] = choice[
            "logprobs"
        ]  # no ids to go with them, so no evidence, but not thrown away
    return response


def _ending(choice: Mapping[str, Any]) -> dict[str, Any]:
    reason = _FINISH_REASONS.get(choice.get("finish_reason") or "")
    return {"finish_reason": reason} if reason else {}


def _reasoning(message: Mapping[str, Any]) -> str | None:
    for name in REASONING_FIELDS:
        value = message.get(name)
        if isinstance(value, list):  # structured: text or summary of each part
            parts = (part.get("text") or part.get("summary") for part in value if isinstance(part, dict))
            value = "\n".join(str(part) for part in parts if part)
        if isinstance(value, str) and value:
            return value
    return None


def usage_of(usage: Any) -> Usage | None:
    """The `usage` of a reply; None if it does not count both sides."""
    if not isinstance(usage, dict):
        return None
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    completion = usage.get("completion_tokens", usage.get("output_tokens"))
    if not isinstance(prompt, int) or not isinstance(completion, int):
        return None
    total = usage.get("total_tokens")
    read = Usage(prompt, completion, total if isinstance(total, int) else None, _reasoning_tokens(usage))
    if cached := _detail(usage, "prompt_tokens_details", "cached_tokens"):
        read["cached_tokens"] = cached
    if isinstance(cost := usage.get("cost"), int | float):  # routers report what the call cost, in US dollars
        read["cost"] = float(cost)
    return read


def _reasoning_tokens(usage: Any) -> int:
    return _detail(usage, "completion_tokens_details", "reasoning_tokens")


def _detail(usage: Any, group: str, name: str) -> int:
    details = usage.get(group) if isinstance(usage, dict) else None
    count = details.get(name) if isinstance(details, dict) else None
    return count if isinstance(count, int) else 0


# --- token evidence -------------------------------------------------------------------------------------------


def tokens_of(data: Mapping[str, Any], choice: Mapping[str, Any]) -> ResponseTokens | None:
    """The engine's own ids and logprobs, as far as it reports them; None without any id.

    Logprobs are kept only if there is one finite value for each completion id: anything else would pair them with
    the wrong tokens, and the label `exactness` then says what is missing.
    """
    logprobs = choice.get("logprobs")
    prompt_ids = _ids(data.get("prompt_token_ids")) or _ids(choice.get("prompt_token_ids"))
    completion_ids = _ids(choice.get("token_ids"))
    if logprobs is None and not prompt_ids and not completion_ids:
        return None
    named, values = _logprobs(logprobs)
    completion_ids = completion_ids or _all_sampled(named, data.get("usage"))
    if not prompt_ids and not completion_ids:
        return None
    if len(values) != len(completion_ids) or not all(_is_logprob(value) for value in values):
        values = []
    return ResponseTokens(
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        completion_logprobs=values,
        completion_versions=_versions(choice, len(completion_ids)),
        routed_experts=choice.get("routed_experts"),
    )


def _all_sampled(named: list[int], usage: Any) -> list[int]:
    """The ids that logprobs name, or [] if more were sampled.

    llama.cpp has no entry for a token that ends inside a character, nor for those of a stop string.
    """
    count = usage.get("completion_tokens") if isinstance(usage, dict) else None
    return named if not isinstance(count, int) or count == len(named) else []


def _logprobs(logprobs: Any) -> tuple[list[int], list[Any]]:
    """Ids (as far as the entries name them) and values, of the chat or the completions form."""
    if not isinstance(logprobs, dict):
        return [], []
    content = logprobs.get("content")
    if isinstance(content, list):
        values = [entry.get("logprob") for entry in content]
        ids = [_named_id(entry.get("id"), entry.get("token")) for entry in content]
    else:
        values = logprobs.get("token_logprobs") or []
        ids = [_named_id(None, token) for token in logprobs.get("tokens") or []]
    return (ids if all(token is not None for token in ids) else []), values  # type: ignore[return-value]


def _named_id(given: Any, token: Any) -> int | None:
    if isinstance(given, int):
        return given
    if isinstance(token, str) and token.startswith("token_id:") and token[9:].isdecimal():
        return int(token[9:])
    return None


def _versions(choice: Mapping[str, Any], count: int) -> list[int] | None:
    """The policy version of each token: in a list of our own server, in spans of vLLM's (`weight_versions`)."""
    versions = choice.get("token_versions")
    if versions is None and isinstance(spans := choice.get("weight_versions"), list):
        labels = [(str(span.get("version")), span.get("start"), span.get("end")) for span in spans]
        if not all(label.isdecimal() and isinstance(end, int) for label, _, end in labels):
            return None  # weights that nobody named
        versions = [int(label) for label, start, end in labels for _ in range(start, end)]
    return versions if isinstance(versions, list) and len(versions) == count else None


def _ids(value: Any) -> list[int]:
    return value if isinstance(value, list) and value and isinstance(value[0], int) else []


def _is_logprob(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > LOGPROB_SENTINEL


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"


def with_plain_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Content that is text in parts as one text, a part a line (as vLLM does): templates of models of text would write
    the list itself, braces and all. Other parts stay for templates that know them."""
    parts = message.get("content")
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) and "text" in part for part in parts):
        return message
    return {**message, "content": "\n".join(str(part["text"]) for part in parts)}
