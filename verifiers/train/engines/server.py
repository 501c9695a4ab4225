"""A sampler behind HTTP: OpenAI's routes for rollouts, vLLM's for token ids and for reinforcement learning.

    server = SamplerServer(engine, TokenizerRenderer(tokenizer, context=1024), name="policy")
    await server.start(port=0)                        # server.url; `stop` ends it
    config = ClientConfig(client_type="openai_chat_completions_token", api_base_url=server.url + "/v1")

Answers are whole: `stream` is refused. Evidence is always complete: `token_ids`, `prompt_token_ids`, `logprobs`, and
`token_versions`, the policy version of each token. It has no authentication: it belongs on the loopback interface, or
on a network of the trainer's own.

Generation                                                                                            (forms of vLLM)
    POST /v1/chat/completions   {model, messages, tools?, chat_template_kwargs?, SAMPLING} → choices[0]: message (calls
                                read as Hermes writes them), finish_reason, token_ids, token_versions, logprobs.content
                                [{token, id, logprob}], routed_experts?; prompt_token_ids beside choices
    POST /v1/completions        {model, prompt: text or ids, SAMPLING} → choices[0]: text, finish_reason, token_ids,
                                prompt_token_ids, token_versions, logprobs {tokens: ["token_id:5", …], token_logprobs}
    POST /inference/v1/generate {model?, token_ids, sampling_params: SAMPLING, cache_salt?} → choices[0]: token_ids,
                                finish_reason, logprobs.content [{token_id, logprob}], weight_versions [{version: "3",
                                start: 0, end: 5}, …], routed_experts?; with sampling_params.prompt_logprobs = 0 beside
                                choices: prompt_logprobs [null, {"ID": {logprob}}, …] at temperature 1
    GET  /generate              a WebSocket for many requests for tokens (`verifiers.train.engines.exchange`)
    SAMPLING: temperature, max_tokens or max_completion_tokens, seed, stop, stop_token_ids, ignore_eos; what would
    sample from less than the whole policy is a 400 (`verifiers.train.engines.sampling`).
Tokenizer
    POST /tokenize              {messages, tools?, chat_template_kwargs?, add_generation_prompt?} or {prompt,
                                add_special_tokens?} → {tokens, count, max_model_len}
    POST /detokenize            {tokens} → {prompt}, special tokens included
Control
    POST /pause?mode=keep       running requests stand still between two tokens → {"status": "paused"}
    POST /resume                → {"status": "resumed"}
    GET  /is_paused             → {"is_paused": false}
    POST /update_weights        {folder, version} → {"version": 3}: the folder's weights, between two tokens, paused or
                                not; a 400 changes nothing
    POST /v1/load_lora_adapter  {lora_path, version, lora_name?, load_inplace?} → {"version": 3}: the adapter takes the
                                place of the one before, for every request
    GET  /weight_info           → {"weight_version": "3"}
    GET  /v1/models             data[0]: {id, owned_by: "verifiers", max_model_len, vocabulary, version}
    GET  /health                200 {"status": "ok"} and what `TorchEngine.load` tells (running, waiting, sampled, fed),
                                or 503 with the error that ended the engine

Errors are {"error": {message, type, code}}: 400 for what the caller can mend (a prompt that does not fit is told in
vLLM's words), 404 for another model, 503 when the engine has failed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from verifiers.clients.local import TokenizerRenderer, cut_at
from verifiers.clients.routes import pack_routes
from verifiers.clients.sampler import Completion, Sampler
from verifiers.clients.tool_text import hermes_message
from verifiers.errors import (
    ConfigError,
    EngineError,
    Error,
    InfraError,
    ModelError,
    ModelNotFoundError,
    OverlongPromptError,
    UserError,
)
from verifiers.train.engines import exchange
from verifiers.train.learner import Weights

if TYPE_CHECKING:
    from aiohttp import web

LARGEST_BODY = 2**28
NOT_SAMPLING = ("model", "messages", "prompt", "tools", "chat_template_kwargs", "parallel_tool_calls", "tool_choice")


class SamplerServer:
    """Serves one sampler; `url` is its root once it is started. The sampler stays the caller's to close."""

    def __init__(self, sampler: Sampler, renderer: TokenizerRenderer, *, name: str = "policy") -> None:
        self.sampler = sampler
        self.renderer = renderer
        self.name = name
        self.url = ""
        self._paused = False
        self._runner: Any = None
        self._exchanges: set[web.WebSocketResponse] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Listen; the root's address. port 0 takes a free one."""
        from aiohttp import web

        app = web.Application(middlewares=[_middleware()], client_max_size=LARGEST_BODY)
        app.on_shutdown.append(self._hang_up)
        app.add_routes(
            [web.post(path, handler) for path, handler in self._posts().items()]
            + [web.get(path, handler) for path, handler in self._gets().items()]
        )
        # A client that hangs up gives its request up, so that its place is free.
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self.stop()
            raise ConfigError(
                f"nothing can listen at {host}, port {port or 'any'}: {error.strerror or error}",
                hint="Take an address of this machine, and a port that is free.",
            ) from error
        self.url = f"http://{host}:{self._runner.addresses[0][1]}"
        return self.url

    async def stop(self) -> None:
        """Close the connections and listen no more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _posts(self) -> dict[str, Any]:
        return {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completions,
            "/inference/v1/generate": self._generate,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
            "/pause": self._pause,
            "/resume": self._resume,
            "/update_weights": self._update_weights,
            "/v1/load_lora_adapter": self._load_adapter,
        }

    def _gets(self) -> dict[str, Any]:
        return {
            exchange.PATH: self._exchange,
            "/v1/models": self._models,
            "/health": self._health,
            "/is_paused": self._is_paused,
            "/weight_info": self._weight_info,
        }

    # --- generation -------------------------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> Any:
        body = await self._body(request)
        tools = None if body.get("tool_choice") == "none" else body.get("tools")
        if body.get("tool_choice") not in (None, "none", "auto"):
            raise ConfigError("a call of a tool cannot be forced here", hint='Leave tool_choice out, or set "auto".')
        ids = await self._rendered(body, tools)
        completion = await self.sampler.generate(ids, _sampling(body))
        text = cut_at(self.renderer.decode(completion.tokens), body.get("stop"))
        message = hermes_message(text) if tools else {"role": "assistant", "content": text}
        choice = _choice(completion) | {"message": message, "logprobs": {"content": self._entries(completion)}}
        if message.get("tool_calls") and completion.finish_reason == "stop":
            choice["finish_reason"] = "tool_calls"
        return self._reply("chat.completion", ids, completion, choice) | {"prompt_token_ids": ids}

    async def _completions(self, request: web.Request) -> Any:
        body = await self._body(request)
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            prompt = self.renderer.encode(prompt, special=bool(body.get("add_special_tokens", True)))
        ids = _ids(prompt, "prompt")
        completion = await self.sampler.generate(ids, _sampling(body))
        named = [f"token_id:{token}" for token in completion.tokens]
        choice = _choice(completion) | {
            "text": cut_at(self.renderer.decode(completion.tokens), body.get("stop")),
            "prompt_token_ids": ids,
            "logprobs": {"tokens": named, "token_logprobs": completion.logprobs},
        }
        return self._reply("text_completion", ids, completion, choice)

    async def _generate(self, request: web.Request) -> Any:
        body = await self._body(request)
        ids = _ids(body.get("token_ids"), "token_ids")
        params = dict(body.get("sampling_params") or {})
        scores = None
        if params.pop("prompt_logprobs", None) is not None:
            scored = await self.sampler.score(ids)
            pairs = zip(ids[1:], scored[1:], strict=True)
            scores = [None, *({str(token): {"logprob": value}} for token, value in pairs)]
        completion = await self.sampler.generate(ids, _sampling(params))
        pairs = zip(completion.tokens, completion.logprobs, strict=True)
        content = [{"token_id": token, "logprob": value} for token, value in pairs]
        choice = _choice(completion) | {"logprobs": {"content": content}}
        choice["weight_versions"] = _spans(completion.versions)
        return {"request_id": _new_id(), "choices": [choice], "prompt_logprobs": scores}

    async def _exchange(self, request: web.Request) -> Any:
        return await exchange.answer(request, self._exchanged, self._exchanges)

    async def _exchanged(self, model: str, ids: Any, params: Any) -> bytes:
        try:
            self._check_model(model)
            completion = await self.sampler.generate(_ids(ids, "token_ids"), params)
            return orjson.dumps(_choice(completion) | {"logprobs": completion.logprobs})
        except Error as error:
            return orjson.dumps(_refusal(error))
        except Exception as error:  # whatever it is, whoever asked is told
            return orjson.dumps(_refusal(EngineError(f"the server failed: {type(error).__name__}: {error}")))

    async def _hang_up(self, _: web.Application) -> None:
        for socket in list(self._exchanges):
            await socket.close(code=1001)  # going away

    def _entries(self, completion: Completion) -> list[dict[str, Any]]:
        return [
            {"token": self.renderer.decode([token], special=True), "id": token, "logprob": logprob, "top_logprobs": []}
            for token, logprob in zip(completion.tokens, completion.logprobs, strict=True)
        ]

    def _reply(self, kind: str, ids: list[int], completion: Completion, choice: dict[str, Any]) -> dict[str, Any]:
        asked, sampled = len(ids), len(completion.tokens)
        usage = {"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled}
        head = {"id": _new_id(), "object": kind, "created": int(time.time()), "model": self.name}
        return {**head, "choices": [choice], "usage": usage}

    # --- tokenizer --------------------------------------------------------------------------------------------

    async def _tokenize(self, request: web.Request) -> Any:
        body = await self._body(request)
        if "messages" in body:
            ids = await self._rendered(body, body.get("tools"))
        else:
            text = body.get("prompt")
            if not isinstance(text, str):
                raise ConfigError("there is nothing to tokenize", hint="Send messages, or a text as prompt.")
            ids = self.renderer.encode(text, special=bool(body.get("add_special_tokens", True)))
        return {"tokens": ids, "count": len(ids), "max_model_len": self.sampler.info().context}

    async def _detokenize(self, request: web.Request) -> Any:
        body = await self._body(request)
        return {"prompt": self.renderer.decode(_ids(body.get("tokens"), "tokens"), special=True)}

    async def _rendered(self, body: Mapping[str, Any], tools: Any) -> list[int]:
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise ConfigError("messages is no list of messages", hint="See OpenAI's chat route.")
        names = ("chat_template_kwargs", "add_generation_prompt")
        arguments = {name: body[name] for name in names if body.get(name) is not None}
        return (await self.renderer.render(messages, tools, arguments)).ids

    # --- control ----------------------------------------------------------------------------------------------

    async def _pause(self, request: web.Request) -> Any:
        if (mode := request.query.get("mode", "keep")) != "keep":
            raise ConfigError(f"this server keeps what runs when it pauses, it cannot {mode!r}", hint="Use mode=keep.")
        await self.sampler.pause()
        self._paused = True
        return {"status": "paused"}

    async def _resume(self, _: web.Request) -> Any:
        await self.sampler.resume()
        self._paused = False
        return {"status": "resumed"}

    async def _is_paused(self, _: web.Request) -> Any:
        return {"is_paused": getattr(self.sampler, "paused", self._paused)}

    async def _update_weights(self, request: web.Request) -> Any:
        return await self._load(await self._body(request), "folder", adapter=False)

    async def _load_adapter(self, request: web.Request) -> Any:
        return await self._load(await self._body(request), "lora_path", adapter=True)

    async def _load(self, body: Mapping[str, Any], field: str, *, adapter: bool) -> Any:
        folder, version = body.get(field), body.get("version")
        if not isinstance(folder, str) or isinstance(version, bool) or not isinstance(version, int):
            raise ConfigError(f"weights need {field} (a path) and version (a number)", hint="Send both.")
        await self.sampler.update_weights(Weights(version, Path(folder), adapter=adapter), version)
        return {"version": version}

    async def _weight_info(self, _: web.Request) -> Any:
        return {"weight_version": str(self.sampler.info().version)}

    async def _models(self, _: web.Request) -> Any:
        info = self.sampler.info()
        model = {"id": self.name, "object": "model", "owned_by": "verifiers", "max_model_len": info.context}
        return {"object": "list", "data": [{**model, "vocabulary": info.vocabulary, "version": info.version}]}

    async def _health(self, _: web.Request) -> Any:
        failure: Error | None = getattr(self.sampler, "failure", None)
        if failure is not None:
            raise failure
        load: Callable[[], dict[str, int]] = getattr(self.sampler, "load", dict)
        return {"status": "ok", **load()}

    async def _body(self, request: web.Request) -> dict[str, Any]:
        try:
            body = orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            raise ConfigError(f"the body is no JSON: {error}", hint="Send a JSON object.") from error
        if not isinstance(body, dict):
            raise ConfigError("the body is no JSON object", hint="Send a JSON object.")
        self._check_model(body.get("model"))
        return body

    def _check_model(self, model: Any) -> None:
        if model not in (None, "", self.name):
            raise ModelNotFoundError(f"The model `{model}` does not exist: {self.name} is served.")


# --- forms ----------------------------------------------------------------------------------------------------


def _sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in NOT_SAMPLING}


def _choice(completion: Completion) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "finish_reason": completion.finish_reason,
        "token_ids": completion.tokens,
        "token_versions": completion.versions,
    }
    if completion.routed_experts is not None:
        choice["routed_experts"] = pack_routes(completion.routed_experts)
    return choice


def _spans(versions: list[int]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for place, version in enumerate(versions):
        if not spans or spans[-1]["version"] != str(version):
            spans.append({"version": str(version), "start": place})
        spans[-1]["end"] = place + 1
    return spans


def _ids(value: Any, name: str) -> list[int]:
    if not isinstance(value, list) or not all(type(token) is int for token in value):
        raise ConfigError(f"{name} is no list of token ids", hint="Send whole numbers.")
    return value


def _new_id() -> str:
    return f"vf-{os.urandom(8).hex()}"


# --- errors ---------------------------------------------------------------------------------------------------


def _middleware() -> Any:
    """JSON out, and typed errors as answers."""
    from aiohttp import web

    @web.middleware
    async def answer(request: web.Request, handler: Any) -> web.StreamResponse:
        try:
            data = await handler(request)
        except Error as error:
            data = _refusal(error)
            status = data["error"]["code"]
            return web.Response(status=status, body=orjson.dumps(data), content_type="application/json")
        if isinstance(data, web.StreamResponse):
            return data
        return web.Response(body=orjson.dumps(data), content_type="application/json")

    return answer


def _refusal(error: Error) -> dict[str, Any]:
    return {"error": {"message": _message(error), "type": type(error).__name__, "code": _status(error)}}


def _status(error: Error) -> int:
    if isinstance(error, ModelNotFoundError):
        return 404
    if isinstance(error, UserError | OverlongPromptError | ModelError):
        return 400
    return 503 if isinstance(error, InfraError) else 500


def _message(error: Error) -> str:
    text = str(error)
    if isinstance(error, OverlongPromptError):
        text += " (it exceeds the maximum context length)"  # by which clients tell it from other refusals
    return f"{text} ({error.hint})" if isinstance(error, UserError) else text
