"""Chat messages and tool calls, and the one place where other people's forms of them are read.

A message is a `Record`: a dict with the OpenAI chat fields that also reads as attributes. `to_message` accepts a
dict or object in any of the forms seen in published environments and saved runs; `normalize_messages` does so for
a whole prompt. Nothing here talks to an endpoint.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from verifiers.types.record import Record

ContentPart = dict[str, Any]
Content = str | list[ContentPart]


class TextContentPart(Record):
    """`{"type": "text", "text": ...}`."""

    type: str
    text: str

    def __init__(self, text: str, type: str = "text") -> None:
        super().__init__(type=type, text=text)


class ImageUrlContentPart(Record):
    """`{"type": "image_url", "image_url": {"url": ...}}`."""

    type: str
    image_url: Any

    def __init__(self, image_url: dict[str, Any], type: str = "image_url") -> None:
        super().__init__(type=type, image_url=Record(image_url))


class InputAudioContentPart(Record):
    """`{"type": "input_audio", "input_audio": {"data": ..., "format": ...}}`."""

    type: str
    input_audio: Any

    def __init__(self, input_audio: dict[str, Any], type: str = "input_audio") -> None:
        super().__init__(type=type, input_audio=Record(input_audio))


class ToolCall(Record):
    """One call of a tool by the model: `id`, `name` and `arguments` (JSON text).

    It also answers OpenAI's nested form: `call["function"]["name"]`, `call.function.arguments`,
    `call["type"] == "function"`.
    """

    id: str
    name: str
    arguments: str

    def __init__(self, id: str, name: str, arguments: str = "{}", **extra: Any) -> None:
        super().__init__(id=id, name=name, arguments=arguments, **extra)

    def __missing__(self, key: str) -> Any:
        if key == "function":
            return Record(name=self["name"], arguments=self["arguments"])
        if key == "type":
            return "function"
        raise KeyError(key)

    def get(self, key: str, default: Any = None) -> Any:
        # `call.get("function")` is how several published environments tell the nested form.
        return self[key] if key in ("function", "type") else super().get(key, default)


class Message(Record):
    """One chat message. `role` and `content` are always there; further fields are kept as they come."""

    role: str
    content: Any
    ROLE: ClassVar[str] = ""

    def __init__(self, content: Any = None, **fields: Any) -> None:
        if content is None:
            raise ValueError(f"a {self.ROLE} message needs content")
        if fields:  # columns of a data set give every message the keys of all others, filled with None
            fields = {key: value for key, value in fields.items() if value is not None and key != "role"}
        super().__init__(role=self.ROLE, content=_read_content(content), **fields)


class TextMessage(Message):
    """A bare text, as the prompt of completion mode is kept."""

    ROLE = "text"


class SystemMessage(Message):
    """Instructions to the model."""

    ROLE = "system"

    @classmethod
    def from_path(cls, path: str | Path) -> Self:
        """A system message with the text of a file (UTF-8)."""
        return cls(content=Path(path).read_text(encoding="utf-8"))


class UserMessage(Message):
    """What the user, or the environment, says."""

    ROLE = "user"


class AssistantMessage(Message):
    """What the model says. `content` is "" when it only called tools or reasoned."""

    ROLE = "assistant"
    _optional = frozenset({"reasoning_content", "thinking_blocks", "tool_calls"})
    reasoning_content: str | None
    thinking_blocks: list[dict[str, Any]] | None
    tool_calls: list[ToolCall] | None

    def __init__(self, content: Content | None = None, **fields: Any) -> None:
        calls = fields.get("tool_calls")
        if calls is not None:
            fields["tool_calls"] = [to_tool_call(call) for call in calls]
        super().__init__(content="" if content is None else content, **fields)
        if calls is not None and not self["tool_calls"]:
            del self["tool_calls"]


class ToolMessage(Message):
    """The result of one tool call."""

    ROLE = "tool"
    tool_call_id: str

    def __init__(self, content: Any = None, tool_call_id: str | None = None, **fields: Any) -> None:
        if not tool_call_id:
            raise ValueError("a tool message needs tool_call_id")
        super().__init__(content=content, tool_call_id=tool_call_id, **fields)


ChatMessage = Message
Messages = Sequence[Message] | Sequence[dict[str, Any]] | str
"""A chat prompt or completion; a str in completion mode."""
ChatMessages = list[Message]

_BY_ROLE: dict[str, Callable[..., Message]] = {
    cls.ROLE: cls for cls in (TextMessage, SystemMessage, UserMessage, AssistantMessage, ToolMessage)
}


def _read_content(content: Any) -> Any:
    return [_set_fields(part) for part in content] if isinstance(content, list) else content


def _set_fields(part: Any) -> Any:
    """A content part without what a data set's column filled it up with, which endpoints may refuse."""
    if type(part) is not dict:
        return part
    return {key: _set_fields(value) for key, value in part.items() if value is not None}


def to_tool_call(call: Any) -> ToolCall:
    """Read a tool call in the flat or nested form, as dict, object or JSON text (saved files)."""
    if isinstance(call, ToolCall):
        return call
    if isinstance(call, str):
        call = json.loads(call)
    if not isinstance(call, dict):
        dump = getattr(call, "model_dump", None)
        call = dump() if dump is not None else dict(vars(call))
    function = call.get("function")
    source = function if isinstance(function, dict) else call
    name = source.get("name")
    if not name:
        raise ValueError(f"a tool call needs the name of its tool, got {call!r}")
    arguments = source.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments)
    return ToolCall(id=str(call.get("id") or name), name=str(name), arguments=arguments)


def to_message(message: Any) -> Message:
    """Read one message: a `Message`, a dict, or an object with role and content (a provider SDK's own).

    Raises ValueError for a missing or unknown role or a required field that is missing, TypeError for anything
    that is no message.
    """
    if isinstance(message, Message):
        return message
    if isinstance(message, dict):
        fields = dict(message)
    elif hasattr(message, "role") and hasattr(message, "content"):
        dump = getattr(message, "model_dump", None)
        fields = dump(exclude_none=True) if dump is not None else dict(vars(message))
    else:
        raise TypeError(f"a message is a dict or an object with role and content, not {type(message).__name__}")
    role = fields.pop("role", None)
    cls = _BY_ROLE.get(role) if isinstance(role, str) else None
    if cls is None:
        raise ValueError(f"unknown message role {role!r}; expected one of {', '.join(_BY_ROLE)}")
    return cls(**fields)


def normalize_messages(messages: Any, mode: str = "chat") -> list[Message]:
    """Read a prompt or reply: a str, one message, or a list of messages.

    A str becomes a user message in chat mode and a text message in completion mode.
    """
    if isinstance(messages, list):  # most often
        return [message if isinstance(message, Message) else to_message(message) for message in messages]
    if isinstance(messages, str):
        return [UserMessage(messages) if mode == "chat" else TextMessage(messages)]
    if isinstance(messages, dict) or hasattr(messages, "role"):
        return [to_message(messages)]
    if isinstance(messages, Iterable):
        return [to_message(message) for message in messages]
    raise TypeError(f"messages are a str, a message or a list of messages, not {type(messages).__name__}")


def message_text(message: Any) -> str:
    """The text of a message or of its content: text parts joined by one space, stripped; "" without text."""
    content = message
    if isinstance(message, dict) and "type" not in message:
        content = message.get("content")
    elif not isinstance(message, str | list | dict):
        content = getattr(message, "content", None)
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return " ".join(str(part.get("text", "")) for part in content if _is_text(part)).strip()
    return ""


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text")


def concat_messages(messages: Iterable[Any]) -> list[Message]:
    """Join several prompts or replies (each a str, a message or a list) into one list."""
    return [message for group in messages for message in normalize_messages(group)]


def messages_to_printable(messages: Any) -> Any:
    """Messages with images and audio replaced by short marks, for a terminal."""
    if isinstance(messages, str):
        return messages
    return [_printable(to_message(message)) for message in messages]


def _printable(message: Message) -> Message:
    if not isinstance(message["content"], list):
        return message
    marks = {"image_url": "[image]", "input_audio": "[audio]"}
    texts = [
        str(part.get("text", "")) if _is_text(part) else marks.get(part.get("type", ""), f"[{part.get('type')}]")
        for part in message["content"]
    ]
    return message.model_copy(update={"content": "\n\n".join(texts)})


def sanitize_tool_calls(messages: Any) -> Any:
    """Messages with each tool call as a JSON string, as runs are saved: their arguments differ in shape, and
    columns of a data set may not."""
    if isinstance(messages, str):
        return messages
    return [_with_text_calls(message) for message in messages]


def _with_text_calls(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [json.dumps(to_tool_call(call)) for call in calls]} if calls else message
