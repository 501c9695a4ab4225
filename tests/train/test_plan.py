"""What a run would do, before it does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from verifiers.errors import ConfigError
from verifiers.train.plan import on_hub


@pytest.mark.parametrize("path", ["sft/model", "no", "a/b/c", "./m", "../m", "/no/m", "~/m", "m.gguf", "owner/m.gguf"])
def test_what_is_meant_to_be_here_is_not_looked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A folder that a stage before should have made, a path, a file: an error at once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sft").mkdir()
    with pytest.raises(ConfigError, match="there is no model"):
        on_hub(path)


def test_a_name_is_one_on_the_hub_unless_a_folder_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OWNER/NAME."""
    monkeypatch.chdir(tmp_path)
    assert on_hub("Qwen/Qwen3-4B")
    (tmp_path / "Qwen" / "Qwen3-4B").mkdir(parents=True)
    assert not on_hub("Qwen/Qwen3-4B")
