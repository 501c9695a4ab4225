"""Two processes train what one trains, and go on from its files as it goes on from theirs."""

import json
import multiprocessing
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file  # noqa: E402

from tests.train.trainer import ranks_main  # noqa: E402
from tests.train.trainer.rows_for_tests import eight_rows, make_row, two_groups  # noqa: E402
from verifiers.train.distributed import Ranks, join  # noqa: E402

pytestmark = pytest.mark.train


def free_port() -> int:
    """A port on the loopback interface that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def rank_main(rank: int, port: int, folder: Path, kind: str) -> None:
    """A forked process as torchrun would have started it, without its seconds of imports."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    ranks_main.run(folder, kind)


def two_forks(folder: Path, kind: str) -> None:
    """Run both ranks; each must end well within a minute."""
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401

    ranks_main.make_learner(kind)  # all imports once here, instead of twice there
    context, port = multiprocessing.get_context("fork"), free_port()
    ranks = [context.Process(target=rank_main, args=(rank, port, folder, kind)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    try:
        for rank in ranks:
            rank.join(60)
        assert [rank.exitcode for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()


def check(folder: Path, kind: str) -> None:
    """Compare what the leader wrote with one process."""
    alone = ranks_main.make_learner(kind, **ranks_main.SGD)
    start = {name: value.clone() for name, value in (alone.weights().tensors or {}).items()}
    tensors, figures = ranks_main.gradient_step(alone, [*eight_rows(), *two_groups()])
    assert_close(tensors, load_file(folder / "eight.safetensors"), start)
    theirs = json.loads((folder / "eight.json").read_text())
    assert theirs["trainer/microbatches"] == 2 and theirs["tokens/trained"] == figures["tokens/trained"]
    assert (theirs["tokens/shared"] > 0) == (kind != "qwen3_moe")
    for name in figures:
        if name.startswith("loss/") or name == "trainer/grad_norm":
            assert theirs[name] == pytest.approx(figures[name], rel=1e-6, abs=1e-9), name
    one = ranks_main.gradient_step(ranks_main.make_learner(kind, **ranks_main.SGD), [make_row()])[0]
    assert_close(one, load_file(folder / "one.safetensors"), start)
    four, resumed = (load_file(folder / f"{name}.safetensors") for name in ("four", "resumed"))
    assert all(torch.equal(value, resumed[name]) for name, value in four.items())
    other_world = ranks_main.make_learner(kind, **ranks_main.ADAM)
    other_world.load(folder / "state")
    for _ in range(2):
        other_world.step(eight_rows())
    assert_close(other_world.weights().tensors or {}, four, start)
    assert (folder / "diverged").exists()
    half = ranks_main.make_learner(kind, lr=0.1, optimizer="sgd", autocast="bfloat16")
    assert_alike(ranks_main.gradient_step(half, eight_rows())[0], load_file(folder / "half.safetensors"), start)
    assert {path.name for path in (folder / "exported").iterdir()} & {"model.safetensors", "adapter_model.safetensors"}


def assert_close(one: dict[str, Any], other: dict[str, Any], start: dict[str, Any]) -> None:
    """What changed since `start` agrees to 1e-6 of the largest change."""
    assert one.keys() == other.keys()
    largest = max(float((value - start[name]).abs().max()) for name, value in one.items())
    assert largest > 0
    for name, value in one.items():
        assert float((value - other[name]).abs().max()) <= 1e-6 * largest, name


def assert_alike(one: dict[str, Any], other: dict[str, Any], start: dict[str, Any]) -> None:
    """In bfloat16 parameters are rounded when they are gathered: the direction is the same, up to rounding."""
    moves = [torch.cat([(of[name] - start[name]).flatten() for name in start]) for of in (one, other)]
    assert torch.nn.functional.cosine_similarity(*moves, dim=0) > 0.99


def test_two_ranks_are_one_process(tmp_path: Path) -> None:
    """Gradients, figures, tied embeddings, one row for two ranks, files: all as of one process (FSDP2, gloo)."""
    two_forks(tmp_path, "qwen2")
    check(tmp_path, "qwen2")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3_moe", "lora"])
def test_two_ranks_with_experts_or_an_adapter(tmp_path: Path, kind: str) -> None:
    """Experts are split with their layer; of an adapter only its own weights travel."""
    two_forks(tmp_path, kind)
    check(tmp_path, kind)


@pytest.mark.slow
def test_torchrun_starts_them(tmp_path: Path) -> None:
    """The command of the guide, in processes of its own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    done = subprocess.run(
        [*command, ranks_main.__file__, str(tmp_path), "qwen2"],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    check(tmp_path, "qwen2")


def test_a_leader_that_failed_half_way_talks_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing after it must not wait for followers who wait for the failed step: torchrun ends them."""
    learner = ranks_main.make_learner("qwen2", **ranks_main.SGD)
    said: list[str] = []

    class Two(Ranks):
        def scatter(self, items: Any = None) -> Any:
            said.append(items[0][0])
            return items[0]

    def broken(updates: Any) -> Any:
        raise RuntimeError("out of memory")

    learner.ranks = Two(world=2)
    learner.close()
    monkeypatch.setattr(learner, "_train", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        learner.step(eight_rows())
    learner.close()
    assert said == ["close", "train"]


def test_without_torchrun_a_process_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leads, and hears itself."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    ranks = join("cpu")
    assert ranks == Ranks() and ranks.leads and ranks.scatter(["x"]) == "x" and ranks.gather(1) == [1]
