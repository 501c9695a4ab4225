"""The working end of a link: one environment, one client, and the ordinary engine for the groups that arrive.

Nothing here knows how messages travel: `post` sends one, `handle` takes one. `main` connects it to a socket.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

import orjson

from verifiers.clients.cache import CachedClient, through_cache
from verifiers.clients.client import as_client
from verifiers.envs.environment import Environment, sampling_defaults
from verifiers.envs.load import load_environment
from verifiers.envs.provenance import facts_of, package_version
from verifiers.envs.registry import teardown
from verifiers.errors import ConfigError, DatasetError, EnvironmentLoadError, ProtocolError, as_error
from verifiers.rollouts.encoding import encode_record, to_json
from verifiers.rollouts.engine import Engine, EngineOptions
from verifiers.rollouts.plan import PlannedRollout, RowReader, Rows, task_id_of
from verifiers.rollouts.workers.failures import failed_record
from verifiers.rollouts.workers.link import MAX_FRAME
from verifiers.rollouts.workers.messages import (
    Cancel,
    Counts,
    Done,
    Failed,
    FromWorker,
    Generated,
    GetRows,
    Hello,
    Load,
    LogLevel,
    Note,
    Play,
    Ready,
    RowChunk,
    Sealed,
    Stop,
    ToWorker,
    error_to_dict,
)
from verifiers.rollouts.workers.options import options_from_dict
from verifiers.rollouts.workers.rows import carried
from verifiers.types import ClientConfig, RolloutOutput, State

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
"""How often the event loop says that it has its turn."""

CHUNK_BYTES = 1 << 20
"""Rows are sent in messages of about this size."""

_LARGEST_RECORD = MAX_FRAME - (1 << 16)


class Worker:
    """Answers messages, in the event loop that it was made in. Begins with Hello."""

    def __init__(self, post: Callable[[FromWorker], None]) -> None:
        self._post = post
        self._load: Load | None = None
        self._env: Environment | None = None
        self._engine: Engine | None = None
        self._rows: Rows | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._stopping = asyncio.Event()
        self._request_of: dict[str, int] = {}
        self._counted: tuple[dict[str, int], dict[str, int]] = ({}, {})
        self._turn = time.monotonic()
        self._background: set[asyncio.Task[None]] = set()
        self._spawn(self._tick())
        post(Hello(version=package_version()))

    # --- signs of life ----------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        while True:
            self._turn = time.monotonic()
            await asyncio.sleep(TICK_SECONDS)

    @property
    def blocked(self) -> float:
        """Seconds since the event loop last had its turn. Read by other threads."""
        return time.monotonic() - self._turn

    @property
    def in_flight(self) -> int:
        """Requests that are being played."""
        return len(self._tasks)

    # --- messages ---------------------------------------------------------------------------------------------

    def handle(self, message: ToWorker) -> None:
        """Take one message. Never raises: what goes wrong is posted."""
        match message:
            case Load():
                self._spawn(self._loading(message))
            case LogLevel():
                logging.getLogger("verifiers").setLevel(message.level)
            case GetRows():
                self._spawn(self._sending_rows(message))
            case Play():
                task = asyncio.create_task(self._playing(message))
                self._tasks[message.request] = task
                task.add_done_callback(lambda _: self._tasks.pop(message.request, None))
            case Cancel():
                if message.request in self._tasks:
                    self._tasks[message.request].cancel()
            case Stop():
                self._stopping.set()
            case _:
                self._post(Failed(None, error_to_dict(ProtocolError(f"a worker has no answer to {message!r:.80}"))))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def run(self) -> None:
        """Until Stop: then what is in flight is cancelled and cleaned up, and the environment torn down."""
        await self._stopping.wait()
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._engine is not None:
            await self._engine.client.close()
        if self._env is not None:
            await teardown(self._env)
        for task in list(self._background):
            task.cancel()

    # --- loading ----------------------------------------------------------------------------------------------

    async def _loading(self, load: Load) -> None:
        try:
            self._load_now(load)
        except BaseException as error:  # boundary: importing and loading run the author's code
            typed = as_error(error, EnvironmentLoadError, f"loading {load.env_id}")
            logger.debug("%s did not load", load.env_id, exc_info=error)
            self._post(Failed(None, error_to_dict(typed)))

    def _load_now(self, load: Load) -> None:
        logging.getLogger("verifiers").setLevel(load.log_level)
        if load.paths is not None:
            sys.path[:] = load.paths
        env = load_environment(load.env_id, **load.env_args)
        env.set_kwargs(**load.extra_env_kwargs)
        client = through_cache(as_client(ClientConfig(**load.client)), load.cache, load.served_by)
        options = EngineOptions(**options_from_dict(load.options), on_log=lambda text: self._post(Note(text)))
        self._load, self._env = load, env
        self._engine = _TellingEngine(self._generated, env, client, load.model, load.sampling_args, options)
        # `joins`: whether rollouts of a task must be played together.
        facts = {**facts_of(env, load.env_id), "env_id": env.env_id, "joins": self._engine.joins}
        facts["sampling_args"] = sampling_defaults(env)
        self._post(Ready(orjson.Fragment(to_json(facts))))

    # --- rows -------------------------------------------------------------------------------------------------

    def _own_rows(self) -> Rows:
        if self._rows is None:
            assert self._env is not None and self._load is not None
            of_split = self._env.get_dataset if self._load.split == "train" else self._env.get_eval_dataset
            self._rows = of_split(self._load.num_examples, self._load.shuffle_seed)
            self._env.mention_problems()  # again, since the columns are known only now
        return self._rows

    async def _sending_rows(self, asked: GetRows) -> None:
        try:
            rows = self._own_rows()
            chunk: list[bytes] = []
            exact: list[bool] = []
            size = 0
            for position, row in enumerate(_iterated(rows)):
                line, whole = carried(dict(row), position)
                chunk.append(line)
                exact.append(whole)
                size += len(line)
                if size > CHUNK_BYTES:
                    self._post_rows(asked.request, chunk, exact, last=False)
                    chunk, exact, size = [], [], 0
                    await asyncio.sleep(0)
            self._post_rows(asked.request, chunk, exact, last=True)
        except BaseException as error:  # boundary: making the data set runs the author's code
            self._post(Failed(asked.request, error_to_dict(as_error(error, DatasetError, "making the data set"))))

    def _post_rows(self, request: int, lines: list[bytes], exact: list[bool], *, last: bool) -> None:
        self._post(RowChunk(request, [orjson.Fragment(line) for line in lines], exact, last))

    # --- playing ----------------------------------------------------------------------------------------------

    async def _playing(self, play: Play) -> None:
        assert self._engine is not None, "Play before Ready"
        rows = {planned.position: planned for planned in play.rollouts}
        self._request_of.update({planned.rollout_id: play.request for planned in play.rollouts})

        def on_sealed(record: RolloutOutput, _: State) -> None:
            self._post(self._sealed(play, record, taken))

        try:
            taken = _Taken({position: self._row(play, planned) for position, planned in rows.items()})
            await self._engine.play(taken, play.rollouts, on_sealed)
            self._count()
            self._post(Done(play.request))
        except asyncio.CancelledError:
            self._post(Done(play.request, cancelled=True))
        except BaseException as error:  # boundary: what ends a run in-process ends it through the pool
            self._post(Failed(play.request, error_to_dict(as_error(error, ProtocolError, "playing"))))
        finally:
            for planned in play.rollouts:
                self._request_of.pop(planned.rollout_id, None)

    def _generated(self, rollout_id: str) -> None:
        if rollout_id in self._request_of:
            self._post(Generated(self._request_of[rollout_id], rollout_id))

    def _count(self) -> None:
        """Tell what the client counted since the last time."""
        assert self._engine is not None
        client = self._engine.client
        retried = dict(client.retried)
        cache = client.counts.to_dict() if isinstance(client, CachedClient) else {}
        if (retried, cache) != self._counted:
            earlier, self._counted = self._counted, (retried, cache)
            self._post(Counts(_since(retried, earlier[0]), _since(cache, earlier[1]) or None))

    def _row(self, play: Play, planned: PlannedRollout) -> dict[str, Any]:
        """The task of a rollout: as sent, or from the own data if JSON can not carry it; checked by its hash."""
        sent = play.rows.get(str(planned.position))
        row = dict(sent) if sent is not None else self._at(planned.position)
        if task_id_of(row) != planned.task_id:
            raise ConfigError(
                f"the worker's row {planned.position} is not the one that was planned (task {planned.task_id[:12]})",
                hint="The data set of the environment must be the same each time it is loaded: seed what is random.",
            )
        return row

    def _at(self, position: int) -> dict[str, Any]:
        rows = self._own_rows()
        return dict(rows[position]) if position < len(rows) else {}

    def _sealed(self, play: Play, record: RolloutOutput, rows: Rows) -> Sealed:
        line = encode_record(record)
        if len(line) > _LARGEST_RECORD:
            planned = next(item for item in play.rollouts if item.rollout_id == record["rollout_id"])
            error = ProtocolError(
                f"its record has {len(line) / 1e6:.0f} MB, and {MAX_FRAME / 1e6:.0f} MB is the most that is sent",
                hint="Save less (--state-columns, images by reference), or play it without workers.",
            )
            line = encode_record(failed_record(rows[planned.position], planned, error))
        return Sealed(play.request, record["rollout_id"], orjson.Fragment(line))


class _TellingEngine(Engine):
    """The engine, telling when a rollout has been generated."""

    def __init__(self, told: Callable[[str], None], *args: Any) -> None:
        super().__init__(*args)
        self._told = told

    async def generate(self, rows: RowReader, planned: PlannedRollout) -> State:
        """See `Engine.generate`."""
        state = await super().generate(rows, planned)
        self._told(planned.rollout_id)
        return state


class _Taken(dict[int, Any]):
    """The rows of one request by position."""


def _since(now: Mapping[str, int], earlier: Mapping[str, int]) -> dict[str, int]:
    return {name: count - earlier.get(name, 0) for name, count in now.items() if count != earlier.get(name, 0)}


def _iterated(rows: Any) -> Iterable[Any]:
    # A data set is read in blocks when it is iterated; by position each row costs 0.1 ms.
    return rows if hasattr(rows, "__iter__") else (rows[position] for position in range(len(rows)))
