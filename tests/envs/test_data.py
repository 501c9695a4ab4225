"""Public data sets: a folder or the hub, one digest, and errors that name both ways."""

from __future__ import annotations

import gzip
import json
import logging
import time
from pathlib import Path
from typing import Any

import datasets
import pytest
from hypothesis import given, strategies as st

from verifiers.envs import data
from verifiers.envs.data import digest_of, load_rows
from verifiers.errors import DatasetError, DataUnavailableError

ROWS = [{"question": "1 + 1?", "answer": "2", "id": "a"}, {"question": "Größe?", "answer": "3", "id": "b"}]
USED = [{"question": row["question"], "answer": row["answer"]} for row in ROWS]
WHOLE = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
COLUMNS = ("question", "answer")
cells = st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.lists(st.text(), max_size=3))


def load(digest: str | None = None, columns: tuple[str, ...] = COLUMNS) -> data.Rows:
    return load_rows("sums/test", "owner/sums", "main", "test", columns, digest)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with one file, named by VF_DATA_DIR."""
    (tmp_path / "sums").mkdir()
    (tmp_path / "sums" / "test.jsonl.gz").write_bytes(gzip.compress(WHOLE))
    monkeypatch.setenv("VF_DATA_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A hub that has the data set; the list fills with what was asked of it."""
    asked: list[tuple[Any, ...]] = []

    def load_dataset(name: str, config: str | None, split: str) -> Any:
        asked.append((name, config, split))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.delenv("VF_DATA_DIR", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(data, "_hub_answers", lambda endpoint: True)
    return asked


def test_both_ways_give_the_same_rows_and_digest(folder: Path, hub: list[Any], monkeypatch: Any) -> None:
    """Only the columns used count, in row order: more columns in the file change nothing."""
    from_hub = load()
    monkeypatch.setenv("VF_DATA_DIR", str(folder))
    from_file = load()
    assert from_hub.rows == from_file.rows == USED
    assert from_hub.digest == from_file.digest == digest_of(USED)
    assert hub == [("owner/sums", "main", "test")]


def test_the_folder_is_the_only_place_if_it_is_named(
    hub: list[Any], monkeypatch: Any, tmp_path: Path
) -> None:
    """With VF_DATA_DIR set, a missing file is an error that names both ways; the hub is not asked."""
    monkeypatch.setenv("VF_DATA_DIR", str(tmp_path))
    with pytest.raises(DataUnavailableError) as caught:
        load()
    assert str(tmp_path / "sums" / "test.jsonl.gz") in str(caught.value)
    assert "unset VF_DATA_DIR" in caught.value.hint
    assert hub == []


def test_plain_lines_are_read_too(folder: Path) -> None:
    """A file that is not compressed, for sets that users bring themselves."""
    (folder / "sums" / "test.jsonl.gz").unlink()
    (folder / "sums" / "test.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS), encoding="utf-8")
    assert load().digest == digest_of(USED)


def test_another_local_content_is_an_error(folder: Path) -> None:
    """A changed file is refused, naming both digests and the columns."""
    with pytest.raises(DatasetError, match=r"question, answer hash to [0-9a-f]{12}…, not to 000000000000…"):
        load(digest="0" * 64)


def test_another_hub_content_is_a_warning(hub: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    """The hub's owner may have corrected a row: the rows are used, the warning names the data set."""
    with caplog.at_level(logging.WARNING, logger="verifiers"):
        assert load(digest="0" * 64).digest == digest_of(USED)
    assert "owner/sums (main) test" in caplog.text


@pytest.mark.parametrize(
    "content",
    [b"not gzip", gzip.compress(b"{broken"), gzip.compress(WHOLE)[:-9]],
    ids=["not gzip", "not JSON", "cut off"],
)
def test_damaged_files_are_one_clear_error(folder: Path, content: bytes) -> None:
    """No gzip, no JSON, and a file that was cut off."""
    (folder / "sums" / "test.jsonl.gz").write_bytes(content)
    with pytest.raises(DatasetError, match="cannot be read as JSON lines"):
        load()


def test_a_missing_column_is_named(folder: Path) -> None:
    """The file is there, but it is another data set."""
    with pytest.raises(DatasetError, match="without the column 'solution'"):
        load(columns=("question", "solution"))


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9", "http://no-such-host.invalid"], ids=["nobody listens", "no such name"]
)
def test_a_hub_out_of_reach_is_told_within_five_seconds(
    endpoint: str, monkeypatch: Any, tmp_path: Path
) -> None:
    """One error that names both ways, without the minute of retries of the hub's own client."""
    monkeypatch.delenv("VF_DATA_DIR", raising=False)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", endpoint)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    started = time.monotonic()
    with pytest.raises(DataUnavailableError) as caught:
        load()
    assert time.monotonic() - started < 5
    assert "owner/sums" in str(caught.value)
    assert "does not answer" in str(caught.value)
    assert "VF_DATA_DIR" in caught.value.hint
    assert "sums/test.jsonl.gz" in caught.value.hint


def test_offline_mode_is_told_as_such(monkeypatch: Any, tmp_path: Path) -> None:
    """The user's own switch is named, and nothing is asked of the network."""
    monkeypatch.delenv("VF_DATA_DIR", raising=False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(DataUnavailableError, match="HF_HUB_OFFLINE is set"):
        load()


def test_what_the_hub_says_is_passed_on(hub: list[Any], monkeypatch: Any) -> None:
    """A gated or unknown data set: the first line of the loader's message, and both ways."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise FileNotFoundError("owner/sums is gated\nmore")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(DataUnavailableError, match=r"owner/sums is gated(\n|$)"):
        load()


@given(rows=st.lists(st.fixed_dictionaries({"a": cells, "b": cells}), max_size=5))
def test_the_digest_is_that_of_the_content(rows: list[dict[str, Any]]) -> None:
    """Key order does not count, row order and every value do."""
    assert digest_of(rows) == digest_of([{"b": row["b"], "a": row["a"]} for row in rows])
    assert digest_of(rows) != digest_of([*rows, {"a": "", "b": ""}])
    if rows != rows[::-1]:
        assert digest_of(rows) != digest_of(rows[::-1])
