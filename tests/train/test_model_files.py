"""The files of a model are known by their bits, not by their names and sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train.test_run_folder import ENVIRONMENT, checked, config
from verifiers.errors import ResumeError
from verifiers.train import model_files as module
from verifiers.train.model_files import model_files
from verifiers.train.run_folder import provenance


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Weights and a configuration."""
    (tmp_path / "model.safetensors").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def test_weights_of_the_same_shape_are_another_model(folder: Path) -> None:
    """Files of the very same sizes: the run does not go on from them, and says which they are."""
    saved = provenance(str(folder), [ENVIRONMENT])
    assert checked(config(), provenance(str(folder), [ENVIRONMENT]), saved) == []
    (folder / "model.safetensors").write_bytes(bytes(range(255, -1, -1)) * 40)
    other = provenance(str(folder), [ENVIRONMENT])
    assert other["model"]["files"]["model.safetensors"]["bytes"] == 10240
    with pytest.raises(ResumeError, match=r"are others \(model\.safetensors\)"):
        checked(config(), other, saved)


LARGE = 100_000
PLACES = {
    "header": lambda data: b"x" + data[1:],
    "end": lambda data: data[:-1] + b"x",
    "all over": lambda data: bytes(byte ^ 1 for byte in data),
    "one matrix": lambda data: data[:50_000] + bytes(byte ^ 1 for byte in data[50_000:51_000]) + data[51_000:],
    "longer": lambda data: data + b"x",
}


@pytest.mark.parametrize("change", PLACES.values(), ids=list(PLACES))
def test_large_files_are_known_by_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes]
) -> None:
    """Of the beginning, of the end, and of what is between, closer to each other than a matrix is large."""
    monkeypatch.setattr(module, "WHOLE", LARGE // 2)
    monkeypatch.setattr(module, "SAMPLE", 16)
    file = tmp_path / "model.gguf"
    data = bytes(number % 251 for number in range(LARGE))
    file.write_bytes(data)
    before = model_files(str(file))
    assert before == model_files(str(file)) and list(before["model.gguf"]) == ["bytes", "sampled_sha256"]
    file.write_bytes(change(data))
    assert model_files(str(file)) != before


def test_a_name_on_the_hub_is_what_is_in_the_cache(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name stays, and stands for another revision one day."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    cached = tmp_path / "hub" / "models--owner--name"
    found = []
    for revision in ("a" * 40, "b" * 40):
        snapshot = cached / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text("{}")
        (snapshot / "model.safetensors").write_bytes(revision.encode())
        (cached / "refs").mkdir(exist_ok=True)
        (cached / "refs" / "main").write_text(revision)
        found.append(model_files("owner/name"))
    assert [list(one) for one in found] == [["config.json", "model.safetensors"]] * 2 and found[0] != found[1]
    assert model_files("owner/absent") == model_files("no such: name") == {}
