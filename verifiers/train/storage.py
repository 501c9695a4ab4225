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

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from verifiers.errors import ConfigError, EvidenceError, StoreError
from verifiers.evals.appending import store_error
from verifiers.train.rows import Row
from verifiers.train.storage_data import Sink, data_of
from verifiers.train.storage_lines import AppendedLines, Lines, ZippedLines, read_lines
from verifiers.train.storage_parquet import Parquet, read_parquet

_SINKS: dict[str, type[Sink]] = {".jsonl": Lines, ".jsonl.gz": ZippedLines, ".parquet": Parquet}
_READERS = {".jsonl": read_lines, ".jsonl.gz": read_lines, ".parquet": read_parquet}
SUFFIXES = tuple(_SINKS)


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
            kind: type[Sink] = AppendedLines if append else _SINKS[suffix]
            self._sink = kind(self._target)
        except OSError as error:
            raise store_error(f"can not write {self.path}", error) from error

    def write(self, row: Row) -> None:
        """Add a row."""
        with self._named():
            self._sink.write(data_of(row))
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
