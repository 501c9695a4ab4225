"""Who plays the rollouts of an evaluation: the engine in this process, or workers in processes of their own.

Both give the facts of the environment, its rows, and the same records. With workers this process loads neither the
environment nor its data set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from verifiers.clients.cache import CacheCounts, CachedClient, through_cache
from verifiers.clients.client import as_client
from verifiers.envs.load import load_environment
from verifiers.envs.provenance import facts_of
from verifiers.rollouts.engine import Engine, EngineOptions, OnSealed
from verifiers.rollouts.plan import PlannedRollout, Rows
from verifiers.scopes import Scope

if TYPE_CHECKING:
    from verifiers.types.config import EvalConfig


class Player(Protocol):
    """What a run needs. `retried` and `cache` are live; `cache` is None without one.

    run: what the run has spent, and its limit. joins: whether the records of a group are final only together.
    """

    facts: Mapping[str, Any]
    rows: Rows
    run: Scope
    joins: bool
    retried: Mapping[str, int]
    cache: CacheCounts | None

    async def play(self, rows: Rows, plan: Sequence[PlannedRollout], on_sealed: OnSealed) -> str | None:
        """See `Engine.play`."""
        ...

    async def close(self) -> None:
        """Let go of everything."""
        ...


async def open_player(config: EvalConfig, options: EngineOptions) -> Player:
    """The player that an evaluation asks for, with its environment loaded."""
    if not config.isolated and config.ray is None and config.workers == 0:
        return InProcess(config, options)
    # Here, because few runs use workers and every run would pay for loading what starts them.
    from verifiers.evals.workers import open_workers

    return await open_workers(config, options, cache=_cache_of(config), served_by=_served_by(config))


class InProcess:
    """The engine, in this process."""

    def __init__(self, config: EvalConfig, options: EngineOptions) -> None:
        env = load_environment(config.env_id, **config.env_args)
        env.set_kwargs(**config.extra_env_kwargs)
        self.rows: Rows = env.get_eval_dataset(config.num_examples, config.shuffle_seed if config.shuffle else None)
        env.mention_problems()  # again: the columns are known only now where the data set is made at first use
        self.facts: Mapping[str, Any] = facts_of(env, config.env_id)
        self._client = through_cache(as_client(config.client_config), _cache_of(config), _served_by(config))
        self.retried: Mapping[str, int] = self._client.retried
        self.cache = self._client.counts if isinstance(self._client, CachedClient) else None
        self._engine = Engine(env, self._client, config.model, config.sampling_args, options)
        self.run = self._engine.run
        self.joins = self._engine.joins

    async def play(self, rows: Rows, plan: Sequence[PlannedRollout], on_sealed: OnSealed) -> str | None:
        """See `Engine.play`."""
        return await self._engine.play(rows, plan, on_sealed)

    async def close(self) -> None:
        """Close the client."""
        await self._client.close()


def _cache_of(config: EvalConfig) -> str | bool:
    return config.cache and (config.cache_dir or True)


def _served_by(config: EvalConfig) -> str | None:
    """What stands for the address of the embedded model, whose port is another one each time."""
    if not config.model_is_embedded:
        return None
    file = (config.endpoint_id or "").partition(":")[2]
    if not file:
        return f"local:{config.model}"
    path = Path(file).resolve()
    stats = [one.stat() for one in (sorted(path.glob("*")) if path.is_dir() else [path])]
    return f"local:{path}:{sum(stat.st_size for stat in stats)}:{max(stat.st_mtime_ns for stat in stats)}"
