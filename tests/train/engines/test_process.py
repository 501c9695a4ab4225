"""Our engine in a process beside this one: it samples as in this one, outlives nobody, and is replaced when it dies."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.tiny_model import save_tiny, tiny_model, write_gguf  # noqa: E402
from tests.train.engines.contract import CONTEXT, PARAMS, PROMPT, SamplerContract, logprobs_of, reference  # noqa: E402
from verifiers.errors import ConfigError, EndpointUnavailableError, WorkerDiedError  # noqa: E402
from verifiers.train.engines import process  # noqa: E402
from verifiers.train.engines.http import HttpSampler  # noqa: E402
from verifiers.train.engines.process import ProcessSampler  # noqa: E402
from verifiers.train.learner import Weights  # noqa: E402

pytestmark = pytest.mark.train

LONG = {"max_tokens": 100, "seed": 5, "ignore_eos": True}


def is_alive(pid: int) -> bool:
    """Whether the process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def sampled_by(url: str) -> int:
    """How many tokens a server has sampled."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as answer:
        return (await answer.json())["sampled"]


async def gone(pid: int) -> None:
    """Wait until a process has ended."""
    while is_alive(pid):  # noqa: ASYNC110 - nothing tells of the end of another process's child
        await asyncio.sleep(0.01)


def in_memory() -> set[str]:
    """Folders of weights in memory that this process has made."""
    return {path.name for path in process.MEMORY.glob(f"{process.PREFIX}{os.getpid()}-*")}


@pytest.fixture(scope="module")
def server(folder):
    """A process that serves."""
    child = process._Child([str(folder), "--lifeline", f"--max-context={CONTEXT}", "--threads=1"], 1)
    child.await_start()
    yield child
    child.stop()
    assert child.process.returncode == 0


class TestOverOurServer(SamplerContract):
    """What every sampler must do, over our own server's wire; one process for all, since it takes seconds to start."""

    @pytest.fixture
    async def sampler(self, server, folder):
        """With the first weights again."""
        async with HttpSampler([server.url]) as sampler:
            await sampler.update_weights(folder, 0)
            yield sampler

    async def test_an_update_in_mid_reply_is_seen_in_versions(self, sampler, server, other_weights) -> None:
        """Tokens of the old weights first, then of the new ones, and the logprobs are those of each."""
        before = await sampled_by(server.url)
        running = asyncio.create_task(sampler.generate(PROMPT, LONG))
        while await sampled_by(server.url) == before:
            pass
        await sampler.update_weights(other_weights, 1)
        reply = await running
        split = reply.versions.index(1)
        assert reply.versions == [0] * split + [1] * (100 - split)
        assert split
        expected = logprobs_of(reference(0), PROMPT, reply.tokens[:split])
        assert reply.logprobs[:split] == pytest.approx(expected, abs=1e-4)

    async def test_weights_that_do_not_fit_are_refused_and_change_nothing(self, sampler, tmp_path) -> None:
        """Also not that the server stands still."""
        wrong = save_tiny(tmp_path / "wrong", intermediate_size=64)
        with pytest.raises(ConfigError, match="has the shape"):
            await sampler.update_weights(wrong, 9)
        assert set((await sampler.generate(PROMPT, PARAMS)).versions) == {0}
        assert not sampler.failures


@pytest.mark.slow
async def test_a_process_that_is_killed_is_replaced_with_the_latest_weights(folder) -> None:
    """What it owed is asked of the new one; tensors of this process travel in memory, and nothing is left there."""
    trained = tiny_model(seed=1)
    tensors = {name: value.detach() for name, value in trained.named_parameters()}
    async with ProcessSampler(folder, max_context=CONTEXT, version=2) as sampler:
        assert sampler.info().version == 2
        await sampler.update_weights(Weights(3, tensors=tensors), 3)
        assert len(in_memory()) == 1
        running = asyncio.create_task(sampler.generate(PROMPT, LONG))
        await sampler.generate([1, 2, 3], {"max_tokens": 2})
        first, address = sampler.pid, sampler.url
        os.kill(first, signal.SIGKILL)
        reply = await running
        assert set(reply.versions) == {3}
        assert reply.logprobs == pytest.approx(logprobs_of(trained.eval(), PROMPT, reply.tokens), abs=1e-4)
        assert (sampler.deaths, sampler.info().version) == (1, 3)
        assert (sampler.pid != first, sampler.url != address) == (True, True)
        await sampler.update_weights(Weights(4, tensors=tensors), 4)
        assert len(in_memory()) == 1
        second = sampler.pid
        sampler._max_restarts = 1
        os.kill(second, signal.SIGKILL)
        with pytest.raises(WorkerDiedError, match="by signal 9"):
            await sampler.generate(PROMPT, PARAMS)
    assert not in_memory()


@pytest.mark.slow
async def test_one_that_is_closed_while_its_process_is_replaced_leaves_none(folder, monkeypatch) -> None:
    """Neither the one that died nor the one that is coming up; who waits is told."""
    made = []

    class Child(process._Child):
        def __init__(self, *arguments) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(process, "_Child", Child)
    sampler = await ProcessSampler(folder, max_context=CONTEXT).start()
    running = asyncio.create_task(sampler.generate(PROMPT, LONG))
    os.kill(sampler.pid, signal.SIGKILL)
    while len(made) < 2:  # noqa: ASYNC110 - nothing tells of its start
        await asyncio.sleep(0.01)
    await sampler.close()
    assert all(child.ended for child in made)
    with pytest.raises((WorkerDiedError, EndpointUnavailableError)):
        await running


@pytest.mark.slow
async def test_the_process_ends_when_its_parent_is_killed(folder) -> None:
    """With -9, in the middle of a reply, and although a fork of the parent holds its pipes open."""
    code = (
        "import asyncio, os, sys, time\nfrom verifiers.train.engines.process import ProcessSampler\n"
        "async def main():\n"
        "  async with ProcessSampler(sys.argv[1]) as sampler:\n"
        "    fork = os.fork()\n"
        "    if not fork: time.sleep(60); os._exit(0)\n"
        "    print(sampler.pid, fork, flush=True)\n"
        "    while True: await sampler.generate([1, 2, 3], {'max_tokens': 500, 'ignore_eos': True})\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE) as parent:
        engine, fork = map(int, parent.stdout.readline().split())
        try:
            assert is_alive(engine)
            parent.kill()
            await gone(engine)
        finally:
            os.kill(fork, signal.SIGKILL)


@pytest.mark.slow
async def test_a_gguf_file_is_served_as_the_trainer_loads_it(tmp_path) -> None:
    """It samples with the logprobs of the model that was written."""
    pytest.importorskip("gguf")
    model = tiny_model(vocab_size=260).eval()
    write_gguf(tmp_path / "tiny.gguf", model)
    async with ProcessSampler(tmp_path / "tiny.gguf", max_context=CONTEXT) as sampler:
        reply = await sampler.generate(PROMPT, PARAMS)
    expected = logprobs_of(model, PROMPT, reply.tokens, PARAMS["temperature"])
    assert reply.logprobs == pytest.approx(expected, abs=1e-4)


def torn(folder: Path) -> Path:
    """The model with half of its weights' file."""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    return folder


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: folder / "nowhere", "there is no model"),
        (lambda folder: folder, "no model could be loaded"),
        (lambda folder: torn(save_tiny(folder)), "no model could be loaded"),
    ],
    ids=["missing", "empty", "torn"],
)
@pytest.mark.slow
async def test_a_process_that_does_not_come_up_says_why(tmp_path, make, said) -> None:
    """And leaves no process behind."""
    with pytest.raises(ConfigError, match=said):
        await ProcessSampler(make(tmp_path)).start()


def test_what_a_process_said_last_is_known_after_it_was_cleared_away(tmp_path, monkeypatch) -> None:
    """Where starting another one fails too, the next request is told of the first one's end."""
    program = tmp_path / "dies"
    program.write_text("#!/bin/sh\necho out of memory >&2\nexit 3\n")
    program.chmod(0o700)
    monkeypatch.setattr(process.sys, "executable", str(program))
    child = process._Child([], 1)
    child.process.wait()
    for _ in range(2):
        child.stop()
        assert "with 3 (out of memory)" in str(child.death())


async def test_an_adapter_as_tensors_is_refused(folder) -> None:
    """Nothing says how to apply it; a folder does."""
    with pytest.raises(ConfigError, match="an adapter came as tensors"):
        await ProcessSampler(folder).update_weights(Weights(1, tensors={}, adapter=True), 1)


def test_what_killed_processes_left_in_memory_is_swept(tmp_path, monkeypatch) -> None:
    """What belongs to one that runs stays."""
    monkeypatch.setattr(process, "MEMORY", tmp_path)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    mine = tmp_path / f"{process.PREFIX}{os.getpid()}-a"
    for kept in (mine, tmp_path / f"{process.PREFIX}{ended.pid}-b", tmp_path / "other"):
        kept.mkdir()
    process._sweep()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", mine.name]
