"""Who plays an environment's rollouts in training: the engine in this process, or workers in processes of their own.

    async with opened(config.env[0], found, served, options) as playing:
        source = GroupSource(playing.rows, lambda request: playing.player)

Records carry the turns, which hold the token evidence. Each rollout is taken as it ends: what the end of its group
would add is what advantages are made of later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from verifiers.clients.base import Client
from verifiers.clients.rendering import Renderer
from verifiers.clients.token_in import TEMPLATE_ARGUMENTS
from verifiers.clients.wire import native_message
from verifiers.errors import ConfigError, ModelError
from verifiers.evals.lookup import FoundEnvironment
from verifiers.evals.workers import open_workers
from verifiers.rollouts.engine import Engine, EngineOptions
from verifiers.rollouts.plan import Rows
from verifiers.rollouts.source import Player
from verifiers.train.config import EnvironmentConfig
from verifiers.train.environments import Split, check_asked, loaded
from verifiers.train.rows import EnvRef
from verifiers.types import ClientConfig, SamplingArgs
from verifiers.types.config import EvalConfig

EVIDENCE = ("trajectory", "sampling_args")
"""The columns of a record that hold its turns, and what they are held against."""


@dataclass(frozen=True, slots=True)
class Served:
    """How rollouts reach the policy: by a client in this process, and by an endpoint from others.

    endpoint: None where there is none; then every environment is played in this process. renderer: writes prompts by
    the policy's template, which is tried on the first task; None tries nothing.
    """

    client: Client
    model: str
    endpoint: ClientConfig | None = None
    renderer: Renderer | None = None


@dataclass(frozen=True, slots=True)
class Playing:
    """An environment that is ready to be played: its tasks, who plays them, its exact bits."""

    rows: Rows
    player: Player
    ref: EnvRef
    facts: Mapping[str, Any] = field(default_factory=dict)


def options_of(seed: int, max_retries: int) -> EngineOptions:
    """How rollouts are played for training. How many at a time is the source's business."""
    return EngineOptions(max_retries=max_retries, seed=seed, state_columns=EVIDENCE, whole_groups=False)


@asynccontextmanager
async def opened(
    config: EnvironmentConfig,
    found: FoundEnvironment,
    served: Served,
    sampling: SamplingArgs,
    options: EngineOptions,
    split: Split = "train",
) -> AsyncIterator[Playing]:
    """Load an environment, here or in workers, for as long as the block lasts.

    ConfigError for what would make every rollout fail: sampling arguments that the policy's sampler refuses, a policy
    without a chat template.
    """
    if not config.in_workers:
        tasks = loaded(config, found, split)
        await _try_template(tasks.rows, served, sampling, config.label)
        yield Playing(tasks.rows, Engine(tasks.env, served.client, served.model, sampling, options), tasks.ref)
        return
    assert served.endpoint is not None, "whoever builds a run serves the policy where an environment needs it"
    workers = await open_workers(_for_workers(config, found, served, sampling), options, split=split, lasting=True)
    try:
        check_asked(workers.facts["sampling_args"], config)
        await _try_template(workers.rows, served, sampling, config.label)
        yield Playing(workers.rows, workers, EnvRef(**workers.facts["environment"]), workers.facts)
    finally:
        await workers.close()


async def _try_template(rows: Rows, served: Served, sampling: SamplingArgs, label: str) -> None:
    prompt = rows[0].get("prompt")
    if served.renderer is None or not isinstance(prompt, list) or not prompt or isinstance(prompt[0], int):
        return  # a text, or token ids: completion mode
    messages = [native_message(message) for message in served.client.read_prompt(prompt)]
    arguments = {name: sampling[name] for name in TEMPLATE_ARGUMENTS if name in sampling}
    try:
        await served.renderer.render(messages, None, arguments)
    except ModelError as error:
        raise ConfigError(f"{label} can not be played: {error}", hint=error.hint) from error


def _for_workers(
    config: EnvironmentConfig, found: FoundEnvironment, served: Served, sampling: SamplingArgs
) -> EvalConfig:
    assert served.endpoint is not None
    return EvalConfig(
        env_id=found.env_id,
        env_args=config.args,
        model=served.model,
        client_config=served.endpoint,
        sampling_args=dict(sampling),
        num_examples=config.max_tasks or -1,
        max_concurrent=-1,
        num_workers=max(1, config.workers),
        isolated=config.isolated,
        ray=config.ray,
        ray_options=config.ray_options,
        hub_wheels=list(found.hub_wheels),
    )
