"""The routes of our server: forms, control, refusals."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import aiohttp  # noqa: E402

from tests.support.tiny_model import END, save_tiny, tiny_model, tiny_tokenizer  # noqa: E402
from tests.train.engines.contract import logprobs_of, reference  # noqa: E402
from verifiers.clients.local import TokenizerRenderer  # noqa: E402
from verifiers.train.engines.server import SamplerServer  # noqa: E402
from verifiers.train.engines.torch_engine import TorchEngine  # noqa: E402

pytestmark = pytest.mark.train

IDS = [1, 2, 3, 4]
WISHES = {"max_tokens": 6, "seed": 1, "ignore_eos": True}


class Asked:
    """A started server and a session to ask it with."""

    def __init__(self, engine: Any, url: str, session: aiohttp.ClientSession) -> None:
        self.engine, self.url, self.session = engine, url, session

    async def post(self, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.session.post(self.url + path, json=body) as answer:
            return answer.status, await answer.json()

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def served():
    tokenizer = tiny_tokenizer()
    engine = TorchEngine(tiny_model(), max_batch=4, max_context=256, decode=tokenizer.decode)
    server = SamplerServer(engine, TokenizerRenderer(tokenizer, 256))
    async with aiohttp.ClientSession() as session:
        yield Asked(engine, await server.start(), session)
    await server.stop()
    await engine.close()


async def test_three_routes_give_the_same_tokens(served: Asked) -> None:
    """Chat, completions and token ids in give one reply for one seed, each in its form, with its logprobs."""
    messages = [{"role": "user", "content": "hi"}]
    _, tokenized = await served.post("/tokenize", {"messages": messages})
    ids = tokenized["tokens"]
    assert (tokenized["count"], tokenized["max_model_len"]) == (len(ids), 256)
    _, chat = await served.post("/v1/chat/completions", {"model": "policy", "messages": messages, **WISHES})
    _, text = await served.post("/v1/completions", {"model": "policy", "prompt": ids, **WISHES})
    _, plain = await served.post("/inference/v1/generate", {"token_ids": ids, "sampling_params": WISHES})
    choices = [answer["choices"][0] for answer in (chat, text, plain)]
    tokens = choices[0]["token_ids"]
    assert [choice["token_ids"] for choice in choices] == [tokens] * 3
    assert chat["prompt_token_ids"] == choices[1]["prompt_token_ids"] == ids
    assert choices[0]["message"]["content"] == choices[1]["text"] == tiny_tokenizer().decode(tokens)
    expected = pytest.approx(logprobs_of(reference(0), ids, tokens), abs=1e-5)
    assert [entry["logprob"] for entry in choices[0]["logprobs"]["content"]] == expected
    assert choices[1]["logprobs"]["token_logprobs"] == expected
    assert choices[1]["logprobs"]["tokens"] == [f"token_id:{token}" for token in tokens]
    assert [(entry["token_id"], entry["logprob"]) for entry in choices[2]["logprobs"]["content"]] == [
        (token, value) for token, value in zip(tokens, choices[1]["logprobs"]["token_logprobs"], strict=True)
    ]
    assert choices[2]["weight_versions"] == [{"version": "0", "start": 0, "end": 6}]
    assert chat["usage"] == {"prompt_tokens": len(ids), "completion_tokens": 6, "total_tokens": len(ids) + 6}


async def test_prompts_are_scored(served: Asked) -> None:
    """`prompt_logprobs` gives the logprobs of the prompt at temperature 1, whatever the reply is sampled at."""
    wishes = {"max_tokens": 1, "prompt_logprobs": 0, "temperature": 0.3}
    _, answer = await served.post("/inference/v1/generate", {"token_ids": IDS, "sampling_params": wishes})
    scores = answer["prompt_logprobs"]
    assert scores[0] is None
    values = [scores[place][str(IDS[place])]["logprob"] for place in range(1, len(IDS))]
    assert values == pytest.approx(logprobs_of(reference(0), IDS[:1], IDS[1:]), abs=1e-5)


async def test_texts_go_in_and_come_out(served: Asked) -> None:
    """A text is tokenized and detokenized again, special tokens included."""
    _, answer = await served.post("/tokenize", {"prompt": "hello<|im_end|>", "add_special_tokens": False})
    assert answer["tokens"][-1] == END
    _, said = await served.post("/detokenize", {"tokens": answer["tokens"]})
    assert said == {"prompt": "hello<|im_end|>"}


async def test_paused_updated_resumed(served: Asked, tmp_path: Path) -> None:
    """A running request is kept over a pause and an update, and says which tokens the new weights sampled."""
    long = {**WISHES, "max_tokens": 200}
    running = asyncio.ensure_future(served.post("/inference/v1/generate", {"token_ids": IDS, "sampling_params": long}))
    while served.engine.load()["sampled"] < 5:  # noqa: ASYNC110 - the engine is in another thread
        await asyncio.sleep(0.001)
    assert await served.post("/pause?mode=keep") == (200, {"status": "paused"})
    assert await served.get("/is_paused") == (200, {"is_paused": True})
    folder = save_tiny(tmp_path, seed=1)
    assert await served.post("/update_weights", {"folder": str(folder), "version": 3}) == (200, {"version": 3})
    assert await served.get("/weight_info") == (200, {"weight_version": "3"})
    assert await served.post("/resume") == (200, {"status": "resumed"})
    _, answer = await running
    spans = answer["choices"][0]["weight_versions"]
    assert [span["version"] for span in spans] == ["0", "3"]
    assert (spans[0]["end"], spans[1]["end"]) == (spans[1]["start"], 200)


async def test_an_adapter_is_loaded(served: Asked, tmp_path: Path) -> None:
    """The LoRA route takes a folder of PEFT's and a version."""
    peft = pytest.importorskip("peft")
    peft.get_peft_model(tiny_model(), peft.LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path)
    body = {"lora_name": "policy", "lora_path": str(tmp_path), "load_inplace": True, "version": 2}
    assert await served.post("/v1/load_lora_adapter", body) == (200, {"version": 2})
    _, models = await served.get("/v1/models")
    row = models["data"][0]
    assert (row["id"], row["owned_by"], row["max_model_len"], row["version"]) == ("policy", "verifiers", 256, 2)


REFUSED = {
    "too long": ("/v1/completions", {"prompt": [1] * 300}, 400, "maximum context length"),
    "another model": ("/v1/completions", {"prompt": IDS, "model": "gpt"}, 404, "does not exist"),
    "truncated sampling": ("/v1/completions", {"prompt": IDS, "top_p": 0.5}, 400, "top_p"),
    "streams": ("/v1/completions", {"prompt": IDS, "stream": True}, 400, "one whole reply"),
    "no ids": ("/inference/v1/generate", {"token_ids": "text"}, 400, "token_ids"),
    "no messages": ("/v1/chat/completions", {"messages": "text"}, 400, "messages"),
    "a forced call": ("/v1/chat/completions", {"messages": [], "tool_choice": "required"}, 400, "forced"),
    "no text": ("/tokenize", {}, 400, "tokenize"),
    "no object": ("/tokenize", [1], 400, "object"),
    "another pause": ("/pause?mode=abort", {}, 400, "abort"),
    "no version": ("/update_weights", {"folder": "/tmp"}, 400, "version"),
    "no weights": ("/update_weights", {"folder": "/nowhere", "version": 1}, 400, "nowhere"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refusals(served: Asked, name: str) -> None:
    """What the caller can mend is a 400 or 404 that says what, and the server goes on."""
    path, body, expected, words = REFUSED[name]
    status, answer = await served.post(path, body)
    assert status == expected
    assert words in answer["error"]["message"]
    assert (await served.get("/health"))[0] == 200


async def test_who_hangs_up_frees_a_place(served: Asked) -> None:
    """A client that goes away takes its request along."""
    body = {"prompt": IDS, "max_tokens": 10**6, "ignore_eos": True}
    for _ in range(20):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await served.post("/v1/completions", body)
    assert (await served.post("/v1/completions", {"prompt": IDS, "max_tokens": 2}))[0] == 200
    while served.engine.load()["running"]:  # noqa: ASYNC110 - the engine is in another thread
        await asyncio.sleep(0.001)


async def test_a_broken_engine_is_told(served: Asked) -> None:
    """When the engine has failed, requests and health are 503 with the reason."""
    bad = {name: torch.full_like(weight, torch.nan) for name, weight in tiny_model().state_dict().items()}
    await served.engine.update_weights(bad, 1)
    for _ in range(2):
        status, answer = await served.post("/v1/completions", {"prompt": IDS})
        assert status == 503
        assert "not finite" in answer["error"]["message"]
    assert (await served.get("/health"))[0] == 503


# --- as a process ---------------------------------------------------------------------------------------------


def serve(folder: Path, *options: str) -> subprocess.Popen[str]:
    """The command, with a life line."""
    return subprocess.Popen(
        [sys.executable, "-m", "verifiers.train.engines.serve", str(folder), "--threads", "1", *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
async def test_the_command_serves_a_folder(tmp_path: Path) -> None:
    """It says where it is, answers, and ends when its life line is cut."""
    process = serve(save_tiny(tmp_path), "--max-context", "128", "--name", "tiny", "--lifeline")
    assert process.stdout is not None and process.stdin is not None
    said = json.loads(await asyncio.to_thread(process.stdout.readline))
    assert (said["model"], said["pid"]) == ("tiny", process.pid)
    async with aiohttp.ClientSession() as session:
        _, answer = await Asked(None, said["url"], session).post("/v1/completions", {"prompt": IDS, **WISHES})
    choice = answer["choices"][0]
    expected = logprobs_of(reference(0), IDS, choice["token_ids"])
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected, abs=1e-5)
    process.stdin.close()
    assert await asyncio.to_thread(process.wait, 20) == 0
    process.stdout.close()
    assert process.stderr is not None
    process.stderr.close()


@pytest.mark.slow
async def test_the_command_ends_in_order_or_says_why_not(tmp_path: Path) -> None:
    """SIGTERM ends it with 0; a folder without a model is one line of JSON and a code."""
    good = serve(save_tiny(tmp_path / "model"))
    wrong = serve(tmp_path / "nothing")
    assert good.stdout is not None
    await asyncio.to_thread(good.stdout.readline)
    good.send_signal(signal.SIGTERM)
    assert (await asyncio.to_thread(good.communicate))[0] == ""
    assert good.returncode == 0
    out, _ = await asyncio.to_thread(wrong.communicate)
    assert "there is no model" in json.loads(out)["error"]
    assert wrong.returncode != 0
