"""Where conversations to imitate are read from: folders of runs, JSON lines, Parquet, rows. One at a time.

    for item in items_of("outputs/evals/gsm8k--m/1a2b3c4d"):     # or good.jsonl, data.parquet, rows.jsonl.gz, a folder
        item.data                                                # a conversation as it stands there, or a Row
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from verifiers.errors import DatasetError, StoreError
from verifiers.evals.appending import store_error
from verifiers.evals.store import RESULTS, SavedRun
from verifiers.train.rows import EnvRef, Row
from verifiers.train.storage import read_rows, row_files
from verifiers.train.storage_data import row_of_data
from verifiers.train.storage_parquet import is_parquet_of_rows


class Item(NamedTuple):
    """A conversation, and where it stands. `env` is of the run it belongs to."""

    place: str
    data: Mapping[str, Any] | Row
    env: EnvRef | None = None


def items_of(path: str | Path) -> Iterator[Item]:
    """The conversations of a file, of the run in a folder, or of the files in a folder.

    StoreError for what can not be read; DatasetError for a line that is no JSON object; EvidenceError for a broken row;
    ConfigError for an unknown suffix.
    """
    folder = Path(path)
    if (folder / RESULTS).is_file():
        yield from _records(SavedRun(folder))
        return
    for file in row_files(folder):
        yield from _of_parquet(file) if file.suffix == ".parquet" else _of_lines(file)


def environment_of(run: SavedRun) -> EnvRef:
    """Which environment a run was played with, as far as its metadata say."""
    metadata = run.read_metadata() or {}
    ref = metadata.get("environment") or {"name": metadata.get("env_id", "")}
    return EnvRef(str(ref.get("name") or ""), ref.get("version"), ref.get("digest"))


def _records(run: SavedRun) -> Iterator[Item]:
    env = environment_of(run)
    for number, record in enumerate(run.records(), 1):
        yield Item(f"{run.path / RESULTS}, record {number}", record, env)


def _of_lines(path: Path) -> Iterator[Item]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _item(line, path, f"line {number}")
    except (OSError, EOFError) as error:
        raise store_error(f"can not read {path}", OSError(str(error))) from error


def _item(line: bytes, path: Path, place: str) -> Item:
    try:
        data = orjson.loads(line)
    except ValueError as error:
        raise DatasetError(f"{path}, {place}: this is no JSON: {error}", hint="Mend or remove the line.") from error
    if not isinstance(data, dict):
        raise DatasetError(f"{path}, {place}: this is no conversation but other JSON", hint="A line is an object.")
    if {"tokens", "mask"} <= data.keys():
        return Item(f"{path}, {place}", row_of_data(data, path, place))
    return Item(f"{path}, {place}", data)


def _of_parquet(path: Path) -> Iterator[Item]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if is_parquet_of_rows(path):
        yield from (Item(f"{path}, row {number}", row) for number, row in enumerate(read_rows(path), 1))
        return
    try:
        with pq.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(64):
                for data in batch.to_pylist():
                    number += 1
                    yield Item(f"{path}, row {number}", data)
    except OSError as error:
        raise store_error(f"can not read {path}", error) from error
    except pa.ArrowException as error:
        raise StoreError(f"{path} is no Parquet file: {error}", hint="Was its writer closed?") from error
