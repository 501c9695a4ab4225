"""Rows come back from disk as they went there, and what is no row is named with file and line."""

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from verifiers.errors import ConfigError, EvidenceError, StoreError
from verifiers.train.rows import EnvRef, Row, row_to_dict
from verifiers.train.storage import RowWriter, read_rows, row_files, write_rows

SUFFIXES = [".jsonl", ".jsonl.gz", ".parquet"]


def row(number: int = 0, **changes: Any) -> Row:
    """A good row of four tokens."""
    fields: dict[str, Any] = {
        "tokens": [1, 2, 3, 4],
        "mask": [False, True, True, False],
        "logprobs": [0.0, -0.5, -1e-9, 0.0],
        "versions": [1, 1, 2, 2],
        "reward": 1.0,
        "rollout_id": f"r{number}",
        "env": EnvRef("me/env", "1.0.0", "sha256:ab"),
    }
    return Row(**{**fields, **changes})


def same(left: Row, right: Row) -> bool:
    """Equal in every field and type, NaN to NaN."""
    return repr(left) == repr(right)


numbers = st.floats(allow_nan=True, allow_infinity=True)
finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """Any row that keeps the guarantees."""
    length = draw(st.integers(2, 12))

    def many(one: st.SearchStrategy[Any]) -> Any:
        return draw(st.lists(one, min_size=length, max_size=length))

    exact = draw(st.booleans())
    mask = many(st.booleans())
    mask[draw(st.integers(1, length - 1))] = True
    said = draw(st.booleans())
    places = [place for place, sampled in enumerate(mask) if sampled]
    logprob = st.floats(-9998.0, 0.0)
    return Row(
        tokens=many(st.integers(0, 2**31)),
        mask=mask,
        logprobs=many(logprob if exact else logprob | st.just(math.nan)),
        versions=many(st.integers(0, 2**40)),
        reward=draw(st.none() | finite),
        weight=draw(st.floats(0.0, 1.0, exclude_min=True)),
        advantages=many(finite) if draw(st.booleans()) else None,
        metrics=draw(st.dictionaries(texts, numbers, max_size=3)),
        stop_reason=draw(texts),
        error_kind=draw(st.none() | texts),
        truncated=draw(st.booleans()),
        exactness="exact" if exact else "rendered",
        rollout_id=draw(texts),
        group_id=draw(texts),
        task_id=draw(texts),
        sampling=draw(st.dictionaries(texts, values, max_size=3)),
        env=EnvRef(draw(texts), draw(st.none() | texts), draw(st.none() | texts)),
        routed_experts=draw(st.none() | st.lists(values, max_size=3)),
        replies=[[turn, place, place + 1] for turn, place in enumerate(places)] if said else [],
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(many=st.lists(rows(), max_size=4))
def test_every_field_comes_back(suffix: str, tmp_path: Path, many: list[Row]) -> None:
    """Any rows, of any contents, are the same after a way to the disk and back."""
    path = tmp_path / f"rows{suffix}"
    assert write_rows(path, many) == len(many)
    back = list(read_rows(path))
    assert len(back) == len(many) and all(map(same, many, back))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_arrays_come_back_as_lists(suffix: str, tmp_path: Path) -> None:
    """What numpy holds is written by value: ids, logprobs of single precision, metrics, experts of each turn."""
    experts = np.arange(8, dtype=np.uint8).reshape(2, 2, 2)
    given = row(
        tokens=np.array([1, 2, 3, 4], dtype=np.int32),
        mask=np.array([False, True, True, False]),
        logprobs=np.array([0.0, -0.1, -0.2, 0.0], dtype=np.float32),
        metrics={"m": np.float32(0.1)},
        routed_experts=[experts, {"layers": experts}],
    )
    write_rows(tmp_path / f"rows{suffix}", [given])
    (back,) = read_rows(tmp_path / f"rows{suffix}")
    assert back.tokens == [1, 2, 3, 4] and back.mask == [False, True, True, False]
    assert back.logprobs == [0.0, float(np.float32(-0.1)), float(np.float32(-0.2)), 0.0]
    assert back.metrics == {"m": float(np.float32(0.1))}
    assert back.routed_experts == [experts.tolist(), {"layers": experts.tolist()}]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_broken_row_is_refused_and_the_file_stays(suffix: str, tmp_path: Path) -> None:
    """A file is replaced as a whole or not at all; the error says which row it was, and nothing is left beside."""
    path = tmp_path / f"rows{suffix}"
    write_rows(path, [row(1)])
    with pytest.raises(EvidenceError, match=rf"rows{suffix}, row 2: .* no token is trainable"):
        write_rows(path, [row(2), row(3, mask=[False] * 4)])
    assert [one.rollout_id for one in read_rows(path)] == ["r1"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "changes",
    [{"stop_reason": "\ud800"}, {"sampling": {"x": math.nan}}, {"versions": [2**70] * 4}],
    ids=["text", "number", "integer"],
)
def test_what_no_file_can_hold_is_refused(suffix: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """A value that would come back as another one is an error when it is written."""
    with pytest.raises(EvidenceError, match="row 1"):
        write_rows(tmp_path / f"rows{suffix}", [row(**changes)])
    assert list(tmp_path.iterdir()) == []


def test_appending_heals_a_torn_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A reader passes a torn last line by; the next writer cuts it off, so that nothing merges with it."""
    path = tmp_path / "rows.jsonl"
    write_rows(path, [row(1), row(2)], append=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert [one.rollout_id for one in read_rows(path)] == ["r1"]
    assert f"{path}, line 2: torn off" in caplog.text
    write_rows(path, [row(3)], append=True)
    assert [one.rollout_id for one in read_rows(path)] == ["r1", "r3"]
    path.write_bytes(path.read_bytes()[:-1])  # only the newline is missing: the row is whole
    write_rows(path, [row(4)], append=True)
    assert [one.rollout_id for one in read_rows(path)] == ["r1", "r3", "r4"]


def test_a_torn_gzip_file_gives_what_is_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As with plain lines; that something is missing is told."""
    path = tmp_path / "rows.jsonl.gz"
    write_rows(path, [row(number, sampling={"x": os.urandom(4096).hex()}) for number in range(20)])
    path.write_bytes(path.read_bytes()[:-2000])
    back = [one.rollout_id for one in read_rows(path)]
    assert back == [f"r{number}" for number in range(len(back))] and 15 <= len(back) < 20
    assert "torn off" in caplog.text


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    """Files can be compared: neither a time nor a name is in them."""
    for suffix in SUFFIXES:
        write_rows(tmp_path / f"a{suffix}", [row(1)])
        write_rows(tmp_path / f"b{suffix}", [row(1)])
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{no json}", "line 2: this is no JSON"),
        (b"[]", "line 2: this is no row"),
        (b'{"tokens": [1]}', "line 2: this is no row: 'logprobs'"),
        (orjson.dumps({**row_to_dict(row()), "mask": [True]}), "line 2: a row of rollout r0 breaks a guarantee"),
        (orjson.dumps({**row_to_dict(row()), "metrics": {"m": "high"}}), "line 2: could not convert"),
    ],
    ids=["text", "list", "part", "broken", "metric"],
)
def test_a_line_that_is_no_row_is_named(line: bytes, said: str, tmp_path: Path) -> None:
    """File and line are in the message, whatever is wrong with it."""
    path = tmp_path / "rows.jsonl"
    write_rows(path, [row()])
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(EvidenceError, match=said) as caught:
        list(read_rows(path))
    assert str(caught.value).startswith(str(path))


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A file of a later version is not read as if it were one of this."""
    import pyarrow.parquet as pq

    lines = tmp_path / "rows.jsonl"
    lines.write_bytes(orjson.dumps({"schema": 2, **row_to_dict(row())}) + b"\n")
    parquet = tmp_path / "rows.parquet"
    write_rows(parquet, [row()])
    table = pq.read_table(parquet)
    pq.write_table(table.replace_schema_metadata({"verifiers.rows": "2"}), parquet)
    for path in (lines, parquet):
        with pytest.raises(StoreError, match="schema 2, and this version reads 1"):
            list(read_rows(path))


def test_lines_without_a_schema_are_of_the_first(tmp_path: Path) -> None:
    """What row_to_dict gave is a line of such a file."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row_to_dict(row())))
    assert [one.rollout_id for one in read_rows(path)] == ["r0"]


def test_files_that_are_none(tmp_path: Path) -> None:
    """Unknown suffixes, missing files, empty folders and other contents are told apart."""
    with pytest.raises(ConfigError, match="no suffix that says how"):
        write_rows(tmp_path / "rows.csv", [])
    with pytest.raises(ConfigError, match="can not append"):
        RowWriter(tmp_path / "rows.parquet", append=True)
    with pytest.raises(StoreError, match="can not read"):
        list(read_rows(tmp_path / "rows.jsonl"))
    with pytest.raises(StoreError, match="holds no rows"):
        row_files(tmp_path)
    for suffix in (".parquet", ".jsonl.gz"):
        other = tmp_path / f"other{suffix}"
        other.write_bytes(b"something else")
        with pytest.raises(StoreError, match=r"other\."):
            list(read_rows(other))


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    """Parts of any format; what is being written, and other files, are passed by."""
    write_rows(tmp_path / "2.parquet", [row(2)])
    write_rows(tmp_path / "1.jsonl", [row(1)])
    write_rows(tmp_path / "3.jsonl.gz", [row(3)])
    (tmp_path / ".4.jsonl.new").write_text("{}")
    (tmp_path / "notes.txt").write_text("")
    assert [one.rollout_id for one in read_rows(tmp_path)] == ["r1", "r2", "r3"]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """A second one that would append is refused, and may when the first is closed."""
    path = tmp_path / "rows.jsonl"
    with RowWriter(path, append=True), pytest.raises(StoreError, match="another process is writing"):
        RowWriter(path, append=True)
    assert write_rows(path, [row()], append=True) == 1


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_memory_is_bounded_both_ways(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of eight times what a row group holds are written and read with little more than one group at a time."""
    monkeypatch.setattr("verifiers.train.storage_parquet.GROUP_TOKENS", 1 << 12)
    length, many = 1 << 8, 128

    def generated() -> Iterator[Row]:
        for number in range(many):
            yield row(
                number,
                tokens=list(range(1000, 1000 + length)),
                mask=[True] * length,
                logprobs=[-1.0 / (index + number + 1) for index in range(length)],
                versions=[300 + number] * length,
            )

    path = tmp_path / f"rows{suffix}"
    write_rows(path, [row()])
    assert list(read_rows(path))  # libraries are loaded
    tracemalloc.start()
    try:
        write_rows(path, generated())
        _, written = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        assert sum(1 for _ in read_rows(path)) == many
        _, read = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    whole = many * length * 4 * 8  # the pointers alone; numbers are objects on top
    assert max(written, read) < whole


def test_kill_9_loses_no_row_that_was_written(tmp_path: Path) -> None:
    """A process that is killed while it appends leaves every row whose write returned."""
    path = tmp_path / "rows.jsonl"
    code = f"""
import sys
from verifiers.train.rows import Row
from verifiers.train.storage import RowWriter
with RowWriter({str(path)!r}, append=True) as writer:
    for number in range(10**6):
        writer.write(Row([1, 2], [False, True], [0.0, -1.0], [0, 0], 1.0, rollout_id=str(number)))
        print(number, flush=True)
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for line in child.stdout:
        if int(line) == 50:
            child.send_signal(signal.SIGKILL)
            break
    told = 50 + len(child.stdout.read().splitlines())
    child.wait()
    child.stdout.close()
    back = [one.rollout_id for one in read_rows(path)]
    assert back == [str(number) for number in range(len(back))] and len(back) > told - 1


def test_a_gzip_file_is_plain_lines(tmp_path: Path) -> None:
    """Other tools read it: one JSON object a line, with the schema's version first."""
    write_rows(tmp_path / "rows.jsonl.gz", [row(1), row(2)])
    with gzip.open(tmp_path / "rows.jsonl.gz", "rt") as file:
        data = [json.loads(line) for line in file]
    assert [one["schema"] for one in data] == [1, 1] and data[1]["env"]["digest"] == "sha256:ab"


@pytest.mark.parametrize("append", [False, True])
def test_a_writer_may_be_closed_before_its_block_ends(tmp_path: Path, append: bool) -> None:
    """What it wrote is there, and whoever has the number of its descriptor by then keeps it."""
    path = tmp_path / "rows.jsonl"
    with RowWriter(path, append=append) as writer:
        writer.write(Row(tokens=[1, 2], mask=[False, True], logprobs=[0.0, -1.0], versions=[0, 0], reward=1.0))
        writer.close()
        other = (tmp_path / "other").open("w")
    other.write("whole")
    other.close()
    assert len(list(read_rows(path))) == 1 and (tmp_path / "other").read_text() == "whole"
