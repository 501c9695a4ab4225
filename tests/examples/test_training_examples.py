"""The training examples learn, from random weights, in any folder and without a network."""

import asyncio
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.train
torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parent.parent.parent / "examples"


def test_a_loop_of_ones_own_makes_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three updates through the public names: every weight moves, and rewards are what the environment gave."""
    monkeypatch.syspath_prepend(str(FOLDER))
    example = importlib.import_module("train_own_loop")
    toy = importlib.import_module("toy_model")
    torch.set_num_threads(1)
    model = toy.toy_model()
    before = [value.clone() for value in model.parameters()]
    curve = asyncio.run(example.train(model, toy.toy_tokenizer(), toy.toy_environment(), 3, 2e-3, 3))
    assert len(curve) == 3 and all(0.0 <= reward <= 1.0 for reward in curve) and max(curve) > 0
    assert not any(map(torch.equal, before, model.parameters()))


def test_the_loop_is_short() -> None:
    """A training loop is some twenty lines on `vf` and plain torch; the file says how to run it."""
    text = (FOLDER / "train_own_loop.py").read_text()
    loop = text[text.index("async def train") : text.index("if __name__")]
    assert len(loop.strip().splitlines()) <= 30 and "python examples/train_own_loop.py" in text
    used = re.findall(r"^(?:from|import) (verifiers\S*)", text, re.MULTILINE)
    needs_torch = ["verifiers.train.engines.torch_engine", "verifiers.train.models"]
    assert used == ["verifiers", *needs_torch], "the facade, and what needs torch"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train_own_loop", "train_trl"])
def test_the_example_learns(name: str, tmp_path: Path) -> None:
    """Run as a reader runs it, it ends with at least nine tenths of the reward."""
    if name == "train_trl":
        pytest.importorskip("trl")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FOLDER / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    last = re.search(r"reward .*… ([\d.]+)", done.stdout)
    assert last is not None and float(last[1]) >= 0.9, done.stdout


@pytest.mark.parametrize(
    ("name", "lacks", "extra"),
    [
        ("train_own_loop", "torch", "train"),
        ("train_trl", "torch", "trl"),
        pytest.param("train_trl", "trl", "trl", marks=pytest.mark.slow),  # it has loaded torch by then
    ],
)
def test_without_its_libraries_an_example_says_what_to_install(name: str, lacks: str, extra: str) -> None:
    """In one line, and no traceback."""
    hidden = f"import sys; sys.modules[{lacks!r}] = None; sys.path.insert(0, {str(FOLDER)!r}); import runpy; "
    command = [sys.executable, "-c", f"{hidden}runpy.run_path({str(FOLDER / f'{name}.py')!r}, run_name='__main__')"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.strip().endswith(f"pip install 'verifiers[{extra}]>=1'") and lacks in done.stderr
