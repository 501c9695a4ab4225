"""vLLM's server without vLLM: its routes and answers as version 0.32 has them, over a real model that torch computes.

    async with FakeVllm(folder) as server:           # a folder that save_tiny wrote
        sampler = HttpSampler([server.url], "policy")
    assert server.paths[-1] == "/resume"

What is faked is the wire alone: ids, logprobs, versions, pauses and new weights are the model's own. `dies_at` is a
path at which it goes down as a killed process does; `refuses` maps paths to the status they are answered with; `key` is
asked for in each request. The opt-in tests of the marker `vllm` hold a real server against the same expectations.
"""

from __future__ import annotations

import asyncio
import base64
import io
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from aiohttp import web

from tests.support.tiny_model import tiny_tokenizer

SAMPLING = frozenset(
    ("temperature", "top_p", "top_k", "min_p", "n", "repetition_penalty", "presence_penalty", "frequency_penalty")
    + ("min_tokens", "max_tokens", "seed", "ignore_eos", "logprobs", "stop", "stop_token_ids", "detokenize")
    + ("prompt_logprobs",)
)


def problem(status: int, message: str) -> web.Response:
    """An error in vLLM's form."""
    return web.json_response({"error": {"message": message, "type": "BadRequestError", "code": status}}, status=status)


class FakeVllm:
    """The server; an async context manager on the test's own loop."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "policy",
        context: int = 256,
        logprobs_mode: str = "processed_logprobs",
        dev_mode: bool = True,
        scale_out: bool = True,
        port: int = 0,
        key: str | None = None,
    ) -> None:
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self.base = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.adapted: dict[str, Any] = {}
        self.name, self.context, self.mode = name, context, logprobs_mode
        self.dev_mode, self.scale_out = dev_mode, scale_out
        self.label = "default"
        self.paths: list[str] = []
        self.bodies: list[Any] = []
        self.dies_at: str | None = None
        self.refuses: dict[str, int] = {}
        self.transfer: Any = None
        self.url = ""
        self._port = port
        self._key = key
        self._gate = asyncio.Event()
        self._gate.set()
        self._steps = asyncio.Condition()
        self.sampled = 0
        self._running: set[asyncio.Task[Any]] = set()
        self._tokenizer = tiny_tokenizer()
        self._stop = {self.base.generation_config.eos_token_id}

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._watch], client_max_size=2**30)
        always = {"/health": self._health, "/v1/models": self._models}
        dev = {"/weight_info": self._weight_info, "/is_paused": self._is_paused, "/server_info": self._server_info}
        dev["/get_world_size"] = self._world_size
        changes = {"/pause": self._pause, "/resume": self._resume, "/collective_rpc": self._rpc}
        changes |= {"/update_weight_version": self._name_weights, "/init_weight_transfer_engine": self._init_transfer}
        changes |= {"/start_weight_update": self._start_update, "/update_weights": self._receive}
        changes["/finish_weight_update"] = self._finish_update
        posts = {"/inference/v1/generate": self._generate, "/v1/completions": self._completions}
        posts |= {"/tokenize": self._tokenize, "/detokenize": self._detokenize}
        posts["/v1/load_lora_adapter"] = self._load_lora
        for path, handler in (always | (dev if self.dev_mode else {})).items():
            app.router.add_get(path, handler)
        for path, handler in (posts | (changes if self.dev_mode else {})).items():
            app.router.add_post(path, handler)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await self._site.start()
        self._port = self._site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr, attr-defined]
        self.url = f"http://127.0.0.1:{self._port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._gate.set()
        await self._runner.cleanup()

    async def die(self) -> None:
        """Go down at once: connections break, nobody listens."""
        await self._site.stop()
        for connection in list(self._runner.server.connections):  # type: ignore[union-attr]
            if connection.transport is not None:
                connection.transport.abort()

    async def after(self, tokens: int) -> None:
        """Wait until so many tokens have been sampled in all."""
        async with self._steps:
            await self._steps.wait_for(lambda: self.sampled >= tokens)

    @web.middleware
    async def _watch(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.paths.append(request.path)
        self.bodies.append(await request.json() if request.can_read_body else None)
        if self._key and request.headers.get("Authorization") != f"Bearer {self._key}":
            return problem(401, "Unauthorized")
        if request.path == self.dies_at:
            await self.die()
        if request.path in self.refuses:
            return problem(self.refuses[request.path], "refused by the test")
        answer: web.StreamResponse = await handler(request)
        return answer

    # --- what it is -------------------------------------------------------------------------------------------

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _models(self, _: web.Request) -> web.Response:
        names = [self.name, *self.adapted]
        rows = [{"id": name, "object": "model", "owned_by": "vllm", "max_model_len": self.context} for name in names]
        return web.json_response({"object": "list", "data": rows})

    async def _weight_info(self, _: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.label})

    async def _is_paused(self, _: web.Request) -> web.Response:
        return web.json_response({"is_paused": not self._gate.is_set()})

    async def _world_size(self, _: web.Request) -> web.Response:
        return web.json_response({"world_size": 1})

    async def _server_info(self, _: web.Request) -> web.Response:
        model = {"logprobs_mode": self.mode, "max_model_len": self.context, "max_logprobs": 20}
        return web.json_response({"vllm_config": {"model_config": model}, "vllm_env": {}, "system_env": {}})

    # --- what changes it --------------------------------------------------------------------------------------

    async def _pause(self, request: web.Request) -> web.Response:
        mode = request.query.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            return web.json_response({"detail": [{"msg": "Input should be 'abort', 'wait' or 'keep'"}]}, status=422)
        if mode == "abort":
            for task in list(self._running):
                task.cancel()
        if mode == "wait" and self._running:
            await asyncio.wait(self._running)
        self._gate.clear()
        return web.json_response({"status": "paused"})

    async def _resume(self, _: web.Request) -> web.Response:
        self._gate.set()
        return web.json_response({"status": "resumed"})

    async def _rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        if body["method"] != "reload_weights":
            return problem(500, f"no method {body['method']}")
        path = body["kwargs"].get("weights_path")
        try:
            from verifiers.train.engines.loading import Loader

            Loader(self.base).load(Path(path))
        except Exception as error:
            return problem(500, str(error))
        return web.json_response({"results": [None]})

    async def _name_weights(self, request: web.Request) -> web.Response:
        self.label = (await request.json())["new_version"]
        return web.json_response({"success": True, "new_version": self.label})

    async def _load_lora(self, request: web.Request) -> web.Response:
        from peft import PeftModel

        body = await request.json()
        name = body["lora_name"]
        if name in self.adapted and not body.get("load_inplace"):
            return problem(400, f"The lora adapter '{name}' has already been loaded.")
        try:
            other = type(self.base)(self.base.config)
            other.load_state_dict(self.base.state_dict())
            self.adapted[name] = PeftModel.from_pretrained(other, body["lora_path"]).eval()
        except Exception as error:
            return problem(404, str(error))
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _init_transfer(self, request: web.Request) -> web.Response:
        await self.transfer.join((await request.json())["init_info"])
        return web.json_response({"message": "Weight transfer initialized"})

    async def _start_update(self, _: web.Request) -> web.Response:
        self._incoming: dict[str, torch.Tensor] = {}
        return web.json_response({"message": "Weight update started"})

    async def _receive(self, request: web.Request) -> web.Response:
        self._incoming |= await self.transfer.receive((await request.json())["update_info"])
        return web.json_response({"message": "Weights updated"})

    async def _finish_update(self, request: web.Request) -> web.Response:
        body = await request.json() if await request.read() else {}
        self.base.load_state_dict(self._incoming, strict=False)
        self.label = body.get("weight_version") or self.label
        return web.json_response({"message": "Weight update finished"})

    # --- tokens -----------------------------------------------------------------------------------------------

    async def _generate(self, request: web.Request) -> web.Response:
        if not self.scale_out:
            return problem(403, "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out.")
        body = await request.json()
        asked = body["sampling_params"]
        if unknown := set(asked) - SAMPLING:
            return problem(400, f"unknown sampling parameters {sorted(unknown)}")
        done = await self._run(body.get("model"), body["token_ids"], asked)
        if isinstance(done, web.Response):
            return done
        content = [
            {"token_id": token, "logprob": logprob, "rank": None, "top_logprobs": []}
            for token, logprob in zip(done["tokens"], done["logprobs"], strict=True)
        ]
        choice = {
            "index": 0,
            "finish_reason": done["reason"],
            "stop_reason": None,
            "token_ids": done["tokens"],
            "logprobs": {"content": content} if asked.get("logprobs") is not None else None,
            "routed_experts": self._routes([*body["token_ids"], *done["tokens"]][:-1]),
            "weight_versions": _spans(done["labels"]),
        }
        return web.json_response(
            {"request_id": "r", "choices": [choice], "prompt_logprobs": done["prompt"], "output_mode": "tokens"}
        )

    def _routes(self, fed: list[int]) -> str | None:
        """The experts of each token that was fed, as --enable-return-routed-experts has them: .npy in base64."""
        if not getattr(self.base.config, "num_experts_per_tok", 0):
            return None
        with torch.inference_mode():
            routers = self.base(torch.tensor([fed]), output_router_logits=True).router_logits
        chosen = [logits.topk(self.base.config.num_experts_per_tok).indices for logits in routers]
        file = io.BytesIO()
        np.save(file, torch.stack(chosen, dim=1).numpy().astype(np.uint8))
        return base64.b64encode(file.getvalue()).decode()

    async def _completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        ids = body["prompt"]
        if isinstance(ids, str):
            ids = self._tokenizer.encode(ids, add_special_tokens=False)
        done = await self._run(body.get("model"), ids, {"max_tokens": 16, **body})
        if isinstance(done, web.Response):
            return done
        choice: dict[str, Any] = {"index": 0, "finish_reason": done["reason"], "stop_reason": None}
        choice["text"] = self._tokenizer.decode(done["tokens"], skip_special_tokens=True)
        if body.get("logprobs") is not None:
            tokens = [f"token_id:{token}" for token in done["tokens"]]
            choice["logprobs"] = {"tokens": tokens, "token_logprobs": done["logprobs"], "text_offset": []}
        if body.get("return_token_ids"):
            choice |= {"token_ids": done["tokens"], "prompt_token_ids": ids}
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(done["tokens"])}
        usage["total_tokens"] = sum(usage.values())
        return web.json_response(
            {"id": "cmpl-1", "object": "text_completion", "model": self.name, "choices": [choice], "usage": usage}
        )

    async def _run(self, model: str | None, ids: list[int], asked: dict[str, Any]) -> Any:
        if model not in (None, self.name, *self.adapted):
            return problem(404, f"The model `{model}` does not exist.")
        if len(ids) >= self.context:
            return problem(400, f"This model's maximum context length is {self.context} tokens, got {len(ids)}.")
        task = asyncio.ensure_future(self._sample(model, list(ids), asked))
        self._running.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise  # the client went away
            return {"tokens": [], "logprobs": [], "labels": [], "reason": "abort", "prompt": None}
        finally:
            self._running.discard(task)

    async def _sample(self, model: str | None, ids: list[int], asked: dict[str, Any]) -> dict[str, Any]:
        temperature, seed = asked.get("temperature", 1.0), asked.get("seed")
        random = torch.Generator()
        random.manual_seed(seed) if seed is not None else random.seed()
        stops = set(asked.get("stop_token_ids") or ()) | (set() if asked.get("ignore_eos") else self._stop)
        tokens: list[int] = []
        logprobs: list[float] = []
        labels: list[str] = []
        reason = "length"
        prompt = None
        while len(tokens) < min(asked["max_tokens"], self.context - len(ids)):
            await self._gate.wait()
            with torch.inference_mode():
                policy = self.adapted.get(model or "", self.base)
                logits = policy(torch.tensor([ids + tokens])).logits[0]
            if asked.get("prompt_logprobs") is not None and prompt is None:
                prompt = _prompt_logprobs(logits.log_softmax(-1), ids)
            scaled = logits[-1] / (temperature or 1.0)
            chances = scaled.log_softmax(-1)
            token = int(torch.multinomial(chances.exp(), 1, generator=random)) if temperature else int(chances.argmax())
            tokens.append(token)
            raw = logits[-1].log_softmax(-1)
            logprobs.append(float((raw if self.mode == "raw_logprobs" else chances)[token]))
            labels.append(self.label)
            async with self._steps:
                self.sampled += 1
                self._steps.notify_all()
            await asyncio.sleep(0)
            said = self._tokenizer.decode(tokens) if asked.get("stop") else ""
            if token in stops or any(text in said for text in asked.get("stop") or ()):
                reason = "stop"
                break
        return {"tokens": tokens, "logprobs": logprobs, "labels": labels, "reason": reason, "prompt": prompt}

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "messages" in body:
            text = self._tokenizer.apply_chat_template(
                body["messages"], tools=body.get("tools"), add_generation_prompt=True, tokenize=False
            )
        else:
            text = body["prompt"]
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return web.json_response({"count": len(ids), "max_model_len": self.context, "tokens": ids, "token_strs": None})

    async def _detokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": self._tokenizer.decode((await request.json())["tokens"])})


def _spans(labels: list[str]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for at, label in enumerate(labels):
        if not spans or spans[-1]["version"] != label:
            spans.append({"version": label, "start": at, "end": at})
        spans[-1]["end"] = at + 1
    return spans


def _prompt_logprobs(logprobs: torch.Tensor, ids: list[int]) -> list[dict[str, Any] | None]:
    told = [
        {str(token): {"logprob": float(logprobs[at, token]), "rank": 1, "decoded_token": None}}
        for at, token in enumerate(ids[1:])
    ]
    return [None, *told]
