"""One inference server, vLLM's or our own: how it is asked for tokens, stopped for a moment, and given new weights.

    server = await server_at("http://127.0.0.1:8000", "policy", session)
    completion = await server.generate(ids, read_sampling(params), version=3)

Both kinds take ids and give ids, logprobs and the label of the weights that sampled each token. So no version is
guessed here, also where weights change in mid-reply. vLLM has a route for it, `/inference/v1/generate` (its
`/v1/completions` does not tell the labels), our own one connection for all requests besides. They differ in how weights
are loaded and named, too, and vLLM in how it has to be started (`VLLM_FLAGS`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from verifiers.clients.routes import read_routes
from verifiers.clients.sampler import Completion
from verifiers.clients.status import Asked, status_error
from verifiers.errors import (
    AuthenticationError,
    ConfigError,
    EndpointUnavailableError,
    Error,
    InvalidModelResponseError,
    ModelError,
    ModelNotFoundError,
)
from verifiers.train.engines.exchange import Exchange
from verifiers.train.engines.sampling import Sampling
from verifiers.train.learner import Weights
from verifiers.train.rows import are_ids, is_logprob
from verifiers.types import FinishReason

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

CONNECT_S = 5.0
CONTROL_S = 600.0
"""What a pause or an update may take; large models are read from disk in minutes."""

VLLM_FLAGS = "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs"
"""For the routes that change weights, for the token route, and for logprobs that take the temperature in."""

UNKNOWN = -1
"""The version of weights that another run left on a server: older than any of this run."""

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
    """What both kinds share: the connection, the token route, and what is known of the server.

    lost: why it is not asked at the moment, None if it is. running: replies that are waited for.
    """

    def __init__(self, url: str, model: str, session: aiohttp.ClientSession, key_var: str | None = None) -> None:
        self.url = url
        self.model = model
        self.asked_by = model
        """The name that the present policy is asked by: an adapter may have one of its own."""
        self.context = self.vocabulary = 0
        self.lost: Error | None = None
        self.running: set[asyncio.Task[Any]] = set()
        self._session = session
        self._key_var = key_var

    async def connect(self, row: Mapping[str, Any]) -> int | None:
        """Learn what it is; the version of its weights, None if they are those that it was started with.

        row: of the model, as the server lists it. ConfigError if it is not fit for training.
        """
        raise NotImplementedError

    async def name(self, version: int) -> None:
        """Call the weights that it has `version`."""
        raise NotImplementedError

    async def load(self, weights: Weights, version: int) -> None:
        """Load a folder of weights and name them. The server stands still meanwhile."""
        raise NotImplementedError

    async def version(self) -> int | None:
        """The version of the weights it has now; None if nobody has named them, as after a new start."""
        return _label(_field(await self.ask("GET", "/weight_info"), "weight_version", str))

    def give_up(self) -> None:
        """Let go of connections: it is not reached, and what it owes is not waited for."""

    async def close(self) -> None:
        """End the connections."""

    async def pause(self) -> None:
        """Stand still between two tokens; what runs goes on after `resume`."""
        await self.post("/pause?mode=keep")

    async def resume(self) -> None:
        """Go on."""
        await self.post("/resume")

    # --- tokens -----------------------------------------------------------------------------------------------

    async def generate(self, ids: Sequence[int], sampling: Sampling, version: int) -> Completion:
        """A reply. `version`: of the newest weights; what older ones computed of the prompt is not taken over."""
        asked = _wishes(sampling, self.seed(sampling.seed, len(ids)), self.context - len(ids))
        choices = _field(await self._tokens(ids, asked, version), "choices", list)
        if len(choices) != 1:
            raise InvalidModelResponseError(f"{self.url} gave {len(choices)} replies where 1 was asked for")
        with self._reading():
            return self._completion(choices[0])

    def seed(self, seed: int | None, length: int) -> int | None:
        """What a request's seed is for the server; `length` of its prompt."""
        return seed

    async def score(self, ids: Sequence[int], version: int) -> list[float]:
        """The logprob of each token given those before it, at temperature 1; the first is 0."""
        asked = {**NEUTRAL, "temperature": 1.0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False}
        told = _field(await self._tokens(ids, asked, version), "prompt_logprobs", list)
        if len(told) != len(ids):
            raise InvalidModelResponseError(f"{self.url} scored {len(told)} of {len(ids)} tokens")
        with self._reading():
            return [0.0] + [entry[str(token)]["logprob"] for entry, token in zip(told[1:], ids[1:], strict=True)]

    async def _tokens(self, ids: Sequence[int], asked: Mapping[str, Any], version: int) -> Any:
        body = {"model": self.asked_by, "token_ids": list(ids), "sampling_params": asked}
        salted = {**body, "cache_salt": f"policy-{version}"}
        return await self.post("/inference/v1/generate", salted, seconds=None)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """What is not where vLLM has it is the server's error, not ours."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidModelResponseError(f"{self.url} answered in another form: {error!r}") from error

    def _completion(self, choice: Mapping[str, Any]) -> Completion:
        """The reply. InvalidModelResponseError for one whose parts do not belong together."""
        ending = choice.get("finish_reason")
        if ending in ("abort", "error"):
            raise EndpointUnavailableError(f"{self.url} gave a reply up ({ending})")
        tokens = _field(choice, "token_ids", list)
        content = _field(_field(choice, "logprobs", dict), "content", list)
        logprobs = [entry.get("logprob") for entry in content]
        if [entry.get("token_id") for entry in content] != tokens:
            raise InvalidModelResponseError(f"{self.url} gave logprobs of other tokens than it sampled")
        return self._checked(choice, tokens, logprobs, self._versions(choice))

    def _checked(self, choice: Mapping[str, Any], tokens: Any, logprobs: Any, versions: Any) -> Completion:
        if not are_ids(tokens) or len(logprobs) != len(tokens):
            raise InvalidModelResponseError(f"{self.url} gave logprobs of other tokens than it sampled")
        if len(versions) != len(tokens):
            raise InvalidModelResponseError(f"{self.url} told the version of {len(versions)} of {len(tokens)} tokens")
        if not all(map(is_logprob, logprobs)):
            wrong = next(value for value in logprobs if not is_logprob(value))
            raise InvalidModelResponseError(f"{self.url} gave the logprob {wrong}")
        experts = choice.get("routed_experts")
        routes = None if experts is None else read_routes(experts)
        return Completion(tokens, logprobs, versions, FINISHED.get(choice.get("finish_reason")), routes)

    def _versions(self, choice: Mapping[str, Any]) -> list[int]:
        """A version for each token, from the spans of tokens that one label of weights sampled."""
        versions: list[int] = []
        for span in choice.get("weight_versions") or ():
            label = _label(str(span["version"]))
            if label is None:
                raise EndpointUnavailableError(f"{self.url} was started again: nobody named the weights it has now")
            versions += [label] * (span["end"] - span["start"])
        return versions

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
        error = status_error(status, text, Asked(self.url, self.model, self._key_var))
        if status >= 500 and not isinstance(error, EndpointUnavailableError):
            return EndpointUnavailableError(str(error))
        return error


class OwnServer(Server):
    """`python -m verifiers.train.engines.serve`."""

    def __init__(self, url: str, model: str, session: aiohttp.ClientSession, key_var: str | None = None) -> None:
        super().__init__(url, model, session, key_var)
        self._exchange = Exchange(session, url, model, CONNECT_S)

    async def generate(self, ids: Sequence[int], sampling: Sampling, version: int) -> Completion:
        reply = await self._exchange.ask(ids, _own_wishes(sampling))
        if "error" in reply:
            raise self._refusal(reply["error"]["code"], orjson.dumps(reply).decode())
        with self._reading():
            return self._checked(reply, reply["token_ids"], reply["logprobs"], reply["token_versions"])

    def give_up(self) -> None:
        self._exchange.drop()

    async def close(self) -> None:
        await self._exchange.close()

    async def connect(self, row: Mapping[str, Any]) -> int | None:
        self.context, self.vocabulary = int(row["max_model_len"]), int(row["vocabulary"])
        await self.resume()  # a trainer that was killed may have left it standing still
        return int(row["version"]) or None

    async def name(self, version: int) -> None:
        """It has a number for its weights by itself: 0 at the start, then what `load` says."""

    async def load(self, weights: Weights, version: int) -> None:
        folder = str(weights.folder)
        try:
            if weights.adapter:
                await self.post("/v1/load_lora_adapter", {"lora_path": folder, "version": version})
            else:
                await self.post("/update_weights", {"folder": folder, "version": version})
        except EndpointUnavailableError:
            raise
        except ModelError as error:  # a refusal, which changes nothing
            raise ConfigError(str(error), hint="Hand over weights of the model that the server has.") from error


class VllmServer(Server):
    """vLLM 0.32 or newer, started as `VLLM_FLAGS` says."""

    _on_cpu = False

    async def connect(self, row: Mapping[str, Any]) -> int | None:
        self.context = int(row.get("max_model_len") or 0)
        try:
            served = await self.version()
            known = (await self.ask("GET", "/server_info?config_format=json"))["vllm_config"]
        except ModelNotFoundError as error:  # which is what a 404 becomes
            raise self._unfit("has no routes to change its weights") from error
        if (mode := known["model_config"].get("logprobs_mode")) != "processed_logprobs":
            raise self._unfit(f"reports {mode}, which leave the temperature out")
        self._on_cpu = "cpu" in str(known.get("device_config"))
        await self.resume()
        try:
            await self.score([0], UNKNOWN)
        except AuthenticationError as error:  # 403, as for an account
            raise self._unfit("has its token route switched off") from error
        return served

    def seed(self, seed: int | None, length: int) -> int | None:
        """A rollout asks every turn with its one seed: the prompt's length gives each turn other random numbers."""
        if seed is None:
            return None
        return int.from_bytes(hashlib.blake2b(f"{seed} {length}".encode(), digest_size=7).digest())

    async def load(self, weights: Weights, version: int) -> None:
        folder = weights.folder
        assert folder is not None
        if weights.adapter:
            name = f"{self.model}-adapter"
            asked = {"lora_name": name, "lora_path": str(folder), "load_inplace": True}
            await self.post("/v1/load_lora_adapter", asked)
            self.asked_by = name
        else:
            if self._on_cpu and _is_tied(folder):
                raise ConfigError(
                    f"vLLM at {self.url} computes on a CPU, where it keeps the old output layer of models that share "
                    "it with the embedding",
                    hint="Train a model with tie_word_embeddings=false, use our own engine, or a GPU.",
                )
            asked = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            await self.post("/collective_rpc", asked)
        await self.name(version)

    async def name(self, version: int) -> None:
        await self.post("/update_weight_version", {"new_version": str(version)})

    def _unfit(self, why: str) -> ConfigError:
        return ConfigError(f"vLLM at {self.url} {why}", hint=f"Start vLLM 0.32 or newer so: {VLLM_FLAGS}")


async def all_of(calls: Iterable[Awaitable[T]]) -> list[T]:
    """What all of them give. When one fails the others are ended, and have ended when its error comes out."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def server_at(
    url: str, model: str, session: aiohttp.ClientSession, key_var: str | None = None
) -> tuple[Server, int | None]:
    """The server at `url` and the version of its weights, None if they are those that it was started with.

    model: "" takes the first one that it lists. EndpointUnavailableError, ModelNotFoundError, ConfigError for a server
    that is not fit for training.
    """
    listed = await Server(url, model, session, key_var).ask("GET", "/v1/models", seconds=4 * CONNECT_S)
    rows = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{url} lists no models", hint="Name the root of an inference server, without /v1.")
    known = {str(row.get("id")): row for row in rows}
    chosen = model or next(iter(known))
    if chosen not in known:
        raise ModelNotFoundError(f"{url} has no model {chosen!r} but {', '.join(known)}", hint="Name one of them.")
    own = known[chosen].get("owned_by") == "verifiers"
    server: Server = (OwnServer if own else VllmServer)(url, chosen, session, key_var)
    return server, await server.connect(known[chosen])


def _wishes(sampling: Sampling, seed: int | None, room: int) -> dict[str, Any]:
    return {
        **NEUTRAL,
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens or max(1, room),
        "seed": seed,
        "stop": list(sampling.stop),
        "stop_token_ids": sorted(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        "logprobs": 0,
        "detokenize": bool(sampling.stop),
    }


def _own_wishes(sampling: Sampling) -> dict[str, Any]:
    """What is not as by default."""
    given = {field.name: getattr(sampling, field.name) for field in fields(Sampling)}
    told = {field.name: given[field.name] for field in fields(Sampling) if given[field.name] != field.default}
    return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in told.items()}


def _label(name: str) -> int | None:
    """The version that a label of weights stands for; vLLM's own, "default", for none."""
    return int(name) if name.removeprefix("-").isdecimal() else None


def _field(answer: Any, name: str, kind: type) -> Any:
    value = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(value, kind):
        raise InvalidModelResponseError(f"the server answered without {name!r}")
    return value


def _is_tied(folder: Path) -> bool:
    """Whether the model of a folder has one matrix for its first and its last layer."""
    config = json.loads((folder / "config.json").read_bytes())
    return bool(config.get("tie_word_embeddings", False))
