"""The state of one rollout: its task, its turns, and whatever hooks put there.

`State` is a dict. The fields of the task (`prompt`, `answer`, `info`, `example_id`, `task`) live in
`state["input"]` and are read and written through the state, by every dict operation. Three keys are computed from
the turns unless something was stored under them: `turn`, `responses` and, while the rollout runs, `completion`.
`oai_tools` is `tool_defs` in OpenAI's nested form, as the 0.1 series has it; writing it changes `tool_defs`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from verifiers.types.messages import Message
from verifiers.types.record import Record
from verifiers.types.responses import Response, Tool

Info = dict[str, Any]


class RolloutInput(Record):
    """One task as a rollout starts from it: `prompt`, `example_id`, and every other column of its row."""

    _optional = frozenset({"answer", "info", "task"})
    prompt: Any
    example_id: int
    answer: Any
    info: Any
    task: str | None


class TrajectoryStepTokens(Record):
    """Token evidence of one turn as trainers read it; arrays as in `ResponseTokens`.

    `overlong_prompt` says that the prompt was cut to `max_seq_len`; its completion is then empty.
    """

    _optional = frozenset({"routed_experts", "completion_versions", "prompt_rebuilt"})
    prompt_ids: list[int]
    prompt_mask: list[int]
    completion_ids: list[int]
    completion_mask: list[int]
    completion_logprobs: list[float]
    overlong_prompt: bool
    is_truncated: bool
    routed_experts: Any
    completion_versions: list[int] | None
    prompt_rebuilt: bool | None


class TrajectoryStep(Record):
    """One turn: the prompt sent, the messages it led to, the response, its tokens, and its reward if it has one."""

    _optional = frozenset({"tokens", "reward", "advantage"})
    prompt: Any
    completion: Any
    response: Response
    tokens: TrajectoryStepTokens | None
    reward: float | None
    advantage: float | None
    is_truncated: bool
    trajectory_id: str
    extras: dict[str, Any]


_INPUT_FIELDS = ("prompt", "answer", "info", "example_id", "task")
_COMPUTED = ("turn", "responses", "completion", "oai_tools")
_TOOL_FIELDS = ("name", "description", "parameters", "strict")
_FORWARDED = frozenset((*_INPUT_FIELDS, *_COMPUTED))
"""Every other key is an ordinary one; states are read about a hundred times a rollout."""


_MISSING = object()
_get, _getitem, _setitem, _contains = dict.get, dict.__getitem__, dict.__setitem__, dict.__contains__
"""Of the state's own keys. Names of the module's, since they are looked up as often as states are read."""


class State(dict[str, Any]):
    """The state of one rollout. `state[k]` reads and writes `state["input"][k]` if the input has `k`."""

    INPUT_FIELDS = _INPUT_FIELDS

    def _holder(self, key: str) -> dict[str, Any] | None:
        """The input, if it is what holds `key`."""
        if key in _INPUT_FIELDS:
            holder = dict.get(self, "input")
            if isinstance(holder, dict) and dict.__contains__(holder, key):
                return holder
        return None

    def __getitem__(self, key: str) -> Any:
        if key not in _FORWARDED:
            return _getitem(self, key)
        value = self._forwarded(key)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: Any) -> None:
        if key not in _FORWARDED:
            _setitem(self, key, value)
            return
        holder = self._holder(key)
        if holder is not None:
            holder[key] = value
        elif key == "oai_tools":
            dict.__setitem__(self, "tool_defs", [_flat_tool(tool) for tool in value or []])
        else:
            dict.__setitem__(self, key, value)

    def __delitem__(self, key: str) -> None:
        holder = self._holder(key)
        if holder is not None:
            del holder[key]
        else:
            dict.__delitem__(self, key)

    def __contains__(self, key: object) -> bool:
        if dict.__contains__(self, key):
            return True
        if not isinstance(key, str):
            return False
        return self._holder(key) is not None or (key in _COMPUTED and dict.__contains__(self, "trajectory"))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`, forwarded like `state[key]`, or `default`."""
        if key not in _FORWARDED:
            return _get(self, key, default)
        try:
            value = self._forwarded(key)
        except KeyError:  # of a turn that lacks what the value is computed from
            return default
        return default if value is _MISSING else value

    def pop(self, key: str, *default: Any) -> Any:
        """Remove `key` where it is held and return its value; KeyError without a default."""
        holder = self._holder(key)
        return holder.pop(key, *default) if holder is not None else dict.pop(self, key, *default)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """The value of `key`, which is set to `default` first if it is missing."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **fields: Any) -> None:
        """Set several keys, each forwarded like `state[key] = value`."""
        for key, value in dict(*others, **fields).items():
            self[key] = value

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild_state, (dict(self),))

    def copy(self) -> State:
        """A shallow copy; the task is shared."""
        return _rebuild_state(dict(self))

    def _forwarded(self, key: str) -> Any:
        """The value of a key that is not an ordinary one, or `_MISSING`."""
        if key in _INPUT_FIELDS:
            holder = _get(self, "input")
            return holder[key] if isinstance(holder, dict) and _contains(holder, key) else _get(self, key, _MISSING)
        value = _get(self, key, _MISSING)
        stored = value is not _MISSING and value is not None
        return value if stored or not _contains(self, "trajectory") else self._computed(key)

    def _computed(self, key: str) -> Any:
        steps = dict.__getitem__(self, "trajectory")
        if key == "turn":
            return len(steps)
        if key == "responses":
            return [step["response"] for step in steps]
        if key == "oai_tools":
            return [tool.nested() for tool in dict.get(self, "tool_defs") or []]
        return conversation_after(self.get("prompt"), steps)


def _flat_tool(tool: Any) -> Tool:
    if isinstance(tool, Tool):
        return tool
    fields = tool.get("function", tool)
    return Tool(**{name: fields[name] for name in _TOOL_FIELDS if name in fields})


def _rebuild_state(items: dict[str, Any]) -> State:
    state = State()
    dict.update(state, items)
    return state


def conversation_after(prompt: Any, steps: Iterable[TrajectoryStep]) -> Any:
    """All messages after the initial prompt: the last prompt sent and its completion, less the initial prompt.

    In completion mode (text prompts) a text. [] or "" without a step.
    """
    steps = list(steps)
    if isinstance(prompt, str):
        if not steps:
            return ""
        text = str(steps[-1]["prompt"]) + str(steps[-1]["completion"])
        return text.removeprefix(prompt)
    if not steps:
        return []
    conversation: list[Message] = [*steps[-1]["prompt"], *steps[-1]["completion"]]
    return conversation[len(prompt or []) :]
