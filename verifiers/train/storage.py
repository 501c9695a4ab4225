"""Rows on disk, one at a time both ways: JSON lines (`.jsonl`, `.jsonl.gz`) or Parquet (`.parquet`), by the suffix.

    with RowWriter("rows.parquet") as writer:        # replaces the file when it is closed, or not at all
        writer.write(row)
    with RowWriter("rows.jsonl", append=True) as writer: ...
    for row in read_rows("rows.jsonl"): ...          # a file, or a folder of them in the order of their names

Every field comes back as it was, arrays as lists: logprobs that no engine reported (NaN), metrics that are not finite,
routed experts, the environment's version and digest. Memory holds one row, of Parquet one row group. What a dying
process tore off the end of a JSON-lines file is passed by with a warning, and cut off when the file is appended to;
any other line that is no row is an EvidenceError with its file and number.
"""

from __future__ import annotations

import gzip
import json
import logging
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import orjson

from verifiers.errors import ConfigError, EvidenceError, StoreError
from verifiers.evals.appending import cut_torn_line, open_for_appending, store_error, write_whole
from verifiers.train.rows import Row, check_row, row_from_dict, row_to_dict

logger = logging.getLogger(__name__)

SCHEMA = 1
"""Version of the form of a row on disk: in every JSON line, and in the metadata of a Parquet file."""

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")


def write_rows(path: str | Path, rows: Iterable[Row], *, append: bool = False) -> int:
    """Write rows to a file and return how many there were. See `RowWriter`."""
    with RowWriter(path, append=append) as writer:
        for row in rows:
            writer.write(row)
    return writer.written


class RowWriter:
    """Writes rows to a file, which is replaced as a whole when the writer is closed; after an error it stays as it was.

    append: add to a file of JSON lines instead, line by line: after `write` returns, `kill -9` loses no row. One writer
        at a time; a torn last line is cut off first.

    ConfigError for an unknown suffix, or to append to what can not be; EvidenceError for a row that breaks a guarantee
    or holds what JSON can not; StoreError if the file can not be written.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self.path = Path(path)
        self.written = 0
        self._ended = False
        suffix = _suffix(self.path)
        if append and suffix != ".jsonl":
            raise ConfigError(
                f"can not append to {self.path}: {suffix} files are written as a whole",
                hint="Append to a .jsonl file, or write a file for each part into one folder.",
            )
        self._target = self.path if append else self.path.with_name(f".{self.path.name}.new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = _APPENDED(self._target) if append else _SINKS[suffix](self._target)
        except OSError as error:
            raise store_error(f"can not write {self.path}", error) from error

    def write(self, row: Row) -> None:
        """Add a row."""
        with self._named():
            self._sink.write(_data_of(row))
        self.written += 1

    def close(self) -> None:
        """Push everything to the disk; a file that is written as a whole gets its name now. Closing twice is fine."""
        if self._ended:
            return
        with self._named():
            try:
                self._sink.close()
                with self._target.open("rb") as file:
                    os.fsync(file.fileno())
            except BaseException:
                self.discard()
                raise
            if self._target != self.path:
                self._target.replace(self.path)
        self._ended = True

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors name the file."""
        try:
            yield
        except EvidenceError as error:
            raise EvidenceError(f"{self.path}, row {self.written + 1}: {error}", hint=error.hint) from error
        except OSError as error:
            raise store_error(f"can not write {self.path}", error) from error

    def discard(self) -> None:
        """Give up: a file that is written as a whole stays as it was before."""
        if self._ended:
            return
        self._ended = True
        with suppress(OSError):
            self._sink.abandon()
        if self._target != self.path:
            self._target.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()


def read_rows(path: str | Path) -> Iterator[Row]:
    """The rows of a file, or of all files of rows in a folder.

    EvidenceError, with file and number, for what is no row; StoreError for what can not be read, is no such file, or is
    of a newer schema; ConfigError for an unknown suffix.
    """
    for file in row_files(path):
        yield from _READERS[_suffix(file)](file)


def row_files(path: str | Path) -> list[Path]:
    """The file itself, or the files of rows of a folder in the order of their names. StoreError if there are none."""
    path = Path(path)
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.iterdir() if file.name.endswith(SUFFIXES) and file.name[0] != ".")
    if not found:
        raise StoreError(
            f"{path} holds no rows: there is no {' or '.join(SUFFIXES)} file",
            hint="Name a file of rows, or a folder that holds some.",
        )
    return found


def _suffix(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            return suffix
    raise ConfigError(f"{path} has no suffix that says how rows are stored", hint=f"Use {', '.join(SUFFIXES)}.")


# --- a row as data --------------------------------------------------------------------------------------------


def _data_of(row: Row) -> dict[str, Any]:
    """JSON data that keeps metrics which JSON has no number for, as text. EvidenceError for a row that is none."""
    data = row_to_dict(row)
    check_row(replace(row, **{name: data[name] for name in _ARRAYS}))
    data["metrics"] = {name: _number_or_text(value) for name, value in data["metrics"].items()}
    try:
        json.dumps(data["sampling"], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"its sampling arguments are no JSON: {error}", hint="Leave out what is none.") from error
    return data


_ARRAYS = ("tokens", "mask", "logprobs", "versions", "advantages")


def _number_or_text(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def row_of_data(data: Any, path: Path, place: str) -> Row:
    """The row that a line holds as JSON, or an EvidenceError that says where it should have been."""
    try:
        if not isinstance(data, dict):
            raise EvidenceError("this is no row but other JSON", hint="Rows are written by RowWriter.")
        if (schema := data.pop("schema", SCHEMA)) != SCHEMA:
            raise _newer(path, schema)
        metrics = data.get("metrics") or {}
        data["metrics"] = {name: float(value) for name, value in metrics.items()}
        return row_from_dict(data)
    except (EvidenceError, TypeError, ValueError, AttributeError) as error:
        hint = getattr(error, "hint", None)
        raise EvidenceError(f"{path}, {place}: {error}", hint=hint) from error


def _newer(path: Path, schema: object) -> StoreError:
    return StoreError(
        f"{path} holds rows of schema {schema}, and this version reads {SCHEMA}", hint="Install a newer version."
    )


# --- JSON lines -----------------------------------------------------------------------------------------------


class _Sink(Protocol):
    def __init__(self, path: Path) -> None: ...
    def write(self, data: dict[str, Any]) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


def _line(data: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps({"schema": SCHEMA, **data}) + b"\n"
    except TypeError as error:  # integers beyond 64 bits, lone surrogates, objects
        raise EvidenceError(f"it is no JSON: {error}", hint="Rows hold numbers, texts, lists and dicts.") from error


class _Lines:
    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._lines: Any = self._file

    def write(self, data: dict[str, Any]) -> None:
        self._lines.write(_line(data))

    def close(self) -> None:
        with self._file:
            self._lines.close()

    abandon = close


class _ZippedLines(_Lines):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # Neither name nor time in its header: the file depends on its rows only.
        self._lines = gzip.GzipFile("", "wb", 6, self._file, mtime=0)


class _AppendedLines:
    def __init__(self, path: Path) -> None:
        self._descriptor = open_for_appending(path)
        cut_torn_line(self._descriptor, path, "its row is lost")

    def write(self, data: dict[str, Any]) -> None:
        size = os.fstat(self._descriptor).st_size
        try:
            write_whole(self._descriptor, _line(data))
        except OSError:
            os.ftruncate(self._descriptor, size)  # a full disk: nothing may stand before the next line
            raise

    def close(self) -> None:
        # Once only: the number may be another file's by the second time.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    abandon = close


def _read_lines(path: Path) -> Iterator[Row]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            number = 0
            for number, line in _whole_lines(file, path):
                if line.strip():
                    yield row_of_data(_json(line, path, number), path, f"line {number}")
    except OSError as error:  # BadGzipFile is one
        raise store_error(f"can not read {path}", error) from error


def _whole_lines(file: Any, path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers, without a last one that was torn."""
    number = 0
    try:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n") and not _is_json(line):
                logger.warning("%s, line %d: torn off after %d bytes, skipped", path, number, len(line))
                return
            yield number, line
    except (EOFError, zlib.error) as error:
        logger.warning("%s: torn off after line %d (%s)", path, number, error)


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except ValueError:
        return False
    return True


def _json(line: bytes, path: Path, number: int) -> Any:
    try:
        return orjson.loads(line)
    except ValueError as error:
        raise EvidenceError(
            f"{path}, line {number}: this is no JSON: {error}", hint="Remove the line, or write the file again."
        ) from error


# --- Parquet --------------------------------------------------------------------------------------------------

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


class _Parquet:
    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._schema = _schema()
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._tokens = 0

    def write(self, data: dict[str, Any]) -> None:
        _line(data)  # refuses now, by its number, what the columns would refuse with the whole group
        data["logprobs"] = [math.nan if value is None else value for value in data["logprobs"]]
        data["metrics"] = [(name, float(value)) for name, value in data["metrics"].items()]
        data["sampling"] = orjson.dumps(data["sampling"]).decode()
        if data["routed_experts"] is not None:
            data["routed_experts"] = _line({"of": data["routed_experts"]}).decode()
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


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            schema = (file.schema_arrow.metadata or {}).get(b"verifiers.rows", str(SCHEMA).encode())
            if schema != str(SCHEMA).encode():
                raise _newer(path, schema.decode())
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


_APPENDED: type[_Sink] = _AppendedLines
_SINKS: dict[str, type[_Sink]] = {".jsonl": _Lines, ".jsonl.gz": _ZippedLines, ".parquet": _Parquet}
_READERS = {".jsonl": _read_lines, ".jsonl.gz": _read_lines, ".parquet": _read_parquet}
