"""Weights are broadcast into servers in vLLM's four phases; the group is torch's gloo, with the servers in threads."""

import asyncio
import threading
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402
from torch import distributed  # noqa: E402

from tests.support.fake_vllm import FakeVllm  # noqa: E402
from tests.support.tiny_model import tiny_model  # noqa: E402
from tests.train.engines.contract import PARAMS, PROMPT, logprobs_of, reference  # noqa: E402
from verifiers.errors import ConfigError, EndpointUnavailableError  # noqa: E402
from verifiers.threads import run_beside  # noqa: E402
from verifiers.train.engines.http import HttpSampler  # noqa: E402
from verifiers.train.engines.transfer import BroadcastTransfer, NcclGroup  # noqa: E402
from verifiers.train.learner import Weights  # noqa: E402
from verifiers.train.weights import checkpoint_tensors  # noqa: E402

pytestmark = pytest.mark.train

WAIT = timedelta(seconds=20)


async def beside(work):
    """Run it in a thread that nobody waits for at the end: a broken group lets go after its time-out only."""
    return await run_beside(work, lambda run: threading.Thread(target=run, daemon=True).start())


class Rank:
    """One rank of a gloo group."""

    def __init__(self, port: int, rank: int, world: int) -> None:
        store = distributed.TCPStore("127.0.0.1", port, is_master=False, timeout=WAIT)
        self.group = distributed.ProcessGroupGloo(store, rank, world, WAIT)

    def broadcast(self, tensor):
        """From rank 0."""
        options = distributed.BroadcastOptions()
        options.rootRank = 0
        self.group.broadcast([tensor], options).wait()
        return tensor


class Trainer:
    """The trainer's end."""

    opened = 0

    def __init__(self) -> None:
        Trainer.opened += 1
        self.store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=WAIT)
        self.meeting = {"master_address": "127.0.0.1", "master_port": self.store.port}

    def join(self, world):
        self.rank = Rank(self.store.port, 0, world)

    def broadcast(self, tensor):
        self.rank.broadcast(tensor)


class Worker:
    """A server's end, as the fake server calls it."""

    dies = False

    async def join(self, info):
        self.info = info
        self.rank = await beside(lambda: Rank(info["master_port"], info["rank_offset"], info["world_size"]))

    async def receive(self, told):
        if self.dies:
            raise asyncio.CancelledError
        return await beside(lambda: self._receive(told))

    def _receive(self, told):
        rows = zip(told["names"], told["dtype_names"], told["shapes"], strict=True)
        return {name: self.rank.broadcast(torch.empty(shape, dtype=getattr(torch, kind))) for name, kind, shape in rows}


def trained(seed: int) -> Weights:
    """Tensors of a model, tied ones once."""
    return Weights(seed, tensors={name: value.detach() for name, value in tiny_model(seed=seed).named_parameters()})


async def test_two_servers_get_new_weights_again_and_again_over_one_group(folder) -> None:
    """Each has the next rank; afterwards both sample from the new weights and say so."""
    Trainer.opened = 0
    async with FakeVllm(folder) as one, FakeVllm(folder) as two:
        one.transfer, two.transfer = Worker(), Worker()
        async with HttpSampler([one.url, two.url], transfer=BroadcastTransfer(Trainer)) as sampler:
            for version in (1, 2):
                await sampler.update_weights(trained(version), version)
            replies = await asyncio.gather(*(sampler.generate(PROMPT, PARAMS) for _ in range(2)))
    assert [worker.info["rank_offset"] for worker in (one.transfer, two.transfer)] == [1, 2]
    assert (one.transfer.info["world_size"], Trainer.opened) == (3, 1)
    for reply in replies:
        assert set(reply.versions) == {2}
        assert reply.logprobs == pytest.approx(logprobs_of(reference(2), PROMPT, reply.tokens, 0.8), abs=1e-5)
    for phase in ("/start_weight_update", "/update_weights", "/finish_weight_update"):
        assert one.paths.count(phase) == two.paths.count(phase) == 2


async def test_a_server_that_fails_in_a_broadcast_ends_the_group(folder) -> None:
    """What the other one has got is not known, so neither is asked any more."""
    async with FakeVllm(folder) as one, FakeVllm(folder) as two:
        one.transfer, two.transfer = Worker(), Worker()
        async with HttpSampler([one.url, two.url], transfer=BroadcastTransfer(Trainer)) as sampler:
            await sampler.update_weights(trained(1), 1)
            two.dies_at = "/update_weights"
            two.transfer.dies = True
            with pytest.raises(EndpointUnavailableError, match="no inference server is left"):
                await sampler.update_weights(trained(2), 2)
            assert sampler.failures == {one.url: 1, two.url: 1}


@pytest.mark.parametrize("phase", ["/start_weight_update", "/finish_weight_update"])
async def test_after_a_server_was_started_again_they_meet_anew(folder, phase) -> None:
    """Under its old address it is in no group: in the old one it would never be reached again."""
    Trainer.opened = 0
    async with FakeVllm(folder) as one, FakeVllm(folder) as two:
        one.transfer, two.transfer = Worker(), Worker()
        async with HttpSampler([one.url, two.url], transfer=BroadcastTransfer(Trainer)) as sampler:
            await sampler.update_weights(trained(1), 1)
            two.dies_at = phase
            with pytest.raises(EndpointUnavailableError, match="no inference server is left"):
                await sampler.update_weights(trained(2), 2)
            async with FakeVllm(folder, port=int(two.url.rpartition(":")[2])) as again:
                again.transfer = Worker()
                await sampler.update_weights(trained(3), 3)
                replies = await asyncio.gather(*(sampler.generate(PROMPT, PARAMS) for _ in range(2)))
    assert [set(reply.versions) for reply in replies] == [{3}, {3}]
    assert Trainer.opened == 2


async def test_adapters_and_a_machine_without_gpus_are_told(folder) -> None:
    """With what to do instead."""
    transfer = BroadcastTransfer(Trainer)
    async with FakeVllm(folder) as server, HttpSampler([server.url], transfer=transfer) as sampler:
        with pytest.raises(ConfigError, match="loaded from a folder"):
            await sampler.update_weights(Weights(1, tensors={}, adapter=True), 1)
        assert len((await sampler.generate(PROMPT, {"max_tokens": 2, "ignore_eos": True})).tokens) == 2
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="this process has none"):
            NcclGroup()


def test_tensors_of_a_mixture_of_experts_get_the_names_of_its_checkpoint(tmp_path) -> None:
    """Expert by expert, as vLLM reads them; and the values are those of the published folder."""
    model = tiny_model("qwen3_moe")
    model.save_pretrained(tmp_path)
    named = checkpoint_tensors(model, dict(model.named_parameters()))
    stored = load_file(tmp_path / "model.safetensors")
    assert named.keys() == stored.keys()
    assert all(torch.equal(named[name], stored[name]) for name in stored)
