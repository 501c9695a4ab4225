import asyncio
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from uv import find_uv_bin

from tests.support.hub import running_hub
from tests.support.mock_openai import MockOpenAI
from tests.support.variables import variables as environment
from verifiers.rollouts.workers.wheels import our_source

PATIENCE = 280.0

SOURCE = '''import verifiers as vf


def load_environment(**kwargs):
    def length(completion) -> float:
        return len(str(completion[-1]["content"])) * {factor}

    tasks = [{{"question": f"Say {{n}} letters.", "answer": str(n)}} for n in range(3)]
    return vf.SingleTurnEnv(dataset=tasks, eval_dataset=tasks, rubric=vf.Rubric(funcs=[length]), **kwargs)
'''


@pytest.fixture(scope="session")
def sdk(tmp_path_factory):
    """The wheel of this checkout, built with uv as a release would be."""
    return asyncio.run(our_source().wheel(tmp_path_factory.mktemp("sdk")))


@pytest.fixture(scope="session")
def sqlite_hub(tmp_path_factory):
    """A hub of these tests alone: it serves this checkout's wheel, and others are served a wheel of their own."""
    with running_hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(scope="session")
def postgresql_hub(tmp_path_factory, postgresql):
    """The same on PostgreSQL."""
    with running_hub(tmp_path_factory.mktemp("hub"), database_url=postgresql()) as hub:
        yield hub


@pytest.fixture
def model():
    """An endpoint whose every reply has four letters."""
    with MockOpenAI("word") as server:
        yield server


class Machine:
    """Somebody's machine: a folder, a virtual environment, a cache and settings of its own."""

    def __init__(self, folder: Path, hub_url: str, python: str | None = None, **variables: str):
        self.folder = folder
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text("")
        own = {"VF_CONFIG": str(folder / "user.toml"), "VF_CREDENTIALS": str(folder / "credentials.toml")}
        own |= {"VF_CACHE_DIR": str(folder / "cache"), "VF_HUB_URL": hub_url, "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
        self.variables = environment({**own, **variables}, "PYTHON", "OPENAI_", "VIRTUAL_ENV")
        self.python = python or str(folder / "venv" / "bin" / "python")

    def run(self, *line, code=0):
        """Any program; what it printed. code: the exit code that it has to end with, or several."""
        ended = subprocess.run(
            [str(part) for part in line], cwd=self.folder, env=self.variables, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
        allowed = code if isinstance(code, tuple) else (code,)
        said = f"{ended.stdout}\n{ended.stderr}"
        assert ended.returncode in allowed, f"{line} ended with {ended.returncode}\n{said}"
        return SimpleNamespace(out=ended.stdout, err=ended.stderr)

    def venv(self, name="venv"):
        """A new virtual environment; its Python is the one that this machine's commands use from now on."""
        self.run(find_uv_bin(), "venv", "--quiet", "--python", sys.executable, name)
        self.python = str(self.folder / name / "bin" / "python")
        return self.python

    def command(self, module, *arguments, code=0):
        """The command of `verifiers.cli.MODULE` with this machine's Python."""
        start = f"from verifiers.cli.{module} import main; main()"
        return self.run(self.python, "-c", start, *arguments, code=code)

    def score(self, env_id, model, *flags):
        """Evaluate: the rewards in their order, and the environment as the run's metadata name it."""
        given = ("-m", "m", "-b", model.base_url, "-r", 1, "-n", 3, "-o", "outputs", "-d")
        self.command("eval", env_id, *given, *flags)
        run = max(self.folder.glob("outputs/evals/*/*/results.jsonl"), key=lambda path: path.stat().st_mtime_ns).parent
        records = [json.loads(line) for line in (run / "results.jsonl").read_text().splitlines()]
        rewards = [record["reward"] for record in sorted(records, key=lambda one: one["example_id"])]
        return rewards, json.loads((run / "metadata.json").read_text())["environment"]


class Author(Machine):
    """Who writes `word-game` and publishes it with this checkout's own commands."""

    def __init__(self, folder, hub, owner):
        root = str(Path(__file__).parents[2])
        variables = {"VF_HUB_TOKEN": owner.token, "PYTHONPATH": root}
        super().__init__(folder, hub.url, sys.executable, **variables)
        self.owner = owner
        self.command("init", "word-game")
        self.project = folder / "environments" / "word_game"

    def publish(self, version, factor):
        """A version whose rewards are the length of the reply times `factor`."""
        return self.release(version, SOURCE.format(factor=factor))

    def release(self, version, source):
        """A version with this module."""
        (self.project / "word_game.py").write_text(source)
        project = self.project / "pyproject.toml"
        lines = project.read_text().splitlines()
        changed = [f'version = "{version}"' if line.startswith("version = ") else line for line in lines]
        project.write_text("\n".join(changed) + "\n")
        self.command("hub.main", "push", "word-game", "--static-only", "--yes")
        return f"{self.owner.slug}/word-game@{version}"


@pytest.fixture
def author(hub, sdk, tmp_path):
    """An author at a hub that serves this SDK."""
    assert hub.admin("add-sdk", sdk).returncode == 0
    return Author(tmp_path / "author", hub, hub.owner())


@pytest.fixture
def user(hub, tmp_path):
    """Somebody else, with an empty virtual environment."""
    machine = Machine(tmp_path / "user", hub.url)
    machine.venv()
    return machine
