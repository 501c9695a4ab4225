"""Which experts a mixture of experts sent each token of a row to, as its turns report it. numpy only.

A turn's report (`verifiers.clients.routes`) covers its prompt and reply, from `start` on if it says so. What engines
leave out, they may: tokens whose cache was reused (`start`), and the last one, for which nothing was computed. Trainers
route those freely (R3, arXiv 2510.11370).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from verifiers.clients.routes import read_routes
from verifiers.errors import EvidenceError
from verifiers.train.rows import Row


def routes_of(row: Row) -> NDArray[np.int16] | None:
    """Experts int16 [T, layers, k] of a row, -1 where no turn reported any; None if none did.

    Each turn's prompt and reply begin the row, so reports are laid over each other; the first one that covers a token
    is of when it was computed. EvidenceError for a report that is no such thing.
    """
    reports = [_read(report) for report in row.routed_experts or () if report is not None]
    if not reports:
        return None
    length = len(row.tokens)
    shape = reports[0][1].shape[1:]
    routes = np.full((length, *shape), -1, np.int16)
    for start, experts in reversed(reports):
        if experts.ndim != 3 or experts.shape[1:] != shape or start < 0 or start + len(experts) > length:
            raise EvidenceError(
                f"experts of rollout {row.rollout_id or '(unnamed)'} are {experts.shape} from token {start} on, "
                f"not [tokens, layers, k] within {length} tokens"
            )
        routes[start : start + len(experts)] = experts
    return routes


def _read(report: Any) -> tuple[int, NDArray[np.int16]]:
    start = report.get("start", 0) if isinstance(report, dict) else 0
    return int(start), read_routes(report)
