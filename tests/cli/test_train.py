"""`vf-train`: what its line means, what it says before it trains, and how it ends."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.toy_environments import SOUND, Environments
from verifiers.cli.train import run
from verifiers.cli.training_line import HERE, settings_of, with_bare_resume
from verifiers.errors import ExitCode
from verifiers.train.config_files import load_config


@pytest.fixture
def environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environments:
    """A folder `environments` below the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "environments").mkdir()
    return Environments(tmp_path / "environments")


def test_dotted_flags_are_settings() -> None:
    """With `=`, with a value behind, or alone for true; the rest of the line stays in order."""
    line = ["a.toml", "--trainer.lr", "1e-5", "-v", "--trainer.packing", "--loop.steps=3", "--json", "b.toml"]
    settings, rest = settings_of(line)
    assert settings == ["trainer.lr=1e-5", "trainer.packing=true", "loop.steps=3"]
    assert rest == ["a.toml", "-v", "--json", "b.toml"]


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        (["--resume"], ["--resume", HERE]),
        (["--resume", "x.toml"], ["--resume", HERE, "x.toml"]),
        (["--resume", "outputs/one", "a.b=1"], ["--resume", "outputs/one", "a.b=1"]),
        (["-R", "--json"], ["-R", HERE, "--json"]),
    ],
    ids=["alone", "before-file", "folder", "before-flag"],
)
def test_resume_needs_no_folder(line: list[str], whole: list[str]) -> None:
    """A file or a setting behind it is no folder."""
    assert with_bare_resume(line) == whole


def test_dry_run_prints_a_file_that_gives_the_same(
    environments: Environments, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """stdout is TOML: every setting, and in comments what would be run, with the environment's digest."""
    name = environments.write(SOUND)
    settings = [f"env={name}", "model.path=owner/m", "loop.steps=7"]
    assert run([*settings, "--dry-run", "--trainer.lr", "1e-3"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert f"# environment: {name} " in shown and "tree:" in shown
    assert "# 7 steps of 8 groups × 8 rollouts = 448 rollouts" in shown
    (tmp_path / "again.toml").write_text(shown)
    assert load_config(["again.toml"]) == load_config([], [*settings, "trainer.lr=1e-3"])
    assert tomllib.loads(shown)["trainer"]["lr"] == 1e-3


def test_dry_run_as_json(environments: Environments, capsys: pytest.CaptureFixture[str]) -> None:
    """One event with the plan and every setting."""
    name = environments.write(SOUND)
    assert run([f"env={name}", "model.path=owner/m", "--dry-run", "--json"]) == ExitCode.OK
    [event] = map(json.loads, capsys.readouterr().out.splitlines())
    assert event["event"] == "plan" and event["config"]["env"][0]["id"] == name
    assert event["environments"][0]["tasks"] > 0 and event["rollouts_per_batch"] == 64


def test_dry_run_looks_at_what_is_evaluated_on(environments: Environments, capsys: pytest.CaptureFixture[str]) -> None:
    """Environments that evaluations alone name are found, loaded and told with the tasks that would be played."""
    trained, other = environments.write(SOUND), environments.write(SOUND)
    line = [f"env={trained}", "model.path=owner/m", f"eval.environments={other}", "--dry-run"]
    assert run([*line, "eval.num_examples=1"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert f"# environment: {trained} " in shown
    assert re.search(rf"# evaluated on: {other} .*tree:\w+, 1 tasks", shown)
    assert run([*line, "eval.environments=nowhere"]) != ExitCode.OK
    assert "no environment 'nowhere'" in capsys.readouterr().err


@pytest.mark.parametrize("dry", [True, False], ids=["dry", "real"])
@pytest.mark.parametrize(
    ("setting", "package", "command"),
    [
        ("model.lora.rank=4", "peft", "pip install 'verifiers[train]>=1'"),
        ("model.path=m.gguf", "gguf", "pip install 'verifiers[train]>=1'"),
        ("log.prometheus_port=0", "prometheus_client", "pip install 'verifiers[train]>=1'"),
        ("log.tensorboard=true", "tensorboard", "pip install tensorboard"),
        ("log.wandb=project", "wandb", "pip install wandb"),
        ("env.0.ray=auto", "ray", "pip install 'verifiers[ray]>=1'"),
    ],
)
def test_a_package_that_is_missing_is_told_before_anything_is_loaded(
    environments: Environments, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    setting: str, package: str, command: str, dry: bool,
) -> None:  # fmt: skip
    """By the setting that asks for it, with the command that installs it, in a dry run as in a real one."""
    monkeypatch.setitem(sys.modules, package, None)
    line = ["model.path=owner/m", f"env={environments.write(SOUND)}", setting, *(["--dry-run"] if dry else [])]
    assert run(line) != ExitCode.OK
    shown = capsys.readouterr()
    assert setting.partition("=")[0].removesuffix(".rank") in shown.err and command in shown.err and not shown.out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ([], "nothing says what to train"),
        (["absent.toml"], "can not read absent.toml"),
        (["trainer.lr"], "'trainer.lr' is neither a file nor a setting"),
        (["model.path=./absent", "env=e"], "there is no model './absent'"),
        (["model.path=owner/m", "env=nowhere", "--dry-run"], "no environment 'nowhere'"),
        (["model.path=owner/m", "env=e", "--trainer.lrr", "1"], "Did you mean 'lr'"),
        (["--dryrun"], "--dry-run"),
    ],
    ids=["nothing", "file", "value", "model", "environment", "setting", "flag"],
)
def test_mistakes_are_told_before_anything_is_loaded(
    environments: Environments, capsys: pytest.CaptureFixture[str], line: list[str], told: str
) -> None:
    """With a hint, and an exit code that is no success."""
    assert run(line) != ExitCode.OK
    shown = capsys.readouterr()
    assert told in shown.err and "hint:" in shown.err and not shown.out


# --- training -------------------------------------------------------------------------------------------------

DIGITS = """
import verifiers as vf


def load_environment():
    def small(completion):
        # Dense, so that few steps on random weights show a rise: bytes below 64 are a quarter at first.
        text = (completion[-1]["content"] or "").encode("utf-8", "replace")
        return sum(byte < 64 for byte in text) / 8

    rows = [{"question": f"{n}", "answer": ""} for n in range(8)]
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=rows[:2], rubric=vf.Rubric(funcs=[small]))
"""

TINY = [
    "model.path=model", "env=digits", "output=run", "sampling.max_tokens=8", "advantage.overlong=keep",
    "sampler.max_context=128", "trainer.tokens_per_microbatch=2048", "trainer.lr=3e-3", "loop.groups_per_batch=2",
    "loop.max_lag=1", "eval.every=4", "eval.num_examples=2", "checkpoint.every=2",
]  # fmt: skip


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an environment and a model of 90,000 parameters."""
    pytest.importorskip("torch")
    from tests.support.tiny_model import save_tiny

    folder = tmp_path / "environments" / "digits"
    folder.mkdir(parents=True)
    (folder / "digits.py").write_text(DIGITS)
    (folder / "pyproject.toml").write_text('[project]\nname = "digits"\nversion = "0.1.0"\n')
    save_tiny(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.train
def test_a_run_trains_and_leaves_everything_in_its_folder(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every step and evaluation in the metrics, checkpoints, rows that name the environment's bits, a model that
    transformers loads, and a picture; the same folder is not used twice, and goes on from its last checkpoint."""
    assert run([*TINY, "loop.steps=4", "log.save_rows=true", "--json"]) == ExitCode.OK
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events if event["event"] != "step"] == ["start", "finished"]
    folder = workplace / "run"
    steps = [row for row in lines(folder / "metrics.jsonl") if "batch/groups" in row]
    assert [(row["step"], row["version"]) for row in steps] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert {row["step"] for row in lines(folder / "metrics.jsonl") if "eval/digits/reward" in row} == {0, 4}
    assert max(row["lag/max"] for row in steps) <= 1
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-000002", "step-000004"]
    row = lines(folder / "rows" / "v00000004.jsonl")[0]
    record = json.loads((folder / "run.json").read_text())
    assert row["env"]["digest"] == record["environments"][0]["digest"] and row["env"]["version"] == "0.1.0"
    assert record["sessions"][0]["how"] == "finished"
    assert (folder / "curve.svg").read_text().startswith("<svg")
    assert load_config([folder / "config.resolved.toml"]).loop.steps == 4

    from transformers import AutoModelForCausalLM

    before, after = (AutoModelForCausalLM.from_pretrained(workplace / one) for one in ("model", "run/model"))
    assert any((a != b).any() for a, b in zip(before.parameters(), after.parameters(), strict=True))

    assert run([*TINY, "loop.steps=6"]) == ExitCode.FAILED
    assert "already holds a run" in capsys.readouterr().err
    assert run(["--resume", "run", "loop.steps=6", "env.0.args.level=2"]) == ExitCode.FAILED
    assert "env: " in capsys.readouterr().err
    assert run(["--resume", "run", "loop.steps=6"]) == ExitCode.OK
    assert "other than before: loop.steps: 4 → 6" in capsys.readouterr().err
    assert json.loads((folder / "run.json").read_text())["id"] == record["id"] != ""
    again = [row["step"] for row in lines(folder / "metrics.jsonl") if "batch/groups" in row]
    assert again == [1, 2, 3, 4, 5, 6]


def test_a_key_that_is_missing_is_told_before_anything_is_loaded(
    environments: Environments, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its variable; a dry run, on a machine that is not the fleet's, needs none."""
    fleet = ["sampler.kind=vllm", "sampler.urls=http://127.0.0.1:9", "sampler.api_key_var=FLEET_KEY"]
    settings = ["model.path=owner/m", f"env={environments.write(SOUND)}", *fleet]
    assert run([*settings, "--dry-run"]) == ExitCode.OK
    capsys.readouterr()
    assert run(settings) == ExitCode.DENIED
    assert "FLEET_KEY" in capsys.readouterr().err


@pytest.mark.train
def test_a_run_that_learns_nothing_says_why(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, what became of the groups, and how the run ended in its record."""
    folder = workplace / "environments" / "constant"
    folder.mkdir()
    (folder / "constant.py").write_text(DIGITS.replace("/ 8", "* 0"))
    assert run([*TINY, "env=constant", "eval=none", "loop.max_empty_batches=1"]) == ExitCode.FAILED
    assert "2 no_signal" in capsys.readouterr().err
    assert json.loads((workplace / "run" / "run.json").read_text())["sessions"][0]["how"] == "NothingToTrainError"
    assert not (workplace / "run" / "model").exists()


@pytest.mark.train
@pytest.mark.parametrize("worth", [1, 0])
def test_a_run_that_has_nothing_left_to_train_on_leaves_its_model(
    workplace: Path, capsys: pytest.CaptureFixture[str], worth: int
) -> None:
    """From some rollout on all earn the same. Solved, that is the run's end, and is again if it goes on; at 0 it is an
    error that says where the model is, and what to do. The curve shows what was trained."""
    name = f"levels{worth}"
    folder = workplace / "environments" / name
    folder.mkdir()
    level = DIGITS.replace("    def small", "    played = []\n\n    def small").replace(
        "        return sum", f"        played.append(1)\n        return {worth} if len(played) > 60 else sum"
    )
    (folder / f"{name}.py").write_text(level)
    code = run([*TINY, f"env={name}", "eval=none", "loop.steps=70", "loop.max_empty_batches=2"])
    shown = capsys.readouterr()
    steps = [row["step"] for row in lines(workplace / "run" / "metrics.jsonl")]
    session = json.loads((workplace / "run" / "run.json").read_text())["sessions"][0]
    assert 0 < len(steps) < 70 and session["step"] == len(steps)
    assert (workplace / "run" / "model" / "model.safetensors").exists()
    assert (workplace / "run" / "curve.svg").read_text().startswith("<svg")
    if worth:
        assert code == ExitCode.OK and session["how"] == "finished"
        assert "nothing left to learn: in " in shown.out and "(mean reward 1.000)" in shown.out
        assert run(["--resume", "run"]) == ExitCode.OK
        assert "nothing left to learn" in capsys.readouterr().out
    else:
        assert code == ExitCode.FAILED and session["how"] == "NothingToTrainError"
        assert "what was trained before it is kept: run/model, run/curve.svg" in shown.err
        assert "gave nothing to train on" in shown.err and "hint: Every rollout of a group earns the same" in shown.err


@pytest.mark.train
def test_a_run_that_changes_nothing_is_no_success(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its gradients are not finite: each step says so, and the end that there is no new model."""
    assert run([*TINY, "eval=none", "loop.steps=2", "loss.entropy=1e308"]) == ExitCode.FAILED
    shown = capsys.readouterr().err
    assert "the gradient was not finite" in shown and "no step of the run changed the model" in shown
    assert not (workplace / "run" / "model").exists()


def started(workplace: Path, *settings: str) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    line = [sys.executable, "-m", "verifiers.cli.train", *TINY, *settings]
    return subprocess.Popen(line, cwd=workplace, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path, steps: int) -> None:
    """Until the metrics hold so many lines."""
    end = time.monotonic() + 90
    while not path.exists() or path.read_bytes().count(b"\n") < steps:
        assert time.monotonic() < end, "no step was made"
        time.sleep(0.05)


@pytest.mark.train
@pytest.mark.slow
def test_an_interrupted_run_goes_on(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C ends it after a step, with a checkpoint and the command that continues; no step is made twice."""
    process = started(workplace, "loop.steps=500", "checkpoint.every=200")
    wait_for(workplace / "run" / "metrics.jsonl", 3)
    process.send_signal(signal.SIGINT)
    _, shown = process.communicate(timeout=90)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "stopping after this step" in shown and "continue with: vf-train --resume run" in shown
    assert (workplace / "run" / "curve.svg").exists()
    record = json.loads((workplace / "run" / "run.json").read_text())
    done = record["sessions"][0]["step"]
    assert record["sessions"][0]["how"] == "stopped" and 0 < done < 500
    assert run(["--resume", "run", f"loop.steps={done + 2}"]) == ExitCode.OK
    steps = [row["step"] for row in lines(workplace / "run" / "metrics.jsonl") if "batch/groups" in row]
    assert steps == list(range(1, done + 3))
    assert json.loads((workplace / "run" / "run.json").read_text())["sessions"][1]["from_step"] == done
    capsys.readouterr()
    assert run(["--resume", "run"]) == ExitCode.OK
    assert "nothing left to train" in capsys.readouterr().err


@pytest.mark.train
@pytest.mark.slow
def test_a_killed_run_goes_on_from_its_checkpoint(workplace: Path) -> None:
    """What came after the checkpoint is made again, once."""
    process = started(workplace, "loop.steps=500", "checkpoint.every=3")
    wait_for(workplace / "run" / "metrics.jsonl", 6)
    process.kill()
    process.communicate(timeout=90)
    assert run(["--resume", "run", "loop.steps=500", "loop.steps=12"]) == ExitCode.OK
    steps = [row["step"] for row in lines(workplace / "run" / "metrics.jsonl") if "batch/groups" in row]
    assert steps == list(range(1, steps[-1] + 1)) and steps[-1] >= 12
    assert json.loads((workplace / "run" / "run.json").read_text())["sessions"][1]["from_step"] % 3 == 0


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.parametrize("seen", ["config.resolved.toml", "run.json"])
def test_a_run_that_was_killed_before_its_first_step_holds_no_folder(workplace: Path, seen: str) -> None:
    """While it loaded, or while its first rollouts were played: it can be continued, and begun anew."""
    folder = workplace / "environments" / "waits"
    folder.mkdir()
    wait = "\n        import os, time\n        while os.path.exists('wait'):\n            time.sleep(0.05)\n"
    (folder / "waits.py").write_text(re.sub(r"(    def \w+\(completion.*\):)\n", rf"\1{wait}", DIGITS, count=1))
    for arguments in (["--resume", "run"], [*TINY, "env=waits", "eval=none", "loop.steps=2"]):
        shutil.rmtree(workplace / "run", ignore_errors=True)
        (workplace / "wait").touch()
        process = started(workplace, "env=waits", "eval=none", "loop.steps=2")
        while not (workplace / "run" / seen).exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.communicate(timeout=90)
        (workplace / "wait").unlink()
        assert run(arguments) == ExitCode.OK
        assert [row["step"] for row in lines(workplace / "run" / "metrics.jsonl")] == [1, 2]


@pytest.mark.train
@pytest.mark.slow
def test_workers_play_and_several_processes_train(workplace: Path) -> None:
    """An environment in a worker reaches the policy over HTTP, with exact evidence; torchrun's others follow."""
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "verifiers.cli.train", *TINY]
    settings = ["loop.steps=2", "env.0.workers=1", "eval=none", "model.device=cpu"]
    done = subprocess.run([*line, *settings], cwd=workplace, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    steps = lines(workplace / "run" / "metrics.jsonl")
    assert [row["version"] for row in steps] == [1, 2]
    assert sum(row.get("outcomes/truncated", 0) + row.get("outcomes/ok", 0) for row in steps) >= 32
    assert not [name for row in steps for name in row if name.startswith("errors/")]
    assert done.stdout.count("model: run/model") == 1


def rank_of(process: int) -> int:
    """The rank that torchrun gave a process."""
    settings = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return next(int(one.removeprefix(b"RANK=")) for one in settings if one.startswith(b"RANK="))


def children_of(parent: int) -> list[int]:
    """Processes that it started and that run."""
    return [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


@pytest.mark.train
@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1], ids=["the-leader", "another"])
def test_when_one_of_several_processes_is_killed_all_end_and_say_why(
    workplace: Path, capsys: pytest.CaptureFixture[str], killed: int
) -> None:
    """Nobody waits for days, no disk is blamed, and one process alone goes on from the last checkpoint."""
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "verifiers.cli.train", *TINY]
    settings = ["loop.steps=5000", "eval=none", "model.device=cpu"]
    pipes: dict[str, Any] = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    torchrun = subprocess.Popen([*line, *settings], cwd=workplace, **pipes)
    wait_for(workplace / "run" / "metrics.jsonl", 3)
    ranks = {rank_of(process): process for process in children_of(torchrun.pid)}
    os.kill(ranks[killed], signal.SIGKILL)
    _, shown = torchrun.communicate(timeout=110)
    assert torchrun.returncode != 0 and not any(Path(f"/proc/{process}").exists() for process in ranks.values())
    assert "another process of torchrun ended" in shown
    assert "Make room" not in shown and "fault of the command" not in shown
    assert run(["--resume", "run", "loop.steps=6"]) == ExitCode.OK
    assert lines(workplace / "run" / "metrics.jsonl")[-1]["step"] >= 6


@pytest.mark.train
@pytest.mark.slow
def test_isolated_workers_that_are_killed_cost_no_rollout(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is replaced in its virtual environment, and what it played is played again."""
    monkeypatch.setenv("VF_CACHE_DIR", str(workplace / "cache"))
    process = started(workplace, "env.0.isolated=true", "eval=none", "loop.steps=24")
    figures, killed = workplace / "run" / "metrics.jsonl", []
    for steps in (3, 10):
        wait_for(figures, steps)
        lines_of = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in children_of(process.pid)}
        killed += [child for child, line in lines_of.items() if b"worker" in line]
        os.kill(killed[-1], signal.SIGKILL)
    _, shown = process.communicate(timeout=110)
    assert process.returncode == ExitCode.OK, shown
    assert len(set(killed)) == 2 and shown.count("was ended by signal 9") == 2
    rows = lines(figures)
    assert sum(row.get("outcomes/ok", 0) + row.get("outcomes/truncated", 0) for row in rows) >= 24 * 16
    assert not [name for row in rows for name in row if name.startswith("errors/")]


@pytest.mark.train
def test_a_model_that_can_not_be_written_is_written_by_going_on(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk is full at the end: exit code 1, the checkpoint holds what was trained, nothing half-written stays."""
    from verifiers.train.trainer import TorchLearner

    export = TorchLearner.export

    def on_a_full_disk(learner: TorchLearner, folder: Path) -> None:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # of 360,000
        try:
            export(learner, folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with monkeypatch.context() as patch:
        patch.setattr(TorchLearner, "export", on_a_full_disk)
        assert run([*TINY, "eval=none", "loop.steps=2"]) == ExitCode.FAILED
    shown = capsys.readouterr().err
    assert "the model could not be written to run/model" in shown and "--resume run" in shown
    assert not [path.name for path in (workplace / "run").iterdir() if "model" in path.name]
    assert run(["--resume", "run"]) == ExitCode.OK
    assert (workplace / "run" / "model" / "model.safetensors").exists()
    assert [row["step"] for row in lines(workplace / "run" / "metrics.jsonl")] == [1, 2]


def test_what_needs_no_torch_is_told_before_it_is_loaded(environments: Environments, tmp_path: Path) -> None:
    """A folder that holds a run, an environment that is not there, data that are all left out."""
    (tmp_path / "data.jsonl").write_text('{"messages": [], "reward": 1}\n')
    (tmp_path / "run").mkdir()
    session = {"began": "", "model": "", "environments": [], "sessions": [{"step": 1}]}
    (tmp_path / "run" / "run.json").write_text(json.dumps(session))
    model = "model.path=owner/m"
    for line, told in (
        (("train", model, f"env={environments.write(SOUND)}", "-o", str(tmp_path / "run")), "already holds a run"),
        (("train", model, "env=nowhere"), "no environment 'nowhere'"),
        (("sft", model, f"data.files={tmp_path / 'data.jsonl'}", "-o", str(tmp_path / "run")), "already holds a run"),
        (("sft", model, f"data.files={tmp_path / 'data.jsonl'}", "data.min_reward=2"), "left out: 1 (reward)"),
    ):
        command, *rest = line
        script = f"import sys; from verifiers.cli.{command} import run; run({rest!r}); sys.exit('torch' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert done.returncode == 0 and told in done.stderr, done.stderr
