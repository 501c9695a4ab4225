"""Of a conversation exactly what the model would have to say is learned, or the conversation is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

pytestmark = pytest.mark.train
pytest.importorskip("torch")

from hypothesis import given, settings, strategies as st  # noqa: E402

from tests.support.tiny_model import END, TEMPLATE, tiny_tokenizer  # noqa: E402
from verifiers.errors import DatasetError, EvidenceError, StoreError  # noqa: E402
from verifiers.train.config import SftDataConfig  # noqa: E402
from verifiers.train.rows import EnvRef, Row  # noqa: E402
from verifiers.train.sft_rows import read_sft, rows_of_conversation  # noqa: E402
from verifiers.train.storage import write_rows  # noqa: E402

TOKENIZER = tiny_tokenizer()
HELLO = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
TWICE = [*HELLO, {"role": "user", "content": "Again"}, {"role": "assistant", "content": "Hello, hello"}]


def learned(rows: list[Row]) -> list[str]:
    """What each row learns, as text."""
    masked = [[one for one, on in zip(row.tokens, row.mask, strict=True) if on] for row in rows]
    return [str(TOKENIZER.decode(ids)) for ids in masked]


def rows(item: dict[str, Any], tokenizer: Any = TOKENIZER, **config: Any) -> list[Row]:
    """The rows of a conversation."""
    return rows_of_conversation(item, tokenizer, SftDataConfig(**config))


def rendered(messages: list[dict[str, Any]]) -> str:
    """What the template makes of a whole conversation."""
    return str(TOKENIZER.apply_chat_template(messages, tokenize=False))


def test_a_reply_is_learned_up_to_its_end() -> None:
    """The header is context; the token that ends the reply is learned, the newline behind it is not there."""
    (row,) = rows({"messages": HELLO, "task_id": "t", "reward": 1.0})
    assert learned([row]) == ["Hello<|im_end|>"] and row.tokens[-1] == END
    assert TOKENIZER.decode(row.tokens) == rendered(HELLO).rstrip("\n")
    assert (row.task_id, row.reward, row.exactness, row.weight) == ("t", 1.0, "rendered", 1.0)


@pytest.mark.parametrize(
    ("item", "config", "said"),
    [
        ({"messages": TWICE}, {}, "Hello<|im_end|>Hello, hello<|im_end|>"),
        ({"messages": TWICE}, {"turns": "last"}, "Hello, hello<|im_end|>"),
        ({"messages": TWICE, "prompt_messages": 3}, {}, "Hello, hello<|im_end|>"),
        ({"prompt": TWICE[:3], "completion": TWICE[3:]}, {}, "Hello, hello<|im_end|>"),
        ({"prompt": "Hi", "completion": HELLO[1:]}, {}, "Hello<|im_end|>"),
        ({"prompt": "2 + 2 =", "completion": " 4"}, {}, " 4<|im_end|>"),
        (
            {"prompt": [{"role": "text", "content": "ab"}], "completion": [{"role": "text", "content": "cd"}]},
            {},
            "cd<|im_end|>",
        ),
        ({"messages": TWICE}, {"roles": ["user"]}, "<|im_start|>user\nAgain<|im_end|>"),
    ],
    ids=["all", "last", "marked", "history", "question", "text", "texts", "user"],
)
def test_what_is_learned(item: dict[str, Any], config: dict[str, Any], said: str) -> None:
    """Every turn or the last; replies of a prompt are context; plain text ends with the end of text."""
    if config.get("roles") == ["user"]:
        item = {"messages": item["messages"][1:3]}
    assert learned(rows(item, **config)) == [said]


def test_text_in_parts_is_learned_as_text() -> None:
    """A template of a text model would write the list of parts itself, and the model learn to write braces."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "user", "content": parts[:1]}, {"role": "assistant", "content": parts}]
    whole = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "one\ntwo"}]
    assert learned(rows({"messages": messages})) == ["one\ntwo<|im_end|>"]
    assert rows({"messages": messages})[0].tokens == rows({"messages": whole})[0].tokens


CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
TOOLS = [
    {"role": "user", "content": "Look"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
    {"role": "tool", "tool_call_id": "c2", "content": "a dog"},
    {"role": "assistant", "content": "A cat."},
]
CALLED = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call><|im_end|>'


@pytest.mark.parametrize("saved", [False, True], ids=["nested", "as records save them"])
def test_tool_calls_are_learned_as_the_template_writes_them(saved: bool) -> None:
    """Arguments are objects to the template; results are context; the schemas of the tools stand before."""
    tools = [{"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}}]
    flat = {"id": "c1", "name": "look", "arguments": '{"at": 1}'}
    messages = [TOOLS[0], {**TOOLS[1], "tool_calls": [json.dumps(flat) if saved else CALL]}, *TOOLS[2:]]
    (row,) = rows({"messages": messages, "tools": tools})
    assert learned([row]) == [f"{CALLED}A cat.<|im_end|>"]
    assert str(TOKENIZER.decode(row.tokens)).startswith('<|im_start|>system\nTools: {"type": "function"')


def test_other_roles_are_learned_if_asked_for() -> None:
    """Messages of one role in a row are learned as one, with the headers that the model would have to write."""
    (row,) = rows({"messages": TOOLS}, roles=["assistant", "tool"])
    seen = "".join(f"<|im_start|>tool\n{what}<|im_end|>\n" for what in ("a cat", "a dog")).rstrip("\n")
    assert learned([row]) == [f"{CALLED}{seen}A cat.<|im_end|>"]


def test_a_template_that_rewrites_the_past_gives_a_row_for_each_prompt() -> None:
    """Thinking that is taken out of earlier turns is learned where it was thought, and missing where it was missing."""
    stripping = TEMPLATE.replace(
        "{{ message.content or '' }}",
        "{{ (message.content if loop.last else message.content.split('</think>')[-1]) or '' }}",
    )
    thought = [{**one, "content": f"<think>hm</think>{one['content']}"} for one in TWICE]
    messages = [TWICE[0], thought[1], TWICE[2], thought[3]]
    made = rows({"messages": messages}, tiny_tokenizer(stripping))
    assert learned(made) == ["<think>hm</think>Hello<|im_end|>", "<think>hm</think>Hello, hello<|im_end|>"]
    assert "hm" not in str(TOKENIZER.decode(made[1].tokens)).partition("Again")[0]
    assert sum(row.weight for row in made) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}"), "it writes '<think>"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", None),
    ],
    ids=["parts", "refuses", "no end"],
)
def test_a_template_that_can_not_be_masked_is_refused(template: str, said: str | None) -> None:
    """Where the reply does not follow on the prompt there is no mask; a template without an end teaches none."""
    tokenizer = tiny_tokenizer(template)
    if said is None:
        assert learned(rows({"messages": HELLO}, tokenizer)) == ["Hello"]
        return
    with pytest.raises(DatasetError, match=said):
        rows({"messages": HELLO}, tokenizer)


def test_template_arguments_are_the_templates() -> None:
    """`data.template` reaches it on both sides of the comparison."""
    thinking = TEMPLATE.replace("assistant\n{% endif %}", "assistant\n{{ '<think>' if think }}{% endif %}")
    assert learned(rows({"messages": HELLO}, tiny_tokenizer(thinking), template={"think": False})) == [
        "Hello<|im_end|>"
    ]
    with pytest.raises(DatasetError, match="does not continue its own prompt"):
        rows({"messages": HELLO}, tiny_tokenizer(thinking), template={"think": True})


def step(prompt: list[dict[str, Any]], reply: str, ids: list[int] | None = None, **tokens: Any) -> dict[str, Any]:
    """A turn as records hold it, with the ids of an engine."""
    before = TOKENIZER.apply_chat_template(prompt, tokenize=True, add_generation_prompt=True)["input_ids"]
    said = [*TOKENIZER(reply, add_special_tokens=False)["input_ids"], END] if ids is None else ids
    evidence = {"prompt_ids": before, "completion_ids": said, "completion_logprobs": [-1.0] * len(said), **tokens}
    return {"prompt": prompt, "completion": [{"role": "assistant", "content": reply}], "tokens": evidence}


def record(*steps: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A saved record."""
    last = steps[-1]
    return {
        "rollout_id": "r1",
        "task_id": "t1",
        "example_id": 0,
        "outcome": "ok",
        "reward": 1.0,
        "prompt": steps[0]["prompt"],
        "completion": last["prompt"][len(steps[0]["prompt"]) :] + last["completion"],
        "trajectory": list(steps),
        **changes,
    }


def test_records_are_learned_by_their_own_ids() -> None:
    """Ids that the tokenizer would choose otherwise are kept, with their logprobs."""
    (row,) = rows(record(step(HELLO[:1], "Hello"), step(TWICE[:3], "Hello, hello")))
    assert row.exactness == "exact" and sum(row.logprobs) == -float(row.trainable)
    assert learned([row]) == ["Hello<|im_end|>Hello, hello<|im_end|>"]
    (last,) = rows(record(step(HELLO[:1], "Hello"), step(TWICE[:3], "Hello, hello")), turns="last")
    assert learned([last]) == ["Hello, hello<|im_end|>"]
    (again,) = rows(record(step(HELLO[:1], "Hello")), ids="ignore")
    assert again.exactness == "rendered" and learned([again]) == ["Hello<|im_end|>"]


@pytest.mark.parametrize(
    "other",
    [
        step(HELLO[:1], "Hello", [1, 2, 3]),
        step(HELLO[:1], "Hello", [9999]),
        step(HELLO[:1], "Hello", prompt_ids=[1, 2]),
    ],
    ids=["reply", "vocabulary", "prompt"],
)
def test_ids_of_another_tokenizer_are_not_learned(other: dict[str, Any]) -> None:
    """They are found out, counted, and the text is used in their place; or they are refused."""
    assert learned(rows(record(other))) == ["Hello<|im_end|>"]
    with pytest.raises(DatasetError, match="not of this tokenizer"):
        rows(record(other), ids="require")


def test_required_ids_have_to_be_there() -> None:
    """A record without turns, or other roles than the model's, can not have them."""
    with pytest.raises(DatasetError, match="holds no token ids"):
        rows({**record(step(HELLO[:1], "Hello")), "trajectory": None}, ids="require")
    with pytest.raises(DatasetError, match="only the model's own tokens"):
        rows(record(step(HELLO[:1], "Hello")), ids="require", roles=["tool"])


def test_a_changed_context_is_learned_turn_by_turn() -> None:
    """Records without ids are learned by the prompts that were sent, not by the conversation as it looks at the end."""
    pruned = [{"role": "user", "content": "Summary: hi. Again"}]
    made = rows(record(step(HELLO[:1], "Hello"), step(pruned, "Hello, hello")), ids="ignore")
    assert learned(made) == ["Hello<|im_end|>", "Hello, hello<|im_end|>"]
    assert "Hi" not in str(TOKENIZER.decode(made[1].tokens))


@pytest.mark.parametrize(
    ("item", "said"),
    [
        ({"question": "?"}, "this is no conversation: it has question"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "unknown message role"),
        ({"messages": HELLO, "tools": ["look"]}, "a tool is no object"),
        ({"prompt": "", "completion": "x"}, "nothing before the first message"),
        ({"messages": HELLO[1:]}, "nothing before the first message"),
    ],
    ids=["shape", "role", "tool", "no text", "no context"],
)
def test_what_is_no_conversation_is_refused(item: dict[str, Any], said: str) -> None:
    """Each with what it lacks."""
    with pytest.raises(DatasetError, match=said):
        rows(item)


messages = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content, "tool_call_id": "c"},
        st.sampled_from(["user", "assistant", "tool"]),
        st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=6),
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(conversation=messages)
def test_the_row_is_the_conversation_and_its_mask_the_replies(conversation: list[dict[str, Any]]) -> None:
    """For any conversation the ids are those of the whole text, and what is learned are the replies and their ends."""
    conversation = [HELLO[0], *conversation]
    made = rows({"messages": conversation})
    replies = [one["content"] for one in conversation if one["role"] == "assistant"]
    assert learned(made) == (["".join(f"{reply}<|im_end|>" for reply in replies)] if replies else [])
    if made:
        whole = TOKENIZER(rendered(conversation), add_special_tokens=False)["input_ids"]
        assert made[0].tokens == whole[: len(made[0].tokens)]


def test_files_of_all_kinds_are_read(tmp_path: Path) -> None:
    """Lines, Parquet, rows, and a run's folder with its environment; what is left out is counted by cause."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "a.jsonl").write_bytes(orjson.dumps({"messages": HELLO, "env": "me/e@1.0", "env_digest": "d"}) + b"\n")
    pq.write_table(pa.Table.from_pylist([{"messages": TWICE}, {"messages": HELLO[:1]}]), tmp_path / "b.parquet")
    write_rows(tmp_path / "c.parquet", rows({"messages": HELLO}))
    write_rows(tmp_path / "d.jsonl", rows({"messages": HELLO}))
    run = tmp_path / "run"
    run.mkdir()
    good = record(step(HELLO[:1], "Hello"))
    saved = [good, {**good, "reward": 0.0}, {**good, "outcome": "truncated"}, {**good, "outcome": "failed"}]
    (run / "results.jsonl").write_bytes(b"".join(orjson.dumps(one) + b"\n" for one in saved))
    ref = {"name": "me/env", "version": "0.1.0", "digest": "sha256:ab"}
    (run / "metadata.json").write_bytes(orjson.dumps({"environment": ref}))
    files = [str(tmp_path / name) for name in ("a.jsonl", "b.parquet", "c.parquet", "d.jsonl", "run")]
    data = read_sft(files, TOKENIZER, SftDataConfig(max_tokens=100))
    assert data.taken == {"template": 2, "rows": 2, "ids": 2}
    assert data.left_out == {"empty": 1, "truncated": 1, "failed": 1}
    assert data.rows[0].env == EnvRef("me/e", "1.0", "d") and data.rows[-1].env == EnvRef(**ref)
    assert data.figures()["data/left_out/empty"] == 1.0
    chosen = read_sft(files, TOKENIZER, SftDataConfig(min_reward=0.5, max_tokens=20))
    assert chosen.left_out["reward"] == 6 and chosen.left_out["long"] == 1 and not chosen.rows


def test_rows_of_replies_that_are_no_examples_are_left_out(tmp_path: Path) -> None:
    """As records are: what was cut off, and what could not be scored, whatever it earned."""
    (good,) = rows({"messages": HELLO})
    ends = [{}, {"truncated": True}, {"error_kind": "environment", "reward": None}]
    write_rows(tmp_path / "a.parquet", [replace(good, **{"reward": 1.0, **end}) for end in ends])
    data = read_sft([str(tmp_path / "a.parquet")], TOKENIZER)
    assert [row.truncated for row in data.rows] == [False] and data.taken == {"rows": 1}
    assert data.left_out == {"truncated": 1, "unscored": 1}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 2: this is no JSON"),
        (b"[1]", "line 2: this is no conversation"),
        (b'{"a": 1}', "line 2: this is no conversation: it has a"),
        (b'{"tokens": [1], "mask": [1]}', "line 2: this is no row"),
    ],
    ids=["text", "list", "shape", "row"],
)
def test_a_line_that_can_not_be_learned_is_named(line: bytes, said: str, tmp_path: Path) -> None:
    """File and line stand in the message."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(orjson.dumps({"messages": HELLO}) + b"\n" + line + b"\n")
    with pytest.raises((DatasetError, EvidenceError), match=said) as caught:
        read_sft([str(path)], TOKENIZER)
    assert str(caught.value).startswith(str(path))


def test_missing_files_are_told(tmp_path: Path) -> None:
    """A path that is not there, and a folder without anything to read."""
    for path in (tmp_path / "a.jsonl", tmp_path / "a.parquet", tmp_path):
        with pytest.raises(StoreError):
            read_sft([str(path)], TOKENIZER)
