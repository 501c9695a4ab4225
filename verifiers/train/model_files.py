"""Which files a model is made of, by their bits, so that a run is not continued from another one's weights.

    model_files("models/tiny")       # {"model.safetensors": {"bytes": 361104, "sha256": "…"}, "config.json": …}
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

WHOLE = 64 * 2**20
"""Bytes of a file that is hashed as a whole, at most."""

SAMPLES, SAMPLE = 256, 16 * 1024
"""Of a larger one: how many pieces, and bytes of each."""


def model_files(model: str) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of each file of a model's folder, of one file, or of what a name on the Hugging Face Hub stands
    for in the cache here. Empty for what is not here.

    Hashing a large model whole would take minutes. Of a file of more than `WHOLE` bytes, `sampled_sha256` is the hash
    of `SAMPLES` pieces: its beginning, where safetensors and GGUF have their headers, its end, and others evenly
    between them. What changes a matrix all over, as training and merging do, changes them; a change of a few bytes
    between them is not seen.
    """
    path = Path(model)
    if not path.exists():
        path = cached(model) or path
    files = [path] if path.is_file() else sorted(path.glob("*")) if path.is_dir() else []
    return {file.name: _described(file) for file in files if file.is_file()}


def _described(file: Path) -> dict[str, Any]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        if size <= WHOLE:
            return {"bytes": size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
        digest = hashlib.sha256()
        for number in range(SAMPLES):
            stream.seek((size - SAMPLE) * number // (SAMPLES - 1))
            digest.update(stream.read(SAMPLE))
    return {"bytes": size, "sampled_sha256": digest.hexdigest()}


def cached(name: str) -> Path | None:
    """The folder of the files that a name on the Hugging Face Hub was last loaded from."""
    from huggingface_hub import try_to_load_from_cache  # comes with datasets
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None
