"""Conversations become rows to imitate: what the model would be given is context, what it is to say is learned.

    rows = rows_of_conversation({"messages": [...]}, tokenizer)        # or prompt and completion, or a saved record
    data = read_sft(["outputs/evals/gsm8k--m/1a2b3c4d", "more.jsonl"], tokenizer, config)
    data.rows, data.figures()

Nothing is masked by a guess. For each message that is learned the chat template writes twice: the conversation before
it up to where the reply begins, and the conversation with it. The second text has to begin with the first, and only
what follows is learned, up to the token that ends the reply; a template for which that does not hold is refused. The
turns then become rows exactly as those of rollouts do (`verifiers.train.merge`): one row while each prompt continues
the last one, another where the template rewrites the past, as those do that take thinking out of earlier turns.

Records that hold the engine's own ids are learned by these, if they are ids of this tokenizer. No torch in here.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from verifiers.clients.wire import native_message, with_plain_text
from verifiers.errors import DatasetError, EvidenceError
from verifiers.train.config import SftDataConfig
from verifiers.train.evidence import Turn, check_text, check_turn, checks_with, special_ids_of, turns_of
from verifiers.train.merge import MergeOptions, MergeReport, rows_of
from verifiers.train.rows import EnvRef, Row
from verifiers.train.sft_files import items_of
from verifiers.types import Outcome, message_text, normalize_messages

Native = dict[str, Any]


class ChatTokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    all_special_ids: list[int]
    added_tokens_decoder: Any
    eos_token_id: Any

    def __len__(self) -> int: ...
    def __call__(self, text: str, /, **arguments: Any) -> Any: ...
    def decode(self, ids: Any, /) -> Any: ...
    def apply_chat_template(self, conversation: Any, /, **arguments: Any) -> Any: ...


@dataclass(slots=True)
class SftData:
    """Rows, and the counts of where they come from.

    taken: conversations by how their tokens were found: "ids", "template", "text" or "rows". left_out: those that gave
    no row, by cause: an outcome, "reward", "long" or "empty". other_ids: those with ids of another tokenizer.
    """

    rows: list[Row] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    other_ids: int = 0
    report: MergeReport = field(default_factory=MergeReport)

    def figures(self) -> dict[str, float]:
        """The counts as figures to log."""
        counted = {f"data/taken/{how}": float(count) for how, count in sorted(self.taken.items())}
        counted |= {f"data/left_out/{why}": float(count) for why, count in sorted(self.left_out.items())}
        counted |= {"data/rows": float(len(self.rows)), "data/other_ids": float(self.other_ids)}
        return counted | self.report.metrics()


def read_sft(paths: Iterable[str], tokenizer: ChatTokenizer, config: SftDataConfig | None = None) -> SftData:
    """The rows of files and of the folders of runs. What is left out is counted.

    DatasetError, with file and line, for what is no conversation or can not be masked surely; errors of files as from
    `verifiers.train.sft_files.items_of`.
    """
    data = SftData()
    lessons = Lessons(tokenizer, config or SftDataConfig(), data)
    for path in paths:
        for item in items_of(path):
            try:
                data.rows += lessons.rows(item.data, item.env)
            except (DatasetError, EvidenceError) as error:
                raise DatasetError(f"{item.place}: {error}", hint=error.hint) from error
    return data


def check_wanted(paths: Iterable[str], config: SftDataConfig) -> None:
    """Raise DatasetError if the outcome or reward of every conversation leaves it out; no tokenizer is needed."""
    left_out: Counter[str] = Counter()
    for path in paths:
        for item in items_of(path):
            if (why := _unwanted(item.data, config)) is None:
                return
            left_out[why] += 1
    counts = ", ".join(f"{count} ({why})" for why, count in sorted(left_out.items())) or "there are no conversations"
    raise DatasetError(
        f"there is nothing to learn from; left out: {counts}",
        hint="reward: it is below data.min_reward, or there is none; else it is how the rollout ended.",
    )


def _unwanted(item: Mapping[str, Any] | Row, config: SftDataConfig) -> str | None:
    """Why a conversation is left out, whatever its tokens are."""
    if isinstance(item, Row):
        outcome, reward = _outcome_of(item), item.reward
    else:
        outcome = item.get("outcome") or (Outcome.FAILED if item.get("error") else Outcome.OK)
        reward = item.get("reward")
    if outcome != Outcome.OK:
        return str(outcome)  # a reply that was cut off is no example either
    least = config.min_reward
    return "reward" if least is not None and (reward is None or reward < least) else None


def rows_of_conversation(
    item: Mapping[str, Any], tokenizer: ChatTokenizer, config: SftDataConfig | None = None
) -> list[Row]:
    """The rows of one conversation: `messages` (and `tools`), `prompt` and `completion`, or a saved record.

    Empty if the configuration leaves it out. DatasetError for what is no conversation or can not be masked surely.
    """
    return Lessons(tokenizer, config or SftDataConfig(), SftData()).rows(item)


class _Lesson(NamedTuple):
    """What is learned and what stands before it: messages, or two texts."""

    before: Any
    said: Any


class Lessons:
    """Makes rows of conversations with one tokenizer and configuration, and counts in `data`."""

    def __init__(self, tokenizer: ChatTokenizer, config: SftDataConfig, data: SftData) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._data = data
        self._special = special_ids_of(tokenizer)
        self._checks = checks_with(tokenizer, decode_share=1.0)

    def rows(self, item: Mapping[str, Any] | Row, env: EnvRef | None = None) -> list[Row]:
        """The rows of a conversation; none if it is left out."""
        if (why := _unwanted(item, self._config)) is None:
            rows, how = ([item], "rows") if isinstance(item, Row) else self._rows(item, env or _env_of(item))
            if rows and not self._is_long(rows):
                self._data.taken[how] += 1
                return rows
            why = "long" if rows else "empty"
        self._data.left_out[why] += 1
        return []

    def _is_long(self, rows: Sequence[Row]) -> bool:
        most = self._config.max_tokens
        return most is not None and max(len(row.tokens) for row in rows) > most

    def _rows(self, item: Mapping[str, Any], env: EnvRef) -> tuple[list[Row], str]:
        options = MergeOptions(accept="rendered", env=env, task_id=_task_of(item))
        learned = slice(-1, None) if self._config.turns == "last" else slice(None)
        if self._has_ids(item):
            record = {**item, "trajectory": item["trajectory"][learned]}
            return rows_of(record, options, report=self._data.report), "ids"
        lessons = list(self._lessons(item))[learned]
        tools = [_nested(tool) for tool in item.get("tools") or item.get("tool_defs") or ()]
        record = {
            **{name: item.get(name) for name in ("rollout_id", "task_id", "reward", "metrics", "stop_condition")},
            "outcome": Outcome.OK,
            "trajectory": [self._turn(lesson, tools) for lesson in lessons],
        }
        how = "text" if lessons and isinstance(lessons[0].said, str) else "template"
        return rows_of(record, options, report=self._data.report), how

    # --- records with ids -------------------------------------------------------------------------------------

    def _has_ids(self, item: Mapping[str, Any]) -> bool:
        """Whether the record's turns hold ids that are to be used and are of this tokenizer."""
        steps, required = item.get("trajectory"), self._config.ids == "require"
        if self._config.ids == "ignore" or not (steps or required):
            return False
        if self._config.roles != ["assistant"]:
            if required:
                raise DatasetError(
                    "the ids of records tell only the model's own tokens from others",
                    hint='Learn the role "assistant" only, or set data.ids = "auto".',
                )
            return False
        turns = turns_of(item) if steps else []
        if not turns or not all(turn.prompt_ids and turn.completion_ids for turn in turns):
            if required:
                raise DatasetError(
                    "the record holds no token ids, and they are required",
                    hint='Play with -C trajectory and an endpoint that reports ids, or set data.ids = "auto".',
                )
            return False
        try:
            for turn in turns:
                self._check_tokenizer(turn)
        except EvidenceError as error:
            if required:
                raise DatasetError(
                    f"its ids are not of this tokenizer: {error}",
                    hint='Use the tokenizer of the model that was played, or set data.ids = "auto".',
                ) from error
            self._data.other_ids += 1
            return False
        return True

    def _check_tokenizer(self, turn: Turn) -> None:
        check_turn(turn, self._checks)
        check_text(turn, self._checks, "")
        asked = turn.prompt if isinstance(turn.prompt, list) else [turn.prompt or ""]
        text = str(self._tokenizer.decode(turn.prompt_ids))
        for message in asked:
            own = isinstance(message, Mapping) and message.get("role") == "assistant"
            if not own and message_text(message).strip() not in text:  # templates rewrite the model's own
                raise EvidenceError(f"the prompt of turn {turn.number} decodes to {text[:80]!r}")

    # --- by the template --------------------------------------------------------------------------------------

    def _lessons(self, item: Mapping[str, Any]) -> Iterator[_Lesson]:
        """What is learned of a conversation, each with what the model would be given before it."""
        steps = item.get("trajectory")
        if steps and self._config.roles == ["assistant"]:
            for step in steps:  # environments may change the context between turns
                yield from self._learned(step["prompt"], step["completion"])
        elif item.get("messages") is not None:
            count = int(item.get("prompt_messages") or 0)
            yield from self._learned(item["messages"][:count], item["messages"][count:])
        elif "prompt" in item and "completion" in item:
            yield from self._learned(item["prompt"], item["completion"])
        else:
            raise DatasetError(
                f"this is no conversation: it has {', '.join(sorted(item)) or 'nothing'}",
                hint="Give messages, or prompt and completion.",
            )

    def _learned(self, before: Any, after: Any) -> Iterator[_Lesson]:
        texts = _text(before), _text(after)
        if texts[0] is not None and texts[1] is not None:
            yield _Lesson(*texts)
            return
        try:
            context = [native_message(message) for message in normalize_messages(before or [])]
            new = [native_message(message) for message in normalize_messages(after)]
        except (TypeError, ValueError) as error:
            raise DatasetError(f"a message is none: {error}", hint="A message has role and content.") from error
        messages = [_with_open_calls(dict(with_plain_text(message))) for message in context + new]
        start = len(context)
        while start < len(messages):
            role = messages[start]["role"]
            end = start + 1
            if role != "assistant":  # templates may frame several messages of one role as one
                while end < len(messages) and messages[end]["role"] == role:
                    end += 1
            if role in self._config.roles:
                yield _Lesson(messages[:start], messages[start:end])
            start = end

    def _turn(self, lesson: _Lesson, tools: list[Native]) -> dict[str, Any]:
        """A lesson in the form of a rollout's turn."""
        if isinstance(lesson.said, str):
            prompt_ids, completion_ids = self._text_ids(lesson)
        else:
            prompt_ids, completion_ids = self._template_ids(lesson, tools)
        if not prompt_ids or not completion_ids:
            which = "before the first message" if not prompt_ids else "in a message"
            raise DatasetError(
                f"there is nothing {which} that is learned", hint="Leave it out, or give it a context."
            )
        tokens = {"prompt_ids": prompt_ids, "completion_ids": completion_ids}
        return {"prompt": lesson.before, "completion": lesson.said, "tokens": tokens}

    def _text_ids(self, lesson: _Lesson) -> tuple[list[int], list[int]]:
        """Plain text, as completion endpoints are given it, and the end of the text."""
        end = self._tokenizer.eos_token_id
        before = list(self._tokenizer(lesson.before)["input_ids"])
        if before and before[-1] == end:
            before.pop()
        return before, self._ids(lesson.said) + ([] if end is None else [end])

    def _template_ids(self, lesson: _Lesson, tools: list[Native]) -> tuple[list[int], list[int]]:
        replies = lesson.said[0]["role"] == "assistant"
        before = self._text_of(lesson.before, tools, replies)
        whole = self._text_of(lesson.before + lesson.said, tools, False)
        if not whole.startswith(before):
            raise DatasetError(
                f"the chat template does not continue its own prompt with the reply: {_parting(before, whole)}",
                hint="Set template arguments with which it does (data.template), or learn records with ids.",
            )
        return self._ids(before), self._without_tail(self._ids(whole[len(before) :]))

    def _text_of(self, messages: list[Native], tools: list[Native], replies: bool) -> str:
        if not messages:  # templates refuse an empty conversation
            return ""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages,
                    tools=tools or None,
                    tokenize=False,
                    add_generation_prompt=replies,
                    **self._config.template,
                )
            )
        except Exception as error:  # boundary: the template's own code, written with the model
            raise DatasetError(
                f"the chat template refuses the conversation: {error}",
                hint="Bring it into the form the template wants: roles, their order, tools.",
            ) from error

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _without_tail(self, ids: list[int]) -> list[int]:
        """Without the white space that a template puts behind the token that ends a reply: nobody samples it."""
        last = max((place for place, one in enumerate(ids) if one in self._special), default=None)
        if last is None or str(self._tokenizer.decode(ids[last + 1 :])).strip():
            return ids
        return ids[: last + 1]


def _outcome_of(row: Row) -> Outcome:
    """How the rollout of a row ended. Rows of conversations have no reward, and nothing went wrong with them."""
    if row.error_kind is not None:
        return Outcome.UNSCORED
    return Outcome.TRUNCATED if row.truncated else Outcome.OK


def _task_of(item: Mapping[str, Any]) -> str:
    """Stands for the task of a conversation that names none: a digest of what is asked, up to the first reply. "" where
    it is named, or nothing is asked. Two conversations with one answer are of one task, also if each gives many rows.
    """
    if item.get("task_id") or item.get("example_id") is not None:
        return ""
    steps = item.get("trajectory") or [{}]
    asked = item.get("messages") or item.get("prompt") or steps[0].get("prompt") or ()
    if isinstance(asked, str):
        said = [asked]
    else:
        replies = (at for at, one in enumerate(asked) if isinstance(one, Mapping) and one.get("role") == "assistant")
        said = [message_text(one) for one in asked[: next(replies, None)]]
    text = "\n".join(said)
    return f"asked:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}" if text else ""


def _env_of(item: Mapping[str, Any]) -> EnvRef:
    """The environment that an exported conversation names: `owner/name@version`, and a digest."""
    name, _, version = str(item.get("env") or "").partition("@")
    return EnvRef(name, version or None, item.get("env_digest"))


def _text(value: Any) -> str | None:
    """The text of completion mode, a str or text messages; None for messages."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and {one.get("role") for one in value if isinstance(one, Mapping)} == {"text"}:
        return "".join(message_text(one) for one in value)
    return None


def _nested(tool: Any) -> Native:
    if not isinstance(tool, Mapping):
        raise DatasetError("a tool is no object", hint="Give tools as JSON schemas.")
    return dict(tool) if tool.get("function") else {"type": "function", "function": dict(tool)}


def _with_open_calls(message: Native) -> Native:
    """Arguments of tool calls as objects: templates write them as JSON, and would write a text as a quoted one."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _opened(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _opened(arguments: Any) -> Any:
    try:
        value = json.loads(arguments)
    except (TypeError, ValueError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _parting(before: str, whole: str) -> str:
    common = next(
        (place for place, (one, other) in enumerate(zip(before, whole, strict=False)) if one != other), len(whole)
    )
    return f"it writes {before[common : common + 40]!r}, and with the reply {whole[common : common + 40]!r}"
