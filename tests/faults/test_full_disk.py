"""A disk that takes nothing more leaves no half-written file beside the one that was to be replaced."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from verifiers.envs.origin import _replace
from verifiers.errors import StoreError
from verifiers.evals.store import RESULTS, RunStore
from verifiers.hub.credentials import keep_token
from verifiers.train.rows import Row
from verifiers.train.run_folder import RunFolder
from verifiers.train.sft_export import export_sft
from verifiers.train.storage import write_rows

LONG = "x" * 200_000


@contextmanager
def full() -> Iterator[None]:
    """No file grows beyond 20 kB: writing more is an OSError, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save_metadata(folder: Path) -> None:
    """Of a run of vf-eval."""
    with closing(RunStore.create(folder / "new-run")) as store:
        store.write_metadata({"about": LONG})


def save_rows(path: Path) -> None:
    """A row that the limit does not hold, however it is packed."""
    count = 20_000
    noise = [-(number * 7919 % 10_007) / 10_007 for number in range(count)]
    row = Row(list(range(count)), [True] * count, noise, [0] * count, 1.0)
    write_rows(path, [row])


WRITERS: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "conversations": (lambda folder: export_sft([folder / "run"], folder / "kept.jsonl"), StoreError),
    "metadata": (save_metadata, StoreError),
    "record": (lambda folder: RunFolder(folder).put("kept", LONG), StoreError),
    "rows": (lambda folder: save_rows(folder / "kept.jsonl"), StoreError),
    "parquet": (lambda folder: save_rows(folder / "kept.parquet"), StoreError),
    "tokens": (lambda folder: keep_token("http://hub.example", LONG), OSError),
    "origin": (lambda folder: _replace(folder / "kept", LONG), OSError),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str) -> None:
    """Neither in place of the file nor beside it; there may be tokens in it."""
    monkeypatch.setenv("VF_CREDENTIALS", str(tmp_path / "kept.toml"))
    (tmp_path / "run").mkdir()
    asked = [{"role": "user", "content": LONG}]
    record = {"example_id": 0, "prompt": asked, "completion": [{"role": "assistant", "content": "a"}], "reward": 1.0}
    (tmp_path / "run" / RESULTS).write_text(json.dumps(record) + "\n")
    write, error = WRITERS[writer]
    before = set(tmp_path.rglob("*"))
    with full(), pytest.raises(error):
        write(tmp_path)
    left = [path for path in set(tmp_path.rglob("*")) - before if path.is_file() and path.stat().st_size]
    assert left == []
