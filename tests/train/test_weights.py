"""Weights are published whole or not at all, read back as they were, and kept while somebody loads them."""

import os
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

from tests.support.tiny_model import tiny_model  # noqa: E402
from verifiers.errors import ConfigError, StoreError  # noqa: E402
from verifiers.train.engines.loading import Loader  # noqa: E402
from verifiers.train.weights import WeightFolders, in_use, is_adapter  # noqa: E402

pytestmark = pytest.mark.train


def logits(model):
    """Of a fixed text."""
    with torch.no_grad():
        return model(torch.arange(12)[None]).logits


def names(root: Path) -> list[str]:
    """What is in the folder of all versions, hidden ones too."""
    return sorted(os.listdir(root))


@pytest.mark.parametrize("kind", ["qwen2", "qwen3_moe"])
def test_what_is_published_is_loaded_into_another_model_bit_for_bit(tmp_path, kind) -> None:
    """Also a mixture of experts, which is stored expert by expert and computed as one tensor."""
    trained, served = tiny_model(kind, seed=1), tiny_model(kind, seed=2)
    weights = WeightFolders(tmp_path).publish(7, trained)
    assert (weights.version, weights.adapter, weights.folder) == (7, False, tmp_path / "v00000007")
    assert not torch.equal(logits(trained), logits(served))
    Loader(served).load(weights)
    assert torch.equal(logits(trained), logits(served))


def test_a_published_folder_is_one_that_transformers_reads(tmp_path) -> None:
    """Configuration included; the names in it are those of the checkpoint format."""
    from transformers import AutoModelForCausalLM

    trained = tiny_model(seed=1)
    folder = WeightFolders(tmp_path).publish(0, trained).folder
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(folder)), logits(trained))
    stored, own = load_file(folder / "model.safetensors"), trained.state_dict()
    assert stored.keys() == own.keys() - {"lm_head.weight"}  # tied
    assert all(torch.equal(stored[name], own[name]) for name in stored)


def test_tensors_that_are_handed_in_are_what_is_written(tmp_path) -> None:
    """As a trainer does whose model is spread over several processes."""
    model, other = tiny_model(seed=1), tiny_model(seed=2)
    once = dict(other.named_parameters())  # tied weights once
    assert once.keys() < other.state_dict().keys()
    for version, tensors in enumerate((once, other.state_dict())):
        Loader(model).load(WeightFolders(tmp_path).publish(version, tiny_model(seed=3), tensors))
        assert torch.equal(logits(model), logits(other))
        model = tiny_model(seed=1)


def test_an_adapter_is_published_alone(tmp_path) -> None:
    """And laid over a model; the base weights are not in the folder."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    trained, other = (peft.get_peft_model(tiny_model(seed=0), config) for _ in range(2))
    served, again = tiny_model(seed=0), tiny_model(seed=0)
    handed = peft.get_peft_model_state_dict(trained)
    folders = WeightFolders(tmp_path)
    for weights, model in ((folders.publish(2, trained), served), (folders.publish(3, other, handed), again)):
        assert weights.adapter
        assert is_adapter(weights.folder)
        assert not (weights.folder / "model.safetensors").exists()
        Loader(model).load(weights)
        assert torch.equal(logits(trained), logits(model))
        assert peft.PeftModel.from_pretrained(tiny_model(seed=0), weights.folder)


def test_the_newest_stay_and_what_is_in_use(tmp_path) -> None:
    """A sampler that still loads an old version keeps it; afterwards it goes with the next publication."""
    folders, model = WeightFolders(tmp_path, keep=2), tiny_model()
    assert folders.latest() is None
    first = folders.publish(1, model)
    with in_use(first.folder):
        for version in (2, 3, 4):
            folders.publish(version, model)
        assert names(tmp_path) == ["v00000001", "v00000003", "v00000004"]
        assert load_file(first.folder / "model.safetensors")
    folders.publish(5, model)
    assert names(tmp_path) == ["v00000004", "v00000005"]
    assert folders.latest().version == 5


def test_another_process_that_loads_keeps_a_folder_until_it_ends(tmp_path) -> None:
    """Killed with -9 it lets go of it: the system does."""
    folders, model = WeightFolders(tmp_path, keep=1), tiny_model()
    first = folders.publish(1, model)
    code = (
        "import sys, time, pathlib\nfrom verifiers.train.weights import in_use\n"
        "with in_use(pathlib.Path(sys.argv[1])):\n  print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(first.folder)], stdout=subprocess.PIPE) as loader:
        try:
            assert loader.stdout.readline() == b"held\n"
            folders.publish(2, model)
            assert names(tmp_path) == ["v00000001", "v00000002"]
        finally:
            loader.send_signal(signal.SIGKILL)
            loader.wait()
    folders.publish(3, model)
    assert names(tmp_path) == ["v00000003"]


def test_what_is_in_use_was_not_being_deleted_when_its_loader_came(tmp_path) -> None:
    """A loader that comes between the look whether anybody loads and the deletion has the folder, or an error."""

    class Model:
        """What is saved at once."""

        def save_pretrained(self, folder: Path) -> None:
            folder.mkdir()
            (folder / "model.safetensors").write_bytes(b"weights")

    folders = WeightFolders(tmp_path, keep=1, durable=False)
    folders.publish(0, Model())
    done = threading.Event()

    def load() -> int:
        loaded = 0
        while not done.is_set():
            with suppress(StoreError), in_use(folders.latest().folder) as folder:
                for _ in range(5):
                    assert (folder / "model.safetensors").read_bytes() == b"weights"
                loaded += 1
        return loaded

    def publish() -> None:
        for version in range(1, 300):
            folders.publish(version, Model())

    with ThreadPoolExecutor(4) as pool:
        loads = [pool.submit(load) for _ in range(3)]
        try:
            pool.submit(publish).result()
        finally:
            done.set()
        assert sum(one.result() for one in loads)


def test_a_version_that_is_published_again_is_replaced(tmp_path) -> None:
    """After a crash a run goes on from a checkpoint and comes to versions that the first attempt had."""
    folders, model = WeightFolders(tmp_path), tiny_model(seed=1)
    folders.publish(4, tiny_model(seed=2))
    Loader(model).load(folders.publish(4, tiny_model(seed=3)))
    assert torch.equal(logits(model), logits(tiny_model(seed=3)))
    assert names(tmp_path) == ["v00000004"]


def test_no_half_folder_is_left_when_the_disk_takes_no_more(tmp_path) -> None:
    """The error is typed, the older version stays, and the next one works once there is room."""
    folders, model = WeightFolders(tmp_path), tiny_model()
    folders.publish(1, model)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # of 360,000
    try:
        with pytest.raises(StoreError, match="can not write the weights") as raised:
            folders.publish(2, model)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "space" in raised.value.hint
    assert names(tmp_path) == ["v00000001"]
    assert folders.publish(2, model).folder.is_dir()


def test_what_a_killed_writer_left_is_no_version(tmp_path) -> None:
    """A process is killed while it writes one version after the other: what has a version's name is complete."""
    model = tiny_model()
    writer = os.fork()
    if not writer:
        folders = WeightFolders(tmp_path)
        for version in range(10**6):
            folders.publish(version, model)
    try:
        while not list(tmp_path.glob("v*")):
            assert os.waitpid(writer, os.WNOHANG) == (0, 0)
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    for folder in tmp_path.glob("v*"):
        Loader(tiny_model(seed=5)).load(folder)
    (tmp_path / ".v00000099.part").mkdir()
    newest = WeightFolders(tmp_path).latest()
    assert newest is not None
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: None, "No such file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), "header"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("[]"), "list indices"),
    ],
    ids=["empty", "torn", "index"],
)
def test_a_folder_that_is_none_is_told(tmp_path, make, said) -> None:
    """With the typed error and what is wrong."""
    make(tmp_path)
    with pytest.raises(ConfigError, match=f"holds no weights.*{said}"):
        Loader(tiny_model()).load(tmp_path)


def test_weights_of_another_shape_are_refused_and_change_nothing(tmp_path) -> None:
    """Not even the tensors that would fit."""
    folder = WeightFolders(tmp_path).publish(0, tiny_model(seed=1, intermediate_size=64)).folder
    model = tiny_model(seed=2)
    before = logits(model)
    with pytest.raises(ConfigError, match="has the shape"):
        Loader(model).load(folder)
    assert torch.equal(logits(model), before)
    with pytest.raises(StoreError, match="can not read"), in_use(tmp_path / "v9"):
        pass
