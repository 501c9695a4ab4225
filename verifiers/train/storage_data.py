"""A row as the JSON data that files of rows hold, and back. Which files there are: `verifiers.train.storage`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import orjson

from verifiers.errors import EvidenceError, StoreError
from verifiers.train.rows import Row, check_row, row_from_dict, row_to_dict

SCHEMA = 1
"""Version of the form of a row on disk: in every JSON line, and in the metadata of a Parquet file."""


_ARRAYS = ("tokens", "mask", "logprobs", "versions", "advantages")


class Sink(Protocol):
    """A file that is being written, row by row; `abandon` gives it up."""

    def __init__(self, path: Path) -> None: ...
    def write(self, data: dict[str, Any]) -> None: ...
    def close(self) -> None: ...
    def abandon(self) -> None: ...


def line_of(data: Mapping[str, Any]) -> bytes:
    """A line of JSON. EvidenceError for what is none."""
    try:
        return orjson.dumps({"schema": SCHEMA, **data}) + b"\n"
    except TypeError as error:  # integers beyond 64 bits, lone surrogates, objects
        raise EvidenceError(f"it is no JSON: {error}", hint="Rows hold numbers, texts, lists and dicts.") from error


def data_of(row: Row) -> dict[str, Any]:
    """JSON data that keeps metrics which JSON has no number for, as text. EvidenceError for a row that is none."""
    data = row_to_dict(row)
    check_row(replace(row, **{name: data[name] for name in _ARRAYS}))
    data["metrics"] = {name: _number_or_text(value) for name, value in data["metrics"].items()}
    try:
        json.dumps(data["sampling"], allow_nan=False)
    except (TypeError, ValueError) as error:
        raise EvidenceError(f"its sampling arguments are no JSON: {error}", hint="Leave out what is none.") from error
    return data


def _number_or_text(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def row_of_data(data: Any, path: Path, place: str) -> Row:
    """The row that a line holds as JSON, or an EvidenceError that says where it should have been."""
    try:
        if not isinstance(data, dict):
            raise EvidenceError("this is no row but other JSON", hint="Rows are written by RowWriter.")
        if (schema := data.pop("schema", SCHEMA)) != SCHEMA:
            raise newer(path, schema)
        metrics = data.get("metrics") or {}
        data["metrics"] = {name: float(value) for name, value in metrics.items()}
        return row_from_dict(data)
    except (EvidenceError, TypeError, ValueError, AttributeError) as error:
        hint = getattr(error, "hint", None)
        raise EvidenceError(f"{path}, {place}: {error}", hint=hint) from error


def newer(path: Path, schema: object) -> StoreError:
    """The error of a file that a later version of this package wrote."""
    return StoreError(
        f"{path} holds rows of schema {schema}, and this version reads {SCHEMA}", hint="Install a newer version."
    )
