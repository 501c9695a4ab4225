"""A run's folder is one run's, names what its figures depend on, and refuses to go on as another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verifiers.errors import ResumeError, StoreError
from verifiers.train.config import TrainConfig
from verifiers.train.config_files import load_config
from verifiers.train.run_folder import CHECKPOINTS, CONFIG, METRICS, RunFolder, check_same, provenance

ENVIRONMENT = {"name": "owner/sums", "version": "0.1.0", "digest": "sha256:1", "tasks": 4}


def config(*settings: str) -> TrainConfig:
    return load_config([], ["model.path=m", "env=sums", *settings])


def checked(asked: TrainConfig, begun: dict[str, Any], saved: dict[str, Any], **more: Any) -> list[str]:
    return check_same(saved, begun, asked=asked, before=config(), **{"force": False, **more})


def test_a_folder_holds_one_run(tmp_path: Path) -> None:
    """A second one is refused with how to continue; what is there can be read back."""
    folder = RunFolder.create(tmp_path / "run")
    folder.write(config(), provenance("m", [ENVIRONMENT], sessions=[{"step": 1}]))
    with pytest.raises(StoreError, match="already holds a run") as raised:
        RunFolder.create(tmp_path / "run")
    assert f"--resume {tmp_path / 'run'}" in raised.value.hint
    opened = RunFolder.open(tmp_path / "run")
    assert opened.record["environments"] == [ENVIRONMENT] and "verifiers" in opened.record["packages"]
    assert load_config([opened / CONFIG]) == config()


def test_a_run_that_ended_before_its_first_step_takes_no_folder(tmp_path: Path) -> None:
    """What was wrong is corrected, and the same command is given again; or it was killed. What made a step stays, also
    if a kill left no other word of it than a checkpoint, or a line of figures."""
    folder = RunFolder.create(tmp_path / "run")
    record = provenance("m", [ENVIRONMENT])
    killed = {"began": "…"}
    folder.write(config(), {**record, "sessions": [{"began": "…", "ended": "…", "step": 3}]})
    with pytest.raises(StoreError, match="already holds a run"):
        RunFolder.create(tmp_path / "run")
    folder.write(config(), {**record, "sessions": [killed]})
    (folder / METRICS).write_text('{"step": 0}\n{"step": 1}\n')
    with pytest.raises(StoreError, match="already holds a run"):
        RunFolder.create(tmp_path / "run")
    (folder / METRICS).write_text('{"step": 0, "eval/sums/reward": 0.5}\n')
    (folder / CHECKPOINTS / "step-000001").mkdir(parents=True)
    with pytest.raises(StoreError, match="already holds a run"):
        RunFolder.create(tmp_path / "run")
    (folder / CHECKPOINTS / "step-000001").rename(folder / CHECKPOINTS / ".step-000001.partial")
    for session in (killed, {"began": "…", "ended": "…", "step": 0}):
        folder.write(config(), {**record, "sessions": [session]})
        (folder / METRICS).write_text('{"step": 0}\n')
        with RunFolder.create(tmp_path / "run").held(new=config("loop.steps=7")):
            assert not (folder / METRICS).exists()
            second = RunFolder.create(tmp_path / "run")
            with pytest.raises(StoreError, match="another process"), second.held(new=config()):
                pass
        assert load_config([RunFolder.open(tmp_path / "run") / CONFIG]).loop.steps == 7, "before anything is loaded"


def test_what_is_no_run_is_not_continued(tmp_path: Path) -> None:
    """With what to give instead."""
    with pytest.raises(ResumeError, match="no run to continue"):
        RunFolder.open(tmp_path)


def test_the_same_run_may_be_asked_for_with_other_figures(tmp_path: Path) -> None:
    """More steps and another learning rate are told, and continue."""
    record = provenance("m", [ENVIRONMENT])
    told = checked(config("loop.steps=200", "output=elsewhere"), record, record)
    assert told == ["loop.steps: 100 → 200"]


def test_other_bits_are_another_run(tmp_path: Path) -> None:
    """Of the environment, of the model, or other settings of either, unless forced."""
    (tmp_path / "config.json").write_text("{}")
    saved = provenance("m", [ENVIRONMENT])
    other_bits = provenance("m", [{**ENVIRONMENT, "digest": "sha256:2"}])
    with pytest.raises(ResumeError, match=r"owner/sums 0\.1\.0 sha256:1 is now 0\.1\.0 sha256:2"):
        checked(config(), other_bits, saved)
    with pytest.raises(ResumeError, match=r"the model's files in .* are others \(config\.json\)"):
        checked(config(), provenance(str(tmp_path), [ENVIRONMENT]), saved)
    with pytest.raises(ResumeError, match=r"model\.lora"):
        checked(config("model.lora.rank=4"), saved, saved)
    told = checked(config("model.lora.rank=4"), other_bits, saved, force=True)
    assert told[0] == "owner/sums 0.1.0 sha256:1 is now 0.1.0 sha256:2" and "model.lora" in told[1]


def test_two_processes_do_not_work_on_one_run(tmp_path: Path) -> None:
    """The second is refused before it changes anything; so is one that found the folder empty, a moment too late."""
    folder, late = RunFolder.create(tmp_path), RunFolder.create(tmp_path)
    with folder.held(new=config()):
        with pytest.raises(StoreError, match="another process"), late.held():
            pass
        folder.write(config(), provenance("m", [ENVIRONMENT], sessions=[{"step": 1}]))
    with pytest.raises(StoreError, match="already holds a run"), late.held(new=config()):
        pass
    with late.held():
        pass


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"began": 1}'])
def test_a_record_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    """With what to do; nothing of the run is changed."""
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(StoreError, match=r"can not read .*run\.json") as raised:
        _ = RunFolder(tmp_path).record
    assert raised.value.hint
