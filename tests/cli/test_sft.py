"""`vf-sft`: what it takes, what it leaves in its folder, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from verifiers.cli.sft import run
from verifiers.errors import ExitCode

SETTINGS = [
    "model.path=model", "data.files=data.jsonl", "output=run", "sft.rows_per_batch=4", "sft.epochs=2",
    "trainer.lr=3e-3", "trainer.warmup_steps=0", "data.validation_share=0.3", "checkpoint.every=2",
]  # fmt: skip


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny model and twelve conversations, one of which is empty."""
    pytest.importorskip("torch")
    from tests.support.tiny_model import save_tiny

    save_tiny(tmp_path / "model")
    talks = [
        [{"role": "user", "content": f"{n}"}, {"role": "assistant", "content": "x" * (4 + n % 3)}] for n in range(12)
    ]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_mistakes_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing to do, nothing to learn from, data that are not there or all left
    out, an unknown setting, a package that is missing."""
    (tmp_path / "d.jsonl").write_text('{"messages": []}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", None)
    for line, told in (
        ([], "nothing says what to train"),
        (["model.path=owner/m"], "data.files is empty"),
        (["model.path=owner/m", "data.files=d.jsonl", "sft.epoch=2"], "'epochs'"),
        (["model.path=owner/m", "data.files=absent.jsonl"], "absent.jsonl"),
        (["model.path=owner/m", "data.files=d.jsonl", "data.validation=absent.jsonl", "--dry-run"], "absent.jsonl"),
        (["model.path=owner/m", "data.files=d.jsonl", "data.min_reward=2"], "left out: 1 (reward)"),
        (["model.path=owner/m", "data.files=d.jsonl", "log.wandb=p"], "pip install wandb"),
    ):
        assert run(line) != ExitCode.OK
        assert told in capsys.readouterr().err


def test_dry_run_prints_every_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As TOML."""
    data = tmp_path / "data.jsonl"
    data.write_text('{"messages": []}\n')
    assert run(["model.path=owner/m", f"data.files={data}", "--dry-run", "--trainer.lr", "1e-4"]) == ExitCode.OK
    shown = tomllib.loads(capsys.readouterr().out)
    assert shown["trainer"]["lr"] == 1e-4 and shown["data"]["files"] == [str(data)]


@pytest.mark.train
def test_conversations_are_imitated(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The loss falls, on what was held out too; the folder holds everything, and the run goes on with more epochs."""
    assert run(SETTINGS) == ExitCode.OK
    shown = capsys.readouterr()
    assert "12 conversations" in shown.err and "model: run/model" in shown.out
    steps = [row for row in lines(workplace / "run" / "metrics.jsonl") if "sft/epoch" in row]
    assert [row["step"] for row in steps] == list(range(1, len(steps) + 1))
    losses = [row["loss/cross_entropy"] for row in steps]
    validated = [row["validation/cross_entropy"] for row in lines(workplace / "run" / "metrics.jsonl")
                 if "validation/cross_entropy" in row]  # fmt: skip
    assert losses[-1] < losses[0] and validated[-1] < validated[0]
    record = json.loads((workplace / "run" / "run.json").read_text())
    assert record["data"][0]["digest"].startswith("sha256:") and record["sessions"][0]["how"] == "finished"
    assert (workplace / "run" / "model" / "config.json").is_file()
    assert (workplace / "run" / "curve.svg").read_text().startswith("<svg")
    assert run(["--resume", "run", "sft.epochs=3"]) == ExitCode.OK
    more = [row["step"] for row in lines(workplace / "run" / "metrics.jsonl") if "sft/epoch" in row]
    assert more == list(range(1, len(steps) * 3 // 2 + 1))


@pytest.mark.train
@pytest.mark.slow
def test_an_interrupted_run_goes_on(workplace: Path) -> None:
    """Ctrl-C ends it after a step, with a checkpoint and the command that continues."""
    line = [sys.executable, "-m", "verifiers.cli.sft", *SETTINGS, "sft.epochs=100000"]
    process = subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + 90
    while not (path := workplace / "run" / "metrics.jsonl").exists() or path.read_bytes().count(b"\n") < 3:
        assert time.monotonic() < end, "no step was made"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=90)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "continue with: vf-sft --resume run" in shown
    record = json.loads((workplace / "run" / "run.json").read_text())
    done = record["sessions"][0]["step"]
    assert record["sessions"][0]["how"] == "stopped"
    assert run(["--resume", "run", f"sft.steps={done + 2}"]) == ExitCode.OK
    steps = [row["step"] for row in lines(path) if "sft/epoch" in row]
    assert steps == list(range(1, done + 3))


def seen(pattern: str) -> Callable[[Path], bool]:
    """Whether the run's folder holds such a path. It may be gone while one looks."""

    def look(folder: Path) -> bool:
        with suppress(FileNotFoundError):
            return any(folder.glob(pattern))
        return False

    return look


def told(steps: int) -> Callable[[Path], bool]:
    """Whether its figures hold so many lines."""
    return lambda folder: (folder / "metrics.jsonl").exists() and len(lines_so_far(folder)) >= steps


def lines_so_far(folder: Path) -> list[bytes]:
    """Whole lines of its figures."""
    return (folder / "metrics.jsonl").read_bytes().splitlines()


MOMENTS = {
    "loading": seen("config.resolved.toml"),
    "a few steps": told(4),
    "a checkpoint": seen("checkpoints/.*.partial/learner/*"),
    "the model": seen(".model.new/*"),
}
"""When the run is killed, one after the other; each time it has gone on from where it was killed before."""


@pytest.mark.train
@pytest.mark.slow
def test_killed_at_any_moment_it_ends_as_an_unbroken_run(workplace: Path) -> None:
    """The same bits of the model and the same loss of every step, each told once."""
    settings = [*SETTINGS, "sft.epochs=6", "model.lora.rank=4", "model.lora.dropout=0.2"]
    assert run([*settings, "output=whole"]) == ExitCode.OK
    folder, killed = workplace / "run", []
    for name, moment in MOMENTS.items():
        asked = ["--resume", "run"] if killed else settings
        line, silent = [sys.executable, "-m", "verifiers.cli.sft", *asked], subprocess.DEVNULL
        with subprocess.Popen(line, stdout=silent, stderr=silent) as process:
            while process.poll() is None and not moment(folder):
                time.sleep(0.0005)
            process.kill()
        if process.returncode == -signal.SIGKILL:
            killed.append(name)
    assert len(killed) >= 3
    assert run(["--resume", "run"]) == ExitCode.OK
    whole = workplace / "whole"
    weights = "model/adapter_model.safetensors"
    assert (folder / weights).read_bytes() == (whole / weights).read_bytes()
    figures = ("step", "loss/cross_entropy", "trainer/grad_norm", "validation/cross_entropy")
    rows = [[[row.get(name) for name in figures] for row in lines(one / "metrics.jsonl")] for one in (whole, folder)]
    assert rows[0] == rows[1]
