"""What holds for every package under `environments/`: files, metadata, card, tasks, oracle, hostile replies, wheel.

What an environment's own rewards mean is tested beside it.
"""

from __future__ import annotations

import asyncio
import gzip
import importlib
import json
import os
import random
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import verifiers as vf
from tests.support.namespaces import need_namespaces
from verifiers.clients.scripted import ScriptedClient
from verifiers.envs.data import digest_of
from verifiers.evals.rescore import rescore, resolve_rescoring
from verifiers.evals.store import SavedRun
from verifiers.validation.findings import Request
from verifiers.validation.supervise import validate

ROOT = Path(__file__).parent.parent.parent
FOLDERS = sorted(path.parent for path in (ROOT / "environments").glob("*/pyproject.toml"))
SECTIONS = ["Task", "Sample row", "Prompt", "Reward", "Metrics", "Arguments", "Baseline", "Data and licence"]
HOSTILE = [
    " ",
    "null",
    "0",
    "42",
    "I cannot help with that.",
    "{question}",
    "</answer>\\boxed{",
    "<think>",
    "x" * 50_000,
]
UV = (sys.executable, "-m", "uv")

each = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], tuple[vf.Environment, Any]]:
    """Loads an environment and its module from its folder; two made-up problems stand for GSM8K's."""
    row = {
        "question": "Ada has 3 nets with 4 balls each. How many balls is that?",
        "answer": "3 * 4\n#### 12",
    }
    rows = [row, {"question": "A house costs 1,000 and 250 more. What is it?", "answer": "#### 1,250"}]
    (tmp_path / "gsm8k").mkdir()
    for split in ("train", "test"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "gsm8k" / f"{split}.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setenv("VF_DATA_DIR", str(tmp_path))

    def load_from(folder: Path) -> tuple[vf.Environment, Any]:
        if "sandbox" in project(folder)["project"]["keywords"]:
            need_namespaces()
        monkeypatch.syspath_prepend(str(folder))
        module = importlib.import_module(folder.name)
        if folder.name == "gsm8k":
            monkeypatch.setattr(module, "DIGESTS", dict.fromkeys(("train", "test"), digest_of(rows)))
        return vf.load_environment(folder.name), module

    return load_from


def play(env: vf.Environment, row: dict[str, Any], script: Any) -> vf.RolloutOutput:
    return env.generate_sync([row], client=ScriptedClient(script), model="scripted")["outputs"][0]


@each
def test_the_project_describes_itself(folder: Path) -> None:
    """Name, licence, open lower bound, evaluation defaults, and a wheel that holds nothing shared."""
    document = project(folder)
    assert document["project"]["name"] == folder.name.replace("_", "-")
    assert document["project"]["license"] == "Apache-2.0"
    assert "verifiers>=1.0" in document["project"]["dependencies"]
    assert set(document["tool"]["verifiers"]["eval"]) == {"num_examples", "rollouts_per_example"}
    assert document["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"] == [f"{folder.name}.py"]


@each
def test_no_data_is_committed(folder: Path) -> None:
    """A package is its module, project, card and test: data sets are loaded, never shipped."""
    listed = subprocess.run(
        ["git", "ls-files", folder.name], cwd=folder.parent, capture_output=True, text=True
    )
    assert {Path(line).name for line in listed.stdout.splitlines()} <= {
        *("pyproject.toml", "README.md"),
        *(f"{folder.name}.py", f"test_{folder.name}.py"),
    }


@each
def test_the_card_tells_what_a_hub_page_shows(folder: Path) -> None:
    """The sections of a page, in order, each with text."""
    parts = (folder / "README.md").read_text().split("\n## ")[1:]
    assert [part.partition("\n")[0] for part in parts] == SECTIONS
    assert all(part.partition("\n")[2].strip() for part in parts)


@each
def test_the_card_shows_a_real_row(folder: Path, load: Any) -> None:
    """The sample row is the first evaluation task (GSM8K's is compared where the data are at hand)."""
    card = (folder / "README.md").read_text()
    sample = json.loads(card.partition("```json\n")[2].partition("```")[0])
    if folder.name == "gsm8k":
        assert set(sample) == {"question", "answer"}
        return
    env, _ = load(folder)
    row = as_task(env.get_eval_dataset()[0])
    assert sample == {key: row[key] for key in sample}


@each
def test_the_card_lists_the_arguments(folder: Path, load: Any) -> None:
    """Every argument of load_environment is in the card's table."""
    _, module = load(folder)
    card = (folder / "README.md").read_text().partition("## Arguments")[2].partition("\n## ")[0]
    code = module.load_environment.__code__
    for name in code.co_varnames[: code.co_argcount]:
        assert f"`{name}`" in card


@each
def test_the_oracle_earns_the_maximum(folder: Path, load: Any) -> None:
    """A perfect reply in each turn earns 1.0, the most there is."""
    env, module = load(folder)
    for row in env.get_eval_dataset(3):
        task = as_task(row)
        result = play(env, row, lambda prompt, task=task: module.oracle(task, prompt, vf.State()))
        assert (result["reward"], result["error"]) == (1.0, None)


@each
def test_hostile_replies_earn_the_floor(folder: Path, load: Any) -> None:
    """Nothing, noise, an echo of the question and broken marks earn no more than no answer: 0."""
    env, _ = load(folder)
    row = env.get_eval_dataset()[0]
    for reply in HOSTILE:
        result = play(env, row, [reply.replace("{question}", row["prompt"][-1]["content"])])
        assert (result["reward"], result["error"]) == (0.0, None), reply[:40]


@each
def test_scoring_twice_gives_the_same(folder: Path, load: Any) -> None:
    """Equal replies earn equal rewards and metrics, those that are seconds excepted."""
    env, module = load(folder)
    row = env.get_eval_dataset()[0]
    task = as_task(row)
    results = [play(env, row, lambda prompt: module.oracle(task, prompt, vf.State())) for _ in range(2)]
    first, second = ({k: v for k, v in result["metrics"].items() if not k.endswith("_time")} for result in results)
    assert first == second


@each
def test_scoring_a_saved_run_again_gives_the_same(folder: Path, load: Any, tmp_path: Path) -> None:
    """From their records alone, rollouts of any quality earn the very rewards and metrics that they had."""
    env, module = load(folder)
    rows = list(env.get_eval_dataset(2))
    tasks = {row["prompt"][-1]["content"]: as_task(row) for row in rows}
    chance = random.Random(0)

    def reply(prompt: Any) -> Any:
        asked = next(message["content"] for message in prompt if message["content"] in tasks)
        if chance.random() < 0.3:
            return chance.choice(HOSTILE[:-1])
        return module.oracle(tasks[asked], prompt, vf.State())

    options = {"rollouts_per_example": 8, "results_path": tmp_path / "run", "save_results": True}
    played = env.evaluate_sync(ScriptedClient(reply), "scripted", num_examples=2, max_concurrent=1, **options)
    assert len(set(played["reward"])) > 1
    source = SavedRun(tmp_path / "run")
    config = resolve_rescoring(source, [folder.name], {}).config.model_copy(
        update={"run_path": str(tmp_path / "again")}
    )
    summary = asyncio.run(rescore(source, config))
    before, after = (scores(tmp_path / name) for name in ("run", "again"))
    assert after == before
    assert summary.changed == 0 and len(after) == 16


def scores(run: Path) -> dict[tuple[int, int], Any]:
    """Reward, metrics and outcome of each rollout of a run."""
    return {
        (record["example_id"], record["rollout_index"]): [
            record[key] for key in ("reward", "metrics", "outcome", "completion", "error", "stop_condition")
        ]
        for record in SavedRun(run).records()
    }


def test_tasks_are_the_same_in_every_process(load: Any) -> None:
    """Another process with another hash seed makes the same tasks."""
    generated = [folder for folder in FOLDERS if folder.name != "gsm8k"]
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; import verifiers as vf\n"
        "from verifiers.envs.data import digest_of\n"
        "for path in sys.argv[1:]:\n"
        "    env = vf.load_environment(path.rpartition('/')[2])\n"
        "    print(digest_of(env.get_eval_dataset()), digest_of(env.get_dataset()))"
    )
    command = [sys.executable, "-c", code, *map(str, generated)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "123"}
    )
    assert done.returncode == 0, done.stderr
    for folder, line in zip(generated, done.stdout.splitlines(), strict=True):
        env, _ = load(folder)
        assert line.split() == [digest_of(env.get_eval_dataset()), digest_of(env.get_dataset())], folder.name


def as_task(row: dict[str, Any]) -> dict[str, Any]:
    """The row as a rollout sees it, with `info` decoded."""
    return {**row, "info": json.loads(row["info"])} if isinstance(row.get("info"), str) else dict(row)


@pytest.mark.slow
def test_wheels_of_all_environments_install_side_by_side(tmp_path: Path) -> None:
    """Every wheel builds; together in one place no file is any other's, and each finds its own pyproject."""
    names: dict[str, Path] = {}
    for folder in FOLDERS:
        out = tmp_path / folder.name
        subprocess.run([*UV, "build", "-q", "--wheel", "--out-dir", str(out), str(folder)], check=True)
        (wheel,) = out.glob("*.whl")
        for name in zipfile.ZipFile(wheel).namelist():
            assert name not in names, f"{name} is in {wheel.name} and {names[name].name}"
            names[name] = wheel
    target = tmp_path / "site"
    wheels = [str(wheel) for wheel in set(names.values())]
    subprocess.run([*UV, "pip", "install", "-q", "--no-deps", "--target", str(target), *wheels], check=True)
    code = (
        "import json, sys; from importlib.metadata import distribution\n"
        "print(json.dumps([distribution(name).read_text('extra_metadata/pyproject.toml') for name in sys.argv[1:]]))"
    )
    command = [sys.executable, "-c", code, *(folder.name.replace("_", "-") for folder in FOLDERS)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(target)}
    )
    assert json.loads(done.stdout) == [(folder / "pyproject.toml").read_text() for folder in FOLDERS]


@each
def test_the_source_archive_names_what_it_holds(folder: Path) -> None:
    """What lies beside the module, such as results of evaluations, is not published."""
    rule = project(folder)["tool"]["hatch"]["build"]["targets"]["sdist"]
    assert rule == {"only-include": [f"{folder.name}.py", f"test_{folder.name}.py"]}


@pytest.mark.slow
@each
def test_vf_validate_finds_nothing(folder: Path) -> None:
    """No error, no warning, and every check is made; GSM8K's where its data are at hand."""
    if folder.name == "gsm8k" and not os.environ.get("VF_DATA_DIR"):
        pytest.skip("VF_DATA_DIR names no folder of public data sets")
    report = validate(Request(str(folder), num_examples=4))
    assert [result for result in report.results if result.status != "ok"] == []
