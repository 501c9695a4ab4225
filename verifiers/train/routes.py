"""Which experts a mixture of experts sent each token to, as samplers report it and as a trainer replays it. numpy only.

A turn's report covers its prompt and reply, from `start` on: `{"start": 0, "shape": [tokens, layers, k], "data": …}`,
where data is base64 of little-endian integers (`"dtype"`: uint8, int16 or int32) or nested lists; nested lists alone
start at 0. What engines leave out, they may: tokens whose cache was reused (`start`), and the last one, which nothing
was computed for. Trainers route those freely (R3, arXiv 2510.11370).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verifiers.errors import EvidenceError
from verifiers.train.rows import Row

DTYPES = {"uint8": "<u1", "int16": "<i2", "int32": "<i4"}


def encode_routes(experts: NDArray[Any], start: int = 0) -> dict[str, Any]:
    """The report of one turn, from experts [tokens, layers, k]; JSON data."""
    dtype = "uint8" if experts.size == 0 or int(experts.max()) < 256 else "int16"
    data = base64.b64encode(np.ascontiguousarray(experts, DTYPES[dtype]).tobytes()).decode()
    return {"start": start, "shape": list(experts.shape), "dtype": dtype, "data": data}


def routes_of(row: Row) -> NDArray[np.int16] | None:
    """Experts int16 [T, layers, k] of a row, -1 where no turn reported any; None if none did.

    Each turn's prompt and reply begin the row, so reports are laid over each other; the first one that covers a token
    is of when it was computed. EvidenceError for a report that is no such thing.
    """
    reports = [decode_routes(report) for report in row.routed_experts or () if report is not None]
    if not reports:
        return None
    length = len(row.tokens)
    shape = reports[0][1].shape[1:]
    routes = np.full((length, *shape), -1, np.int16)
    for start, experts in reversed(reports):
        if experts.shape[1:] != shape or start < 0 or start + len(experts) > length:
            raise EvidenceError(
                f"experts of rollout {row.rollout_id or '(unnamed)'} are {experts.shape} from token {start} on, "
                f"beside {shape} and {length} tokens"
            )
        routes[start : start + len(experts)] = experts
    return routes


def decode_routes(report: Any) -> tuple[int, NDArray[np.int16]]:
    """Where a turn's report starts, and its experts [tokens, layers, k]."""
    try:
        if not isinstance(report, Mapping):
            experts, start = np.asarray(report, np.int16), 0
        elif isinstance(report["data"], str):
            raw = np.frombuffer(base64.b64decode(report["data"], validate=True), DTYPES[report["dtype"]])
            experts, start = raw.astype(np.int16).reshape(report["shape"]), int(report.get("start", 0))
        else:
            experts, start = np.asarray(report["data"], np.int16), int(report.get("start", 0))
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise EvidenceError(f"a report of routed experts cannot be read: {error}") from error
    if experts.ndim != 3:
        raise EvidenceError(f"a report of routed experts has the shape {experts.shape}, not [tokens, layers, k]")
    return start, experts
