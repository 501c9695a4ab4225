"""What a model gave back: the message, why it ended, what it cost, and its token evidence.

`ResponseTokens` holds the engine's own ids and logprobs, as far as the endpoint reports them. They are the only
ground on which training rows are built, so they are kept exactly as received.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from verifiers.types.messages import AssistantMessage, Content, ToolCall
from verifiers.types.record import Record

R = TypeVar("R", bound=Record)
SamplingArgs = dict[str, Any]
FinishReason = Literal["stop", "length", "tool_calls"]
Exactness = Literal["exact", "rendered", "none"]


class Tool(Record):
    """A tool as the model sees it: `parameters` is a JSON schema of an object.

    It also answers OpenAI's nested form: `tool["function"]["name"]`, `tool["type"] == "function"`.
    """

    _optional = frozenset({"strict"})
    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool | None

    def __init__(
        self, name: str, description: str = "", parameters: dict[str, Any] | None = None, strict: bool | None = None
    ) -> None:
        schema = {"type": "object", "properties": {}} if parameters is None else parameters
        super().__init__(name=name, description=description, parameters=schema)
        if strict is not None:
            self["strict"] = strict

    def nested(self) -> dict[str, Any]:
        """OpenAI's form, which the endpoint is sent and `oai_tools` of the 0.1 series holds."""
        return {"type": "function", "function": dict(self)}

    def __missing__(self, key: str) -> Any:
        if key == "function":
            return Record(self)
        return "function" if key == "type" else super().__missing__(key)


class Usage(Record):
    """Tokens of one model call, as the endpoint counts them.

    `cached_tokens` of the prompt's were cached, and `cost` is in US dollars, where the endpoint says so.
    """

    _optional = frozenset({"cached_tokens", "cost"})
    prompt_tokens: int
    reasoning_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int | None
    cost: float | None

    def __init__(
        self,
        prompt_tokens: int = 0,
        completion_tokens: int = 0,
        total_tokens: int | None = None,
        reasoning_tokens: int = 0,
        **reported: Any,
    ) -> None:
        super().__init__(
            prompt_tokens=prompt_tokens,
            reasoning_tokens=reasoning_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens if total_tokens is None else total_tokens,
            **{key: value for key, value in reported.items() if value is not None},
        )


class TokenUsage(Record):
    """Tokens of a rollout: sums over its model calls, and how the last context divides."""

    _optional = frozenset({"final_input_tokens", "final_output_tokens"})
    input_tokens: float
    output_tokens: float
    final_input_tokens: float | None
    final_output_tokens: float | None

    def __init__(self, input_tokens: float = 0, output_tokens: float = 0, **final: float) -> None:
        super().__init__(input_tokens=input_tokens, output_tokens=output_tokens, **final)


class ResponseTokens(Record):
    """Token evidence of one model call. Lists of one length per pair:

    prompt_ids, prompt_mask (all 0): [P]; completion_ids, completion_mask (all 1), completion_logprobs: [C].
    What the endpoint does not report is an empty list. `completion_versions` ([C]) names the policy version that
    sampled each token, where the engine tells; `prompt_rebuilt` says that the prompt ids are not those the engine
    reported or was sent, but were made again from the messages.
    """

    _optional = frozenset(
        {"routed_experts", "multi_modal_data", "prompt_attribution", "completion_versions", "prompt_rebuilt"}
    )
    prompt_ids: list[int]
    prompt_mask: list[int]
    completion_ids: list[int]
    completion_mask: list[int]
    completion_logprobs: list[float]
    routed_experts: Any
    multi_modal_data: Any
    prompt_attribution: Any
    completion_versions: list[int] | None
    prompt_rebuilt: bool | None

    def __init__(
        self,
        prompt_ids: list[int] | None = None,
        completion_ids: list[int] | None = None,
        completion_logprobs: list[float] | None = None,
        prompt_mask: list[int] | None = None,
        completion_mask: list[int] | None = None,
        **extra: Any,
    ) -> None:
        prompt, completion = prompt_ids or [], completion_ids or []
        super().__init__(
            prompt_ids=prompt,
            prompt_mask=[0] * len(prompt) if prompt_mask is None else prompt_mask,
            completion_ids=completion,
            completion_mask=[1] * len(completion) if completion_mask is None else completion_mask,
            completion_logprobs=completion_logprobs or [],
            **{key: value for key, value in extra.items() if value is not None},
        )

    @property
    def exactness(self) -> Exactness:
        """`exact`: prompt ids, completion ids and one logprob for each; `rendered`: some ids; `none`: no ids."""
        return exactness_of(self)


def exactness_of(tokens: Mapping[str, Any]) -> Exactness:
    """How far token evidence is the engine's own: the label of `ResponseTokens`, of any dict with its fields."""
    completion_ids = tokens.get("completion_ids")
    if not completion_ids:
        return "none"
    has_logprobs = len(tokens.get("completion_logprobs") or ()) == len(completion_ids)
    own_prompt = tokens.get("prompt_ids") and not tokens.get("prompt_rebuilt")
    return "exact" if own_prompt and has_logprobs else "rendered"


class ResponseMessage(AssistantMessage):
    """The model's message with why it ended and its token evidence.

    `content` is None where the model gave none: the raw value is evidence. `to_assistant_message` gives the
    message as it enters the conversation.
    """

    _optional = AssistantMessage._optional | {"finish_reason", "is_truncated", "tokens"}
    finish_reason: FinishReason | None
    is_truncated: bool | None
    tokens: ResponseTokens | None

    def __init__(self, content: Content | None = None, **fields: Any) -> None:
        super().__init__(content=content, **fields)
        self["content"] = content
        self.setdefault("is_truncated", self.get("finish_reason") == "length")

    def to_assistant_message(self) -> AssistantMessage:
        """Only what belongs into the conversation; a message without text has content ""."""
        evidence = ("role", "content", "finish_reason", "is_truncated", "tokens")
        return AssistantMessage(self["content"], **{key: self[key] for key in self if key not in evidence})


@dataclass(frozen=True)
class Choice:
    """The one choice of a response, for code that reads `response.choices[0]`."""

    index: int
    message: ResponseMessage
    finish_reason: FinishReason | None


class Response(Record):
    """One reply of a model. `created` is in Unix seconds; `usage` is None if the endpoint reports none.

    sampling_args: what this reply was asked with, where that is not what its rollout is asked with.
    """

    _optional = frozenset({"usage", "sampling_args"})
    id: str
    created: int
    model: str
    usage: Usage | None
    message: ResponseMessage
    sampling_args: SamplingArgs | None

    def __init__(
        self, id: str, created: int, model: str, message: ResponseMessage, usage: Usage | None = None
    ) -> None:
        super().__init__(id=id, created=created, model=model, message=message)
        if usage is not None:
            self["usage"] = usage

    @property
    def choices(self) -> list[Choice]:
        """The OpenAI shape, which environments of the 0.1 series read."""
        return [Choice(0, self["message"], self["message"]["finish_reason"])]

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tool calls of the message, [] if there are none."""
        return self["message"]["tool_calls"] or []


def read_response(fields: Mapping[str, Any]) -> Response:
    """A response that was written as JSON, with exactly the keys that it had: constructors might add some."""
    response = _as(Response, fields)
    message = response["message"] = _as(ResponseMessage, fields["message"])
    if message.get("tool_calls"):
        message["tool_calls"] = [_as(ToolCall, call) for call in message["tool_calls"]]
    if message.get("tokens") is not None:
        message["tokens"] = _as(ResponseTokens, message["tokens"])
    if fields.get("usage") is not None:
        response["usage"] = _as(Usage, fields["usage"])
    return response


def _as(cls: type[R], fields: Mapping[str, Any]) -> R:
    record = cls.__new__(cls)
    record.update(fields)
    return record
