"""The packages that a configuration asks for, looked for before anything heavy is loaded. Imports none of them."""

from __future__ import annotations

import importlib.util

from verifiers.errors import ConfigError, Error, MissingExtraError
from verifiers.train.config import EnvironmentConfig, SftConfig, TrainConfig


def check_packages(config: TrainConfig | SftConfig) -> None:
    """Raise ConfigError or MissingExtraError, which say how to install it, for the first that is not here.

    What all of training needs, torch and transformers, is not among them: a dry run does without.
    """
    environments: list[EnvironmentConfig] = []
    if isinstance(config, TrainConfig):
        environments = [*config.env, *(config.eval.environments if config.eval else [])]
    log = config.log
    needed: list[tuple[bool, str, Error]] = [
        (config.model.lora is not None, "peft", MissingExtraError("train", "model.lora")),
        (config.model.path.endswith(".gguf"), "gguf", MissingExtraError("train", "a GGUF file (model.path)")),
        (log.prometheus_port is not None, "prometheus_client", MissingExtraError("train", "log.prometheus_port")),
        (log.tensorboard, "tensorboard", absent("tensorboard", "log.tensorboard")),
        (log.wandb is not None, "wandb", absent("wandb", "log.wandb")),
        (any(one.ray is not None for one in environments), "ray", MissingExtraError("ray", "env.0.ray")),
    ]
    for asked, package, error in needed:
        if asked and importlib.util.find_spec(package) is None:
            raise error


def absent(package: str, setting: str) -> ConfigError:
    """The error for a package that none of our extras has."""
    return ConfigError(f"{setting} needs {package}, which is not installed", hint=f"Install it: pip install {package}")
