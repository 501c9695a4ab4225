"""`HttpSampler`: a sampler over inference servers, vLLM's or our own, one or many.

    async with HttpSampler(["http://10.0.0.1:8000", "http://10.0.0.2:8000"], "policy") as sampler:
        completion = await sampler.generate([1, 2, 3], {"temperature": 0.7, "max_tokens": 64, "seed": 3})
        await sampler.update_weights(folders.publish(1, model), 1)

A request goes to the server with the fewest. All servers are updated as one: all stand still, all load, all go on; so
at no time do two of them serve different versions. Running requests are kept, and the tokens that they sample
afterwards carry the new version.

A server that fails is left out: its requests are asked of the others, `failures` counts why, and the next update of
the weights takes it in again. When none is left, those that answer again are taken in at once, with the present weights
if these are in a folder; only if there is none does a call raise, EndpointUnavailableError.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from verifiers.clients.sampler import Completion, EngineInfo
from verifiers.errors import (
    ConfigError,
    EndpointUnavailableError,
    Error,
    MissingKeyError,
    OverlongPromptError,
)
from verifiers.train.engines.remote import UNKNOWN, Server, all_of, server_at
from verifiers.train.engines.sampling import Sampling, read_sampling
from verifiers.train.learner import Weights
from verifiers.train.weights import in_use, is_adapter
from verifiers.types import SamplingArgs

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerHealth:
    """How one server is: whether it is asked, why not if so, and how many replies are waited for."""

    url: str
    serving: bool
    why: str
    running: int


class Transfer(Protocol):
    """Brings tensors of the trainer to servers without a file between (`verifiers.train.engines.transfer`)."""

    async def send(self, servers: Sequence[Server], weights: Weights, version: int) -> None:
        """Load `weights.tensors` into all servers, which stand still. Raises if not all have them."""
        ...


class HttpSampler:
    """A `verifiers.clients.sampler.Sampler`. Used from one event loop.

    urls: roots of the servers, without /v1. model: as the servers name it; "" takes the first one they list.
    version: of the weights that the servers were started with. vocabulary: of the model, which vLLM does not tell; 0 if
    not known.
    max_context: tokens of one sequence, prompt and reply, where it is less than the servers' own; None takes theirs.
    transfer: for weights that are tensors; without one they have to be folders that the servers can read.
    api_key_var: variable of the environment whose key is sent with each request, for servers that ask for one.
    owned: the servers were started for this sampler, so the version that they name is this run's.
    """

    def __init__(
        self,
        urls: Sequence[str],
        model: str = "",
        *,
        version: int = 0,
        vocabulary: int = 0,
        max_context: int | None = None,
        transfer: Transfer | None = None,
        api_key_var: str | None = None,
        owned: bool = False,
    ) -> None:
        if isinstance(urls, str) or not urls or len(set(urls)) != len(urls):
            raise ConfigError(
                f"a sampler needs the addresses of servers, each once, not {urls!r}",
                hint="Set sampler.urls, such as http://127.0.0.1:8000.",
            )
        self.failures: Counter[str] = Counter()
        """How often a server was left out, by its address."""
        self._urls = [url.rstrip("/").removesuffix("/v1") for url in urls]
        self._model = model
        self._version = version
        self._vocabulary = vocabulary
        self._max_context = max_context
        self._transfer = transfer
        self._owned = owned
        self._key_var = api_key_var
        self._servers: list[Server] = []
        self._session: Any = None
        self._paused = False
        self._latest: Weights | None = None
        """The weights that the servers should have, if another can be given them: in a folder, which is held."""
        self._held = ExitStack()
        self._changing = asyncio.Lock()
        """Of what servers stand still for, or go on after: one at a time."""

    async def connect(self) -> Self:
        """Ask the servers what they are, and let them go on if somebody left them standing still.

        Weights that another run left there are called version -1: the run's own have to follow. All servers have to be
        there. EndpointUnavailableError, ConfigError, ModelNotFoundError.
        """
        import aiohttp

        self._session = aiohttp.ClientSession(
            headers=key_headers(self._key_var), connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.5)
        )
        try:
            found = await all_of(server_at(url, self._model, self._session, self._key_var) for url in self._urls)
            self._servers = [server for server, _ in found]
            if named := [version for _, version in found if version is not None]:
                self._version = max(named) if self._owned else UNKNOWN
            await all_of(server.name(self._version) for server in self._servers)
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Close the connections, and end what is waited for. The servers stay as they are."""
        self._held.close()
        servers, self._servers = self._servers, []
        for server in servers:
            server.lost = EndpointUnavailableError("the sampler was closed")
            for task in server.running:
                task.cancel()
            await server.close()
        if self._session is not None:
            await self._session.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- the protocol -----------------------------------------------------------------------------------------

    async def generate(self, token_ids: list[int], params: SamplingArgs) -> Completion:
        """Continue `token_ids`, on another server if one fails meanwhile.

        ConfigError for arguments that make logprobs other than the policy's, OverlongPromptError,
        EndpointUnavailableError when no server is left. A reply that fills the context ends with "length".
        """
        sampling = self._within_context(read_sampling(params), len(token_ids))
        return await self._ask(lambda server: server.generate(token_ids, sampling, self._version))

    async def score(self, token_ids: list[int]) -> list[float]:
        """The logprob of each token given those before it, at temperature 1; the first is 0."""
        return await self._ask(lambda server: server.score(token_ids, self._version))

    async def pause(self) -> None:
        """All servers stand still between two tokens. Requests, running and new ones, wait."""
        async with self._changing:
            self._paused = True
            await self._on_all(self._serving(), lambda server: server.pause())

    async def resume(self) -> None:
        """Go on after `pause`."""
        async with self._changing:
            self._paused = False
            await self._on_all(self._serving(), lambda server: server.resume())

    async def update_weights(self, source: Weights | Path | str | Mapping[str, Any], version: int) -> None:
        """Load weights into all servers between two tokens, and name them `version`.

        A server that fails is left out. EndpointUnavailableError if none is left; ConfigError for weights that do not
        fit, and for tensors without a transfer: then nothing has changed.
        """
        weights = _weights(source, version)
        if weights.folder is None and self._transfer is None:
            raise ConfigError(
                "servers load weights from folders, and these are tensors",
                hint="Publish them (verifiers.train.weights), or give the sampler a transfer.",
            )
        async with self._changing:
            servers = self._servers
            try:
                if not self._paused or len(self._serving()) < len(servers):
                    servers = await self._on_all(servers, lambda server: server.pause(), readmit=True)
                with nullcontext() if weights.folder is None else in_use(weights.folder):
                    servers = await self._load(servers, weights, version)
                    self._version = version
                    self._keep(weights)
            finally:
                if not self._paused:
                    await self._on_all(servers, lambda server: server.resume())
        self._check_any()

    def info(self) -> EngineInfo:
        """The model, the smallest context of the servers, the present policy version."""
        context = min((server.context for server in self._servers), default=0)
        context = min(context, self._max_context or context)
        first = self._servers[0] if self._servers else None
        name = self._model if first is None else first.model
        return EngineInfo(name, self._vocabulary or (first.vocabulary if first else 0), context, self._version)

    def health(self) -> list[ServerHealth]:
        """How each server is."""
        return [
            ServerHealth(server.url, server.lost is None, str(server.lost or ""), len(server.running))
            for server in self._servers
        ]

    # --- one request ------------------------------------------------------------------------------------------

    def _within_context(self, sampling: Sampling, length: int) -> Sampling:
        """No more tokens than `max_context` leaves room for; their own limit the servers look at themselves."""
        if self._max_context is None:
            return sampling
        if length >= self._max_context:
            raise OverlongPromptError(
                f"the prompt has {length} tokens and the context {self._max_context}",
                hint="Raise sampler.max_context, or shorten the prompt.",
            )
        room = self._max_context - length
        return replace(sampling, max_tokens=min(sampling.max_tokens or room, room))

    async def _ask(self, call: Callable[[Server], Awaitable[T]]) -> T:
        failed: Error | None = None
        for _ in range(len(self._servers) + 1):
            serving = self._serving() or await self._readmit()
            server = min(serving, key=lambda one: len(one.running))
            try:
                return await _run_on(server, call)
            except EndpointUnavailableError as error:
                self._lose(server, error)
                failed = error
        assert failed is not None
        raise failed

    def _serving(self) -> list[Server]:
        return [server for server in self._servers if server.lost is None]

    def _lose(self, server: Server, error: Error) -> None:
        """Ask a server no more, and give up what it still owes: others are asked for it."""
        if server.lost is not None:
            return
        server.lost = error
        self.failures[server.url] += 1
        logger.warning("%s is left out until the next update of the weights: %s", server.url, error)
        for task in server.running:
            task.cancel()
        server.give_up()

    def _keep(self, weights: Weights) -> None:
        """Hold on to the folder of the weights for servers that lose them, and let go of the one before."""
        held = ExitStack()
        if weights.folder is not None:
            held.enter_context(in_use(weights.folder))
        self._held.close()
        self._held, self._latest = held, weights if weights.folder is not None else None

    async def _readmit(self) -> list[Server]:
        """Take in servers that answer again, as they should be. Raises if there are none."""
        if not self._servers:
            raise EndpointUnavailableError(
                "the sampler is closed, or was never connected", hint="Use it as a context, or call connect()."
            )
        async with self._changing:
            for server in self._servers:
                if server.lost is not None:
                    try:
                        await self._bring_back(server)
                    except Error as error:
                        server.lost = error
        self._check_any()
        return self._serving()

    async def _bring_back(self, server: Server) -> None:
        """Give a server the present weights if it has others, and let it do what the fleet does: it may have been
        started again, or have missed a pause or its end. EndpointUnavailableError if the weights are in no folder."""
        await server.pause()
        if await server.version() != self._version:
            if self._latest is None:
                raise EndpointUnavailableError(f"{server.url} was started again: the next update brings its weights")
            await server.load(self._latest, self._version)
        if not self._paused:
            await server.resume()
        server.lost = None

    def _check_any(self) -> None:
        if not self._serving():
            said = "; ".join(str(server.lost) for server in self._servers)
            raise EndpointUnavailableError(
                f"no inference server is left: {said}",
                hint="Start the servers again; the run can be continued from its last checkpoint.",
            )

    # --- all servers ------------------------------------------------------------------------------------------

    async def _on_all(
        self, servers: Sequence[Server], call: Callable[[Server], Awaitable[None]], *, readmit: bool = False
    ) -> list[Server]:
        """Call each; those that could. The others are lost; with `readmit` those that could are no more."""
        outcomes = await asyncio.gather(*(call(server) for server in servers), return_exceptions=True)
        done = []
        for server, outcome in zip(servers, outcomes, strict=True):
            if isinstance(outcome, Error) and not isinstance(outcome, ConfigError):
                self._lose(server, outcome)
            elif outcome is not None:
                raise outcome
            else:
                done.append(server)
                if readmit:
                    server.lost = None
        return done

    async def _load(self, servers: list[Server], weights: Weights, version: int) -> list[Server]:
        if weights.folder is not None:
            return await self._on_all(servers, lambda server: server.load(weights, version))
        assert self._transfer is not None
        try:
            await self._transfer.send(servers, weights, version)
        except ConfigError:  # before anything was sent
            raise
        except Error as error:  # what they have now is not known
            for server in servers:
                self._lose(server, error)
            return []
        return servers


async def _run_on(server: Server, call: Callable[[Server], Awaitable[T]]) -> T:
    """The answer of one server. EndpointUnavailableError also if it was given up meanwhile."""
    task = asyncio.ensure_future(call(server))
    server.running.add(task)
    try:
        return await task
    except asyncio.CancelledError:
        this = asyncio.current_task()
        if server.lost is None or (this is not None and this.cancelling()):
            raise
        raise EndpointUnavailableError(f"{server.url} was given up: {server.lost}") from server.lost
    finally:
        server.running.discard(task)


def key_headers(key_var: str | None) -> dict[str, str]:
    """What is sent with each request. MissingKeyError for a variable without a key."""
    if key_var is None:
        return {}
    if not (key := os.environ.get(key_var)):
        raise MissingKeyError(key_var, hint=f"export {key_var}=…, or leave sampler.api_key_var out.")
    return {"Authorization": f"Bearer {key}"}


def _weights(source: Weights | Path | str | Mapping[str, Any], version: int) -> Weights:
    if isinstance(source, Weights):
        return source
    if isinstance(source, Mapping):
        return Weights(version, tensors=dict(source))
    folder = Path(source)
    return Weights(version, folder=folder, adapter=is_adapter(folder))
