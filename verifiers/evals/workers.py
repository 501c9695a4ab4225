"""Playing an evaluation in worker processes, in a virtual environment of its own if asked for. Loaded when it is."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from verifiers.clients.model_file import cache_dir
from verifiers.envs.installed import installed_package
from verifiers.envs.load import module_name, split_id
from verifiers.envs.origin import direct_url
from verifiers.errors import ConfigError, EnvironmentInstallError
from verifiers.evals.lookup import find_environment
from verifiers.rollouts.engine import EngineOptions, OnSealed
from verifiers.rollouts.plan import PlannedRollout, Rows
from verifiers.rollouts.workers.cluster import RayOptions, connected
from verifiers.rollouts.workers.link import Link
from verifiers.rollouts.workers.messages import Load
from verifiers.rollouts.workers.options import options_to_dict
from verifiers.rollouts.workers.pool import PoolOptions, WorkerPool
from verifiers.rollouts.workers.process import ProcessLink
from verifiers.rollouts.workers.venv import ensure_venv
from verifiers.rollouts.workers.wheels import Source
from verifiers.types.config import EvalConfig

_EXTRAS: Mapping[str, Sequence[str]] = {"anthropic_messages": ("anthropic",)}
"""What of this package the client of a dialect needs in a worker."""


Split = Literal["train", "eval"]


class Workers:
    """A pool of workers that has been started."""

    def __init__(
        self, pool: WorkerPool, facts: Mapping[str, Any], rows: Rows, *, cached: bool, ends: AsyncExitStack
    ) -> None:
        self.facts = facts
        self.rows = rows
        self.run = pool.run
        self.joins = bool(facts["joins"])
        self.retried: Mapping[str, int] = pool.retried
        self.cache = pool.cache if cached else None
        self._pool = pool
        self._ends = ends

    async def play(self, rows: Rows, plan: Sequence[PlannedRollout], on_sealed: OnSealed) -> str | None:
        """See `WorkerPool.play`."""
        return await self._pool.play(rows, plan, on_sealed)

    async def close(self) -> None:
        """End the workers, and the connection to their machines."""
        await self._ends.aclose()


async def open_workers(
    config: EvalConfig,
    options: EngineOptions,
    *,
    cache: str | bool = False,
    served_by: str | None = None,
    split: Split = "eval",
    lasting: bool = False,
) -> Workers:
    """Start workers for an evaluation: in a virtual environment of its own, or on a Ray cluster, if asked for.

    split: the tasks that are played: those for evaluation, or those to learn from. lasting: see `PoolOptions`.
    cache, served_by: the response cache of their clients, see `verifiers.clients.cache.through_cache`.
    """
    workers = max(1, config.workers)
    load = replace(_load(config, options, workers, cache, served_by), split=split)
    pool_options = PoolOptions(
        max_concurrent=options.max_concurrent, run_limit=options.run_limit, lasting=lasting
    )
    async with AsyncExitStack() as ends:
        if config.ray is None:
            connect = await _processes(config, options, load)
        else:
            cluster = await ends.enter_async_context(connected(_on_cluster(config), load))
            connect, workers = cluster.link, cluster.workers
        pool = WorkerPool(connect, workers, pool_options, options.on_log)
        ends.push_async_callback(pool.close)
        facts = await pool.start()
        return Workers(pool, facts, await pool.rows(), cached=config.cache, ends=ends.pop_all())


async def _processes(config: EvalConfig, options: EngineOptions, load: Load) -> Callable[[int], Link]:
    """What starts the workers of this machine."""
    python, environ = sys.executable, None
    if config.isolated:
        python, environ = await _isolated(config, options)

    def connect(number: int) -> ProcessLink:
        return ProcessLink(load, python, number=number, isolated=config.isolated, environ=environ)

    return connect


def _on_cluster(config: EvalConfig) -> RayOptions:
    """What each worker gets on the cluster. An environment that is not installed is sent there."""
    assert config.ray is not None
    if config.isolated:
        raise ConfigError(
            "--isolated makes a virtual environment on this machine, and --ray plays on others",
            hint='Have Ray make them: --ray-options \'{"runtime_env": {"uv": ["PACKAGE==VERSION"]}}\'',
        )
    found = find_environment(config.env_id, config.env_dir_path)
    folder = None
    if found.local or _editable(split_id(config.env_id)[1].replace("_", "-")) is not None:
        spec = importlib.util.find_spec(module_name(config.env_id))
        assert spec is not None and spec.origin is not None, "find_environment has found it"
        module = Path(spec.origin)
        folder = (module.parent.parent if module.name == "__init__.py" else module.parent).resolve()
    return RayOptions.read(config.ray, config.ray_options, workers=config.workers or None, folder=folder)


def _load(
    config: EvalConfig, options: EngineOptions, workers: int, cache: str | bool, served_by: str | None
) -> Load:
    crossing = options_to_dict(options)
    if options.max_concurrent > 0:
        crossing["max_concurrent"] = -(-options.max_concurrent // workers)
    return Load(
        env_id=config.env_id,
        env_args=config.env_args,
        extra_env_kwargs=config.extra_env_kwargs,
        paths=None if config.isolated else list(sys.path),
        client=config.client_config.model_dump(mode="json"),
        cache=cache,
        served_by=served_by,
        model=config.model,
        sampling_args=config.sampling_args,
        options=crossing,
        num_examples=config.num_examples,
        shuffle_seed=config.shuffle_seed if config.shuffle else None,
        log_level=logging.getLogger("verifiers").getEffectiveLevel(),
    )


async def _isolated(config: EvalConfig, options: EngineOptions) -> tuple[str, dict[str, str]]:
    """The interpreter of the environment's own virtual environment, and its variables."""
    extras = _EXTRAS.get(config.client_config.client_type, ())
    venv = await ensure_venv(_source(config), cache_dir(), extras=extras, on_log=options.on_log)
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    home = Path(venv.python).parents[1]
    path = os.pathsep.join([str(home / "bin"), *filter(None, [os.environ.get("PATH")])])
    return venv.python, {**environ, "VIRTUAL_ENV": str(home), "PATH": path}


def _source(config: EvalConfig) -> Source:
    """What the environment is installed from: its folder, or the installed distribution."""
    name = split_id(config.env_id)[1].replace("_", "-")
    if config.hub_wheels:
        return Source(name, hub_wheels=tuple(config.hub_wheels))
    found = find_environment(config.env_id, config.env_dir_path)
    folder = found.path if found.local else _editable(name)
    if folder is None:
        return Source(name)
    if not (folder / "pyproject.toml").is_file():
        raise EnvironmentInstallError(
            f"{folder} has no pyproject.toml, so nothing says what {config.env_id} needs",
            hint="Add one (vf-init writes one), or play it without --isolated.",
        )
    return Source(name, folder.resolve())


def _editable(name: str) -> Path | None:
    """The folder of a distribution that is installed as an editable one."""
    distribution = installed_package(name)
    url = direct_url(distribution) if distribution is not None else {}
    editable = bool((url.get("dir_info") or {}).get("editable"))
    return Path(unquote(urlsplit(url["url"]).path)) if editable else None
