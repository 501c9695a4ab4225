"""Training on a pinned environment of a hub, by commands: generate, imitate, reinforce, evaluate, go on."""

import json
import site
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Author, Machine
from tests.support.mock_openai import MockOpenAI, chat
from verifiers.errors import ExitCode

# Not `train`, though it needs torch: CI leaves the slow tests of training out, and this one is of the whole pipeline.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SOURCE = '''import verifiers as vf


def load_environment(letter: str = "a"):
    def share(completion):
        return (completion[-1]["content"] or "")[:8].count(letter) / 8

    rows = [{{"question": f"say {{n}}", "answer": letter}} for n in range({tasks})]
    return vf.SingleTurnEnv(dataset=rows, eval_dataset=rows, rubric=vf.Rubric(funcs=[share]))
'''

OPTIMISER = ["trainer.lr=3e-3", "trainer.warmup_steps=0"]
SETTINGS = [
    *OPTIMISER, "sampling.max_tokens=8", "advantage.overlong=keep", "sampler.max_context=128", "loop.steps=2",
    "loop.groups_per_batch=2", "loop.group_size=4", "loop.max_lag=0", "loop.filter_zero_advantage=false",
    "log.save_rows=true",
]  # fmt: skip
ENDED = (ExitCode.OK, ExitCode.PARTIAL)  # a reply without a token is a failure
LIMITS = ["-n", "4", "-r", "1", "-t", "8", "-d"]


@pytest.fixture
def author(hub, tmp_path):
    """Its environment needs nothing: the machine it is installed on has the package already."""
    own = Author(tmp_path / "author", hub, hub.owner())
    project = own.project / "pyproject.toml"
    lines = project.read_text().splitlines()
    project.write_text("\n".join("dependencies = []" if line.startswith("dependencies") else line for line in lines))
    return own


@pytest.fixture
def machine(hub, tmp_path):
    """A virtual environment of its own, which sees this checkout and what it is tested with; and a model."""
    pytest.importorskip("torch")
    from tests.support.tiny_model import save_tiny

    path = ":".join([str(Path(__file__).parents[2]), *site.getsitepackages()])
    own = Machine(tmp_path / "user", hub.url, PYTHONPATH=path, OPENAI_API_KEY="k")
    own.venv()
    save_tiny(own.folder / "model")
    return own


def read(path):
    return json.loads(path.read_text())


@pytest.mark.parametrize("hub", ["sqlite"], indirect=True)
def test_a_pinned_environment_is_trained_on_whatever_is_published_later(author, machine):
    """Each stage names the same bits of it, the run that goes on after a new version was installed, too."""
    first = author.release("0.1.0", SOURCE.format(tasks=8))
    with MockOpenAI(lambda _: chat("aabaabab")) as teacher:
        asked = ["-m", "teacher", "-b", teacher.base_url, "--export-sft", "good.jsonl", "-o", "generated"]
        machine.command("eval", first, *LIMITS, *asked)
        [metadata] = machine.folder.glob("generated/**/metadata.json")
        bits = read(metadata)["environment"]
        assert bits["version"] == "0.1.0" and bits["digest"].startswith("sha256:")

        imitated = ["data.files=good.jsonl", "sft.rows_per_batch=2", *OPTIMISER]
        machine.command("sft", "model.path=model", *imitated, "-o", "sft")
        machine.command("train", "model.path=sft/model", f'env=["{first}"]', *SETTINGS, "-o", "rl")
        machine.command("eval", first, *LIMITS, "-m", "local:rl/model", "-o", "after", code=ENDED)

        author.release("0.2.0", SOURCE.format(tasks=5))
        latest = first.partition("@")[0]
        machine.command("eval", latest, *LIMITS, "-m", "teacher", "-b", teacher.base_url, "-o", "latest")
    [metadata] = machine.folder.glob("latest/**/metadata.json")
    assert read(metadata)["environment"]["version"] == "0.2.0"

    machine.command("train", "--resume", "rl", "loop.steps=3")
    [metadata] = machine.folder.glob("after/**/metadata.json")
    run = read(machine.folder / "rl" / "run.json")
    [trained] = run["environments"]
    rows = sorted((machine.folder / "rl" / "rows").iterdir())
    sources = [json.loads(line)["env"] for file in rows for line in file.read_text().splitlines()]
    assert len(rows) == 3 and len(sources) == 3 * 8
    for named in (read(metadata)["environment"], trained, *sources):
        assert {name: named[name] for name in bits} == bits
    assert trained["tasks"] == 8 and [one["step"] for one in run["sessions"]] == [2, 3]
