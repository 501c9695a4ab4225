"""Files of rows as JSON lines, one row a line: written as a whole, compressed or not, or appended to."""

from __future__ import annotations

import gzip
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from verifiers.errors import EvidenceError
from verifiers.evals.appending import cut_torn_line, open_for_appending, store_error, write_whole
from verifiers.train.rows import Row
from verifiers.train.storage_data import line_of, row_of_data

logger = logging.getLogger(__name__)


class Lines:
    """Writes a whole file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._lines: Any = self._file

    def write(self, data: dict[str, Any]) -> None:
        self._lines.write(line_of(data))

    def close(self) -> None:
        with self._file:
            self._lines.close()

    abandon = close


class ZippedLines(Lines):
    """The same, compressed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        # Neither name nor time in its header: the file depends on its rows only.
        self._lines = gzip.GzipFile("", "wb", 6, self._file, mtime=0)


class AppendedLines:
    """Adds to a file, each line whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._descriptor = open_for_appending(path)
        cut_torn_line(self._descriptor, path, "its row is lost")

    def write(self, data: dict[str, Any]) -> None:
        size = os.fstat(self._descriptor).st_size
        try:
            write_whole(self._descriptor, line_of(data))
        except OSError:
            os.ftruncate(self._descriptor, size)  # a full disk: nothing may stand before the next line
            raise

    def close(self) -> None:
        # Once only: the number may be another file's by the second time.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    abandon = close


def read_lines(path: Path) -> Iterator[Row]:
    """The rows of a file. EvidenceError for a line that is none, StoreError if it can not be read."""
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
