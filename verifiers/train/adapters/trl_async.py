"""TRL's experimental `AsyncGRPOTrainer` learns from an environment: the worker that fills its queue.

    worker = RolloutWorker(env, client, "Qwen/Qwen3-4B", num_generations=8, sampling={"max_tokens": 512})
    trainer = AsyncGRPOTrainer(model="Qwen/Qwen3-4B", args=AsyncGRPOConfig(...), rollout_worker=worker, ...)

The trainer writes its weights into the vLLM server that `client` asks, and drops samples that are too many versions
old. Unlike `rollout_func` this seam takes forks (each row is a sample), our advantages, and versions. What failed is
in no group. Written for TRL 1.16, whose trainer needs a GPU and a kernel from a model hub: the worker is tested alone.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import random
import time
import zlib
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from verifiers.clients.client import as_client
from verifiers.envs.environment import Environment
from verifiers.errors import ConfigError, TrainingError
from verifiers.loops import Background
from verifiers.rollouts.engine import Engine
from verifiers.rollouts.source import GroupResult, GroupSource, RolloutRequest
from verifiers.train.advantages import has_signal, make_algorithm
from verifiers.train.config import AdvantageConfig
from verifiers.train.evidence import Checks
from verifiers.train.groups import Algorithm, Group, group_of
from verifiers.train.merge import MergeOptions
from verifiers.train.players import options_of
from verifiers.train.rows import Row
from verifiers.types import SamplingArgs

POLL_S = 0.02
"""How often a full queue is looked at again."""


@dataclass(slots=True)
class Sample:
    """One row as the trainer takes it: the fields of TRL's `RolloutSample`."""

    prompt: Any
    completion: Any
    input_ids: Any
    """int64 [T]."""
    completion_mask: Any
    """int64 [T], 1 on sampled tokens."""
    old_log_probs: Any
    """float32 [T]."""
    advantage: float
    model_version: int
    group_id: int
    metrics: dict[str, float] = field(default_factory=dict)
    enqueued_at: float | None = None


class RolloutWorker:
    """TRL's `RolloutWorkerProtocol` over an environment.

    client: of the server whose weights the trainer replaces; it has to report token ids and logprobs. model: its name
        there. advantage: how groups are compared. max_rollouts: in flight. buffer: samples that wait at most; the
        worker starts no group while so many do. max_lag: groups of a policy that is more versions old are cancelled.
        checks: what the server's token evidence is held against (`verifiers.train.evidence.checks_with`).
    """

    def __init__(
        self,
        env: Environment,
        client: Any,
        model: str,
        *,
        num_generations: int = 8,
        sampling: SamplingArgs | None = None,
        advantage: AdvantageConfig | None = None,
        max_rollouts: int = 128,
        buffer: int = 1024,
        max_lag: int | None = None,
        max_retries: int = 0,
        straggler_seconds: float | None = None,
        seed: int = 0,
        checks: Checks | None = None,
    ) -> None:
        self.rollout_buffer: queue.Queue[Any] = queue.Queue()
        self.metrics_queue: queue.Queue[Any] = queue.Queue()
        self._rows = [dict(row) for row in env.get_dataset()]
        if not self._rows:
            raise ConfigError(f"{type(env).__name__} has no tasks to learn from", hint="Give it a `dataset`.")
        self._engine = Engine(env, as_client(client), model, sampling, options_of(seed, max_retries))
        self._algorithm: Algorithm = make_algorithm(advantage or AdvantageConfig())
        self._limits = {"max_rollouts": max_rollouts, "straggler_seconds": straggler_seconds, "max_lag": max_lag}
        self._size, self._buffer, self._seed = num_generations, buffer, seed
        self._checks = checks or Checks()
        self._version = 0
        self._numbers: dict[str, int] = {}
        self._source: GroupSource | None = None
        self._background: Background | None = None
        self._work: Future[None] | None = None
        self._alive = time.monotonic()

    # --- the protocol ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to play."""
        if self._background is None:
            self._background = Background("verifiers-trl-worker")
            self._alive = time.monotonic()
            self._work = self._background.start(self._produce())

    def stop(self) -> None:
        """Stop playing, with the cleanup of what is under way."""
        if self._background is not None:
            self._background.close()
            self._background = self._source = None

    def update_model_version(self, model_version: int) -> None:
        """The server has new weights: groups that start now are theirs, and too old ones are cancelled."""
        self._version = model_version
        if self._background is not None and self._source is not None:
            self._background.run(self._source.set_version(model_version))

    def check_health(self, stale_after_s: float) -> None:
        """Raise what ended the worker, or TrainingError if no group has ended for so long."""
        if self._work is not None and self._work.done() and not self._work.cancelled():
            error = self._work.exception()
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            raise TrainingError(f"the rollout worker has ended: {error}") from error
        idle = time.monotonic() - self._alive
        if self._work is not None and idle > stale_after_s:
            raise TrainingError(
                f"no group has ended for {idle:.0f} s",
                hint="Set straggler_seconds, so that a rollout that hangs holds nobody up, or wait for longer.",
            )

    # --- playing --------------------------------------------------------------------------------------------------

    async def _produce(self) -> None:
        async with (
            GroupSource(self._rows, lambda _: self._engine, **self._limits) as source,  # type: ignore[arg-type]
            asyncio.TaskGroup() as tasks,
        ):
            self._source = source
            tasks.create_task(self._submit(source))
            async for result in source.results():
                await self._ended(result, source)

    async def _submit(self, source: GroupSource) -> None:
        for number, task_id in enumerate(self._order(source.task_ids)):
            while self.rollout_buffer.qsize() >= self._buffer:
                self._alive = time.monotonic()  # the trainer is slower: all is well here
                await asyncio.sleep(POLL_S)
            group_id = f"{number}/{task_id}"
            self._numbers[group_id] = number
            seed = zlib.crc32(f"{self._seed}/{number}".encode())
            await source.submit(
                RolloutRequest(task_id, group_id, self._size, seed, policy_version=self._version)
            )

    def _order(self, task_ids: list[str]) -> Iterator[str]:
        """All tasks again and again, in an order that the seed decides."""
        for epoch in itertools.count():
            chosen = list(task_ids)
            random.Random(f"{self._seed}/{epoch}").shuffle(chosen)
            yield from chosen

    async def _ended(self, result: GroupResult, source: GroupSource) -> None:
        if (error := (await source.health()).error) is not None:
            raise error
        self._alive = time.monotonic()
        group = group_of(result, MergeOptions(version=result.request.policy_version, checks=self._checks))
        rows = self._algorithm(group)
        records = {member.rollout_id: member.record for member in result.members}
        number = self._numbers.pop(group.group_id)
        if has_signal(rows):
            for row in rows:
                self.rollout_buffer.put_nowait(self._sample(row, number, group, records[row.rollout_id] or {}))
        self.metrics_queue.put_nowait(_figures(group, bool(rows)))

    def _sample(self, row: Row, number: int, group: Group, record: Mapping[str, Any]) -> Sample:
        import numpy as np

        values = {value for value, on in zip(row.advantages or [], row.mask, strict=True) if on}
        if len(values) != 1:
            raise ConfigError(
                "TRL takes one advantage for a row, and the tokens of this one have several",
                hint="Leave advantage.step_rewards out, or train with vf-train.",
            )
        return Sample(
            prompt=_plain(record.get("prompt")),
            completion=_plain(record.get("completion")),
            input_ids=np.array(row.tokens, np.int64),
            completion_mask=np.array(row.mask, np.int64),
            old_log_probs=np.array(row.logprobs, np.float32),
            advantage=values.pop(),
            model_version=group.version,
            group_id=number,
            metrics={"reward": float(row.reward or 0.0), **row.metrics},
            enqueued_at=time.time(),
        )


def _figures(group: Group, trained: bool) -> dict[str, tuple[float, float]]:
    """Shares, as numerator and denominator: of rollouts by how they ended, and of groups that gave samples."""
    figures = {"environment/groups_trained": (float(trained), 1.0)}
    for member in group.members:
        name = f"environment/{member.outcome}"
        figures[name] = (figures.get(name, (0.0, 0.0))[0] + 1.0, float(len(group.members)))
    return figures


def _plain(messages: Any) -> list[dict[str, Any]]:
    """Messages as dicts; a text of completion mode as the user's."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return [dict(message) for message in messages or ()]
