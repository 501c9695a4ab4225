"""The four commands one after the other: conversations generated, imitated, improved on, and the result evaluated.

docs/guides/training.md shows them with the embedded model as teacher; here a mock of an endpoint is the teacher.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.mock_openai import MockOpenAI, chat
from tests.support.variables import variables
from verifiers.errors import ExitCode

pytestmark = [pytest.mark.train, pytest.mark.slow]

ENVIRONMENT = """
import verifiers as vf


def load_environment(letter: str = "a"):
    def share(completion):
        return completion[-1]["content"][:8].count(letter) / 8

    rows = [{"question": f"say {n}", "answer": letter} for n in range(16)]
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=vf.Rubric(funcs=[share]))
"""

SETTINGS = [
    "env=letters", "sampling.max_tokens=8", "advantage.overlong=keep", "sampler.max_context=128", "trainer.lr=3e-3",
    "trainer.tokens_per_microbatch=4096", "loop.groups_per_batch=4", "loop.max_lag=1", "loop.steps=12",
]  # fmt: skip


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with an environment of a version, and a model of random weights."""
    pytest.importorskip("torch")
    from tests.support.tiny_model import save_tiny

    folder = tmp_path / "environments" / "letters"
    folder.mkdir(parents=True)
    (folder / "letters.py").write_text(ENVIRONMENT)
    (folder / "pyproject.toml").write_text('[project]\nname = "letters"\nversion = "1.2.0"\n')
    save_tiny(tmp_path / "model")
    return tmp_path


def command(workplace: Path, name: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
    """The JSON events of a command that has to end with one of these codes."""
    line = [sys.executable, "-m", f"verifiers.cli.{name}", *arguments, "--json"]
    own = variables({"NO_COLOR": "1", "OPENAI_API_KEY": "k", "OMP_NUM_THREADS": "1"})
    done = subprocess.run(line, cwd=workplace, env=own, capture_output=True, text=True, timeout=110)
    assert done.returncode in codes, done.stderr
    return [json.loads(event) for event in done.stdout.splitlines()]


def evaluated(workplace: Path, model: str, output: str) -> float:
    """The mean reward of a model in a folder."""
    limits = ["-n", "8", "-r", "2", "-t", "8", "-T", "1", "-o", output]
    # A reply without a token is a failure there, and is tried again: some may be left.
    codes = (ExitCode.OK, ExitCode.PARTIAL)
    events = command(workplace, "eval", "letters", "-m", f"local:{model}", *limits, codes=codes)
    return float(events[-1]["mean"])


@pytest.mark.timeout(400)
def test_from_nothing_to_a_better_model(workplace: Path) -> None:
    """Each stage is better than the one before, and all name the same bits of the environment."""

    def teacher(request: Any) -> Any:
        number = int(re.findall(r"\d+", request.json["messages"][-1]["content"])[0])
        return chat("aabaabab" if number % 2 else "zzzzzzzz")

    with MockOpenAI(teacher) as server:
        asked = ["-m", "teacher", "-b", server.base_url, "-n", "16", "-r", "2", "-o", "generated"]
        command(workplace, "eval", "letters", *asked)
    [results] = workplace.glob("generated/**/results.jsonl")
    generated = json.loads((results.parent / "metadata.json").read_text())["environment"]

    imitating = ["data.min_reward=0.5", "sft.epochs=6", "sft.rows_per_batch=4"]
    optimiser = ["trainer.lr=3e-3", "trainer.warmup_steps=0"]
    data = f"data.files={results.parent}"
    command(workplace, "sft", "model.path=model", data, *imitating, *optimiser, "-o", "sft")

    events = command(workplace, "train", "model.path=sft/model", *SETTINGS, "log.save_rows=true", "-o", "rl")
    record = json.loads((workplace / "rl" / "run.json").read_text())["environments"][0]
    row = json.loads(next((workplace / "rl" / "rows").iterdir()).read_text().splitlines()[0])
    for stage in (record, row["env"]):
        assert {name: stage[name] for name in ("name", "version", "digest")} == generated
    assert generated["version"] == "1.2.0" and events[-1]["event"] == "finished"

    imitated, trained = (evaluated(workplace, model, f"evals-{model[:2]}") for model in ("sft/model", "rl/model"))
    assert 0.1 < imitated < trained  # random weights earn a 259th
    assert trained > 0.8
