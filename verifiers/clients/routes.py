"""Routes of experts on their way through JSON: the array as base64 with its shape.

    value = pack_routes(array)       # {"shape": [T, layers, k], "dtype": "int16", "data": "…"}
    array = read_routes(value)       # numpy again; arrays and nested lists pass too
"""

from __future__ import annotations

import base64
from typing import Any

from verifiers.errors import EvidenceError


def pack_routes(routes: Any) -> dict[str, Any] | None:
    """An array of int16 [T, layers, k] as JSON data; None stays None."""
    if routes is None:
        return None
    data = base64.b64encode(routes.astype("<i2").tobytes()).decode("ascii")
    return {"shape": list(routes.shape), "dtype": "int16", "data": data}


def read_routes(value: Any) -> Any:
    """The array of int16 [T, layers, k] that an engine reported for a turn. EvidenceError if it is none."""
    import numpy as np

    try:
        if not isinstance(value, dict):
            return np.asarray(value, np.int16)
        raw = np.frombuffer(base64.b64decode(value["data"], validate=True), "<i2")
        return raw.reshape(value["shape"]).astype(np.int16)
    except (KeyError, TypeError, ValueError) as error:
        raise EvidenceError(f"these are no routes of experts: {error}", hint="pack_routes writes them.") from error
