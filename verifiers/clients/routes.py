"""Routes of experts on their way through JSON: the array as base64 with its shape.

    value = pack_routes(array)       # {"shape": [T, layers, k], "dtype": "int16", "data": "…"}
    array = read_routes(value)       # numpy again; arrays, nested lists and what vLLM sends pass too
"""

from __future__ import annotations

import base64
import io
import math
from typing import Any

from verifiers.errors import EvidenceError


def pack_routes(routes: Any) -> dict[str, Any] | None:
    """An array of int16 [T, layers, k] as JSON data; None stays None."""
    if routes is None:
        return None
    data = base64.b64encode(routes.astype("<i2").tobytes()).decode("ascii")
    return {"shape": list(routes.shape), "dtype": "int16", "data": data}


def check_routes(value: Any, tokens: int) -> None:
    """Raise EvidenceError unless this reports on a turn of so many tokens; its megabytes stay packed."""
    packed = isinstance(value, dict)
    shape = value.get("shape") if packed else read_routes(value).shape
    start = value.get("start", 0) if packed else 0
    numbers = [start, *shape] if isinstance(shape, list | tuple) and len(shape) == 3 else []
    if not numbers or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise EvidenceError(f"the shape of its routes of experts is {shape} from token {start} on")
    if start + shape[0] > tokens:
        raise EvidenceError(f"it has routes of experts up to token {start + shape[0]} of {tokens}")
    if packed and len(value.get("data") or "") != -(-2 * math.prod(shape) // 3) * 4:
        raise EvidenceError("its routes of experts are cut short")


def read_routes(value: Any) -> Any:
    """The array of int16 [T, layers, k] that an engine reported for a turn. EvidenceError if it is none."""
    import numpy as np

    try:
        if isinstance(value, str):  # vLLM: an .npy file as base64
            file = io.BytesIO(base64.b64decode(value, validate=True))
            return np.load(file, allow_pickle=False).astype(np.int16)
        if not isinstance(value, dict):
            return np.asarray(value, np.int16)
        raw = np.frombuffer(base64.b64decode(value["data"], validate=True), "<i2")
        return raw.reshape(value["shape"]).astype(np.int16)
    except (KeyError, TypeError, ValueError, EOFError) as error:
        raise EvidenceError(f"these are no routes of experts: {error}", hint="pack_routes writes them.") from error
