"""One inference server, vLLM's or our own: how it is asked for tokens, stopped for a moment, and given new weights.

    server = await server_at("http://127.0.0.1:8000", "policy", session)
    completion = await server.generate(ids, read_sampling(params), version=3)

Both kinds report the policy version of every token, so none is guessed here. vLLM (0.32 and newer) labels its weights
(`/update_weight_version`) and tells which tokens of a reply each label sampled; that is on its token route,
`/inference/v1/generate`, not on `/v1/completions`. `VLLM_FLAGS` says how it has to be started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from verifiers.clients.sampler import Completion
from verifiers.clients.status import Asked, status_error
from verifiers.errors import (
    AuthenticationError,
    ConfigError,
    EndpointUnavailableError,
    Error,
    InvalidModelResponseError,
    ModelNotFoundError,
)
from verifiers.train.engines.sampling import Sampling
from verifiers.train.learner import Weights
from verifiers.train.rows import are_ids, is_logprob
from verifiers.types import FinishReason

if TYPE_CHECKING:
    import aiohttp

CONNECT_S = 5.0
CONTROL_S = 600.0
"""What a pause or an update may take; large models are read from disk in minutes."""

VLLM_FLAGS = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs"
"""For the routes that change weights, for the token route, and for logprobs that take the temperature in."""

FINISHED: Mapping[Any, FinishReason] = {"stop": "stop", "length": "length"}


NEUTRAL: Mapping[str, Any] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "n": 1,
}
"""What vLLM would else take from the model's own settings (generation_config.json)."""


class Server:
    """What both kinds share: the connection, and what is known of the server.

    lost: why it is not asked at the moment, None if it is. running: replies that are waited for.
    """

    def __init__(self, url: str, model: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.model = model
        self.context = 0
        self.lost: Error | None = None
        self.running: set[asyncio.Task[Any]] = set()
        self._session = session

    async def connect(self, version: int) -> int:
        """Learn its model and context; its weights' version, which is `version` if nobody has named them yet.

        ConfigError if it is not fit for training.
        """
        raise NotImplementedError

    async def version(self) -> int | None:
        """The version of the weights it has now; None if nobody has named them, as after a new start."""
        raise NotImplementedError

    async def generate(self, ids: Sequence[int], sampling: Sampling, version: int) -> Completion:
        """A reply. `version`: of the newest weights; what older ones computed of the prompt is not taken over."""
        raise NotImplementedError

    async def score(self, ids: Sequence[int], version: int) -> list[float]:
        """The logprob of each token given those before it, at temperature 1; the first is 0."""
        raise NotImplementedError

    async def load(self, weights: Weights, version: int) -> None:
        """Load a folder of weights. The server stands still meanwhile."""
        raise NotImplementedError

    async def pause(self) -> None:
        """Stand still between two tokens; what runs goes on after `resume`."""
        await self.post("/pause?mode=keep")

    async def resume(self) -> None:
        """Go on."""
        await self.post("/resume")

    # --- the connection ---------------------------------------------------------------------------------------

    async def post(self, path: str, body: Any = None, *, seconds: float | None = CONTROL_S) -> Any:
        """Post JSON; the answer's JSON, or its text where it is none. None: no limit of time."""
        return await self.ask("POST", path, body, seconds=seconds)

    async def ask(self, method: str, path: str, body: Any = None, *, seconds: float | None = CONTROL_S) -> Any:
        """EndpointUnavailableError if it does not answer or fails inside; else the typed error of its refusal."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=seconds, sock_connect=CONNECT_S)
        data = None if body is None else orjson.dumps(body)
        headers = {"Content-Type": "application/json"} if data else None
        try:
            async with self._session.request(
                method, self.url + path, data=data, headers=headers, timeout=limit
            ) as response:
                raw = await response.read()
        except TimeoutError as error:
            raise EndpointUnavailableError(f"{self.url}{path} did not answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            what = str(error) or type(error).__name__
            raise EndpointUnavailableError(f"{self.url} is not reached: {what}") from error
        if response.status >= 300:
            raise self._refusal(response.status, raw.decode("utf-8", "replace"))
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            return raw.decode("utf-8", "replace")

    def _refusal(self, status: int, text: str) -> Error:
        error = status_error(status, text, Asked(self.url, self.model))
        if status >= 500 and not isinstance(error, EndpointUnavailableError):
            return EndpointUnavailableError(str(error))
        return error

    def serves(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Find the model that is asked for, or the first if none is named, in what the server lists."""
        names = [str(row.get("id")) for row in rows]
        if not self.model and names:
            self.model = names[0]
        if self.model not in names:
            raise ModelNotFoundError(
                f"{self.url} has no model {self.model!r} but {', '.join(names) or 'none'}",
                hint="Name one of them.",
            )
        self.context = int(rows[names.index(self.model)].get("max_model_len") or 0)

    def completion(self, tokens: Any, logprobs: Any, versions: list[int], ending: Any) -> Completion:
        """A reply whose parts belong together. InvalidModelResponseError for one whose do not."""
        if ending in ("abort", "error"):
            raise EndpointUnavailableError(f"{self.url} gave a reply up ({ending})")
        if not isinstance(tokens, list) or not are_ids(tokens):
            raise InvalidModelResponseError(f"{self.url} gave no token ids")
        if not isinstance(logprobs, list) or not len(tokens) == len(logprobs) == len(versions):
            raise InvalidModelResponseError(
                f"{self.url} gave {len(tokens)} tokens, {len(logprobs or ())} logprobs and {len(versions)} versions"
            )
        if not all(map(is_logprob, logprobs)):
            wrong = next(value for value in logprobs if not is_logprob(value))
            raise InvalidModelResponseError(f"{self.url} gave the logprob {wrong}")
        return Completion(tokens, logprobs, versions, FINISHED.get(ending))


class VllmServer(Server):
    """vLLM 0.32 or newer, started as `VLLM_FLAGS` says."""

    adapter: str | None = None
    """The name that the trained adapter is asked by, once there is one."""

    async def connect(self, version: int) -> int:
        try:
            served = await self.version()
            known = (await self.ask("GET", "/server_info?config_format=json"))["vllm_config"]["model_config"]
        except ModelNotFoundError as error:  # which is what a 404 becomes
            raise self._unfit("has no routes to change its weights") from error
        if (mode := known.get("logprobs_mode")) != "processed_logprobs":
            raise self._unfit(f"reports {mode}, which leave the temperature out")
        if served is None:
            await self._name(version)
        await self.resume()  # a trainer that was killed may have left it standing still
        try:
            await self.score([0], version)
        except AuthenticationError as error:  # 403, as for an account
            raise self._unfit("has its token route switched off") from error
        return version if served is None else served

    async def version(self) -> int | None:
        return _label(_field(await self.ask("GET", "/weight_info"), "weight_version", str))

    async def generate(self, ids: Sequence[int], sampling: Sampling, version: int) -> Completion:
        asked = {
            **NEUTRAL,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_tokens or max(1, self.context - len(ids)),
            "seed": sampling.seed,
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(sampling.stop_token_ids),
            "ignore_eos": sampling.ignore_eos,
            "logprobs": 0,
            "detokenize": bool(sampling.stop),
        }
        choice = _only(await self._generate(ids, asked, version), self.url)
        tokens = _field(choice, "token_ids", list)
        content = _field(_field(choice, "logprobs", dict), "content", list)
        if [entry.get("token_id") for entry in content] != tokens:
            raise InvalidModelResponseError(f"{self.url} reports logprobs of other tokens than it sampled")
        versions = self._versions(choice)
        return self.completion(
            tokens, [entry.get("logprob") for entry in content], versions, choice.get("finish_reason")
        )

    async def score(self, ids: Sequence[int], version: int) -> list[float]:
        asked = {**NEUTRAL, "temperature": 1.0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
        told = _field(await self._generate(ids, asked, version), "prompt_logprobs", list)
        if len(told) != len(ids):
            raise InvalidModelResponseError(f"{self.url} scored {len(told)} of {len(ids)} tokens")
        return [0.0] + [entry[str(token)]["logprob"] for entry, token in zip(told[1:], ids[1:], strict=True)]

    async def load(self, weights: Weights, version: int) -> None:
        folder = str(weights.folder)
        if weights.adapter:
            name = f"{self.model}-adapter"
            asked = {"lora_name": name, "lora_path": folder, "load_inplace": True}
            await self.post("/v1/load_lora_adapter", asked)
            self.adapter = name
        else:
            await self.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
        await self._name(version)

    def _unfit(self, why: str) -> ConfigError:
        return ConfigError(f"vLLM at {self.url} {why}", hint=f"Start vLLM 0.32 or newer so: {VLLM_FLAGS}")

    async def _name(self, version: int) -> None:
        await self.post("/update_weight_version", {"new_version": str(version)})

    async def _generate(self, ids: Sequence[int], asked: Mapping[str, Any], version: int) -> Any:
        body = {"model": self.adapter or self.model, "token_ids": list(ids), "sampling_params": asked}
        return await self.post(
            "/inference/v1/generate", {**body, "cache_salt": f"policy-{version}"}, seconds=None
        )

    def _versions(self, choice: Mapping[str, Any]) -> list[int]:
        """A version for each token, from the spans of tokens that one label of weights sampled."""
        versions: list[int] = []
        for span in choice.get("weight_versions") or ():
            label = _label(str(span["version"]))
            if label is None:
                raise EndpointUnavailableError(
                    f"{self.url} sampled from weights that nobody named: it was started again",
                    hint="The next update of the weights brings it back.",
                )
            versions += [label] * (span["end"] - span["start"])
        return versions


def _label(name: str) -> int | None:
    """The version that a label of weights stands for; vLLM's own is "default"."""
    return int(name) if name.isdecimal() else None


def _field(answer: Any, name: str, kind: type) -> Any:
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise InvalidModelResponseError(f"the server answered without {name!r}")
    return value


def _only(answer: Any, url: str) -> Mapping[str, Any]:
    choices = _field(answer, "choices", list)
    if len(choices) != 1 or not isinstance(choices[0], dict):
        raise InvalidModelResponseError(f"{url} gave {len(choices)} replies where 1 was asked for")
    choice: dict[str, Any] = choices[0]
    return choice


async def server_at(url: str, model: str, session: aiohttp.ClientSession, version: int) -> tuple[Server, int]:
    """The server at `url` and the version of its weights, which is `version` if they have no name yet.

    EndpointUnavailableError, ModelNotFoundError, ConfigError for a server that is not fit for training.
    """
    asked = VllmServer(url, model, session)
    listed = await asked.ask("GET", "/v1/models", seconds=4 * CONNECT_S)
    rows = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{url} lists no models", hint="Name the root of an inference server, without /v1.")
    asked.serves(rows)
    return asked, await asked.connect(version)
