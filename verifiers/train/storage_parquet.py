"""Files of rows as Parquet: a column for each field, so that other programs can read some of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from verifiers.errors import EvidenceError, StoreError
from verifiers.evals.appending import store_error
from verifiers.train.rows import Row
from verifiers.train.storage_data import SCHEMA, line_of, newer, row_of_data

GROUP_TOKENS = 1 << 20
GROUP_ROWS = 4096
"""A row group is written after so many tokens or rows: what memory holds."""

READ_ROWS = 64


def _schema() -> Any:
    import pyarrow as pa

    text, floats = pa.string(), pa.list_(pa.float64())
    columns = {
        "tokens": pa.list_(pa.int64()),
        "mask": pa.list_(pa.bool_()),
        "logprobs": floats,
        "versions": pa.list_(pa.int64()),
        "reward": pa.float64(),
        "weight": pa.float64(),
        "advantages": floats,
        "metrics": pa.map_(text, pa.float64()),
        "stop_reason": text,
        "error_kind": text,
        "truncated": pa.bool_(),
        "exactness": text,
        "rollout_id": text,
        "group_id": text,
        "task_id": text,
        "sampling": text,  # JSON: its fields differ from row to row
        "env": pa.struct({"name": text, "version": text, "digest": text}),
        "routed_experts": pa.large_string(),  # JSON
        "replies": pa.list_(pa.list_(pa.int64())),
    }
    return pa.schema(columns, metadata={"verifiers.rows": str(SCHEMA)})


class Parquet:
    """Writes a whole file, a group of rows at a time."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._schema = _schema()
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._tokens = 0

    def write(self, data: dict[str, Any]) -> None:
        line_of(data)  # refuses now, by its number, what the columns would refuse with the whole group
        data["logprobs"] = [math.nan if value is None else value for value in data["logprobs"]]
        data["metrics"] = [(name, float(value)) for name, value in data["metrics"].items()]
        data["sampling"] = orjson.dumps(data["sampling"]).decode()
        if data["routed_experts"] is not None:
            data["routed_experts"] = line_of({"of": data["routed_experts"]}).decode()
        self._rows.append(data)
        self._tokens += len(data["tokens"])
        if self._tokens >= GROUP_TOKENS or len(self._rows) >= GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        try:
            table = pa.Table.from_pylist(self._rows, schema=self._schema)
        except (pa.ArrowException, OverflowError, UnicodeError) as error:
            raise EvidenceError(f"it, or one of the last rows, does not fit its columns: {error}") from error
        self._writer.write_table(table)
        self._rows, self._tokens = [], 0

    def close(self) -> None:
        if self._rows:
            self._write_group()
        self._writer.close()

    def abandon(self) -> None:
        self._writer.close()


def read_parquet(path: Path) -> Iterator[Row]:
    """The rows of a file. EvidenceError for what is none, StoreError if it can not be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = (file.schema_arrow.metadata or {}).get(b"verifiers.rows", str(SCHEMA).encode())
            if schema != str(SCHEMA).encode():
                raise newer(path, schema.decode())
            number = 0
            for batch in file.iter_batches(READ_ROWS):
                for index in range(batch.num_rows):  # as objects of Python rows are several times larger
                    number += 1
                    (data,) = batch.slice(index, 1).to_pylist(maps_as_pydicts="strict")
                    yield row_of_data(_from_parquet(data), path, f"row {number}")
    except OSError as error:
        raise store_error(f"can not read {path}", error) from error
    except pa.ArrowException as error:
        raise StoreError(f"{path} is no Parquet file: {error}", hint="Was its writer closed?") from error


def is_parquet_of_rows(path: Path) -> bool:
    """Whether `RowWriter` wrote this Parquet file. StoreError if it is none."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return b"verifiers.rows" in (pq.read_schema(path).metadata or {})
    except OSError as error:
        raise store_error(f"can not read {path}", error) from error
    except pa.ArrowException as error:
        raise StoreError(f"{path} is no Parquet file: {error}", hint="Was its writer closed?") from error


def _from_parquet(data: dict[str, Any]) -> dict[str, Any]:
    for name in ("sampling", "routed_experts"):
        if isinstance(text := data.get(name), str):
            value = orjson.loads(text)
            data[name] = value["of"] if name == "routed_experts" else value
    return data
