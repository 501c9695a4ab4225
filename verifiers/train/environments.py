"""The environments of a configuration: found, or taken from a hub, and loaded, each known by its exact bits. No torch.

    found = find(config.env[0], prepare)
    tasks = loaded(config.env[0], found)     # in this process
    tasks.rows, tasks.ref
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from verifiers.envs.environment import Environment, sampling_defaults
from verifiers.envs.load import load_environment
from verifiers.envs.provenance import environment_ref
from verifiers.errors import DatasetError
from verifiers.evals.lookup import FoundEnvironment, find_environment
from verifiers.rollouts.plan import Rows
from verifiers.train.config import EnvironmentConfig
from verifiers.train.rows import EnvRef
from verifiers.train.sampling_check import check_sampling
from verifiers.types import SamplingArgs

Prepare = Callable[[str, bool], FoundEnvironment | None]
"""Gets an environment from a hub: its id, and whether it is played in a virtual environment of its own."""

Split = Literal["train", "eval"]


@dataclass(frozen=True, slots=True)
class Tasks:
    """A loaded environment, and those of its tasks that are played."""

    env: Environment
    rows: Rows
    ref: EnvRef


def find(
    config: EnvironmentConfig, prepare: Prepare | None = None, env_dir: str = "./environments"
) -> FoundEnvironment:
    """Where the environment is. An id with an owner is `prepare`'s first. Raises as `find_environment` does."""
    found = prepare(config.id, config.isolated) if prepare is not None else None
    return found or find_environment(config.id, env_dir)


def loaded(config: EnvironmentConfig, found: FoundEnvironment, split: Split = "train") -> Tasks:
    """Load it into this process. DatasetError if it has no tasks to learn from, ConfigError if it asks for replies
    that no policy can learn from: every rollout would fail."""
    env = load_environment(found.env_id, **config.args)
    check_asked(sampling_defaults(env), config)
    rows = tasks_of(env, config, split)
    return Tasks(env, rows, EnvRef(**environment_ref(found.env_id)))


def check_asked(defaults: Iterable[SamplingArgs], config: EnvironmentConfig) -> None:
    """Raise ConfigError if an environment, or a child of a group, asks for what the policy's sampler refuses."""
    for arguments in defaults:
        check_sampling(arguments, f"sampling_args of the environment {config.id}")


def tasks_of(env: Environment, config: EnvironmentConfig, split: Split) -> Rows:
    """The tasks of a split, at most `max_tasks`."""
    if split == "train" and not env.has_split("train"):
        raise DatasetError(
            f"{config.id} has no tasks to learn from: it has an eval_dataset only",
            hint="Give it a `dataset`, or name it under eval.environments.",
        )
    count = config.max_tasks or -1
    rows: Rows = env.get_dataset(count) if split == "train" else env.get_eval_dataset(count)
    if not len(rows):
        raise DatasetError(f"{config.id} has no tasks", hint="Check its arguments and its data set.")
    return rows
