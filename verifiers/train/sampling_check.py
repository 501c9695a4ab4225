"""Sampling arguments that the policy's sampler refuses, found before anything is sampled. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verifiers.clients.sdk import request_options
from verifiers.clients.token_in import CHAT_ONLY, TEMPLATE_ARGUMENTS
from verifiers.clients.wire import sampling_body
from verifiers.errors import ConfigError
from verifiers.train.engines.sampling import read_sampling

OURS = ("temperature", "max_tokens", "seed", "n")
"""The run sets them, whatever others say."""


def check_sampling(arguments: Mapping[str, Any], whose: str) -> None:
    """Raise ConfigError, with whose they are, for arguments with which every rollout would fail."""
    try:
        body = sampling_body({name: value for name, value in arguments.items() if name not in OURS})
        request_options(body)
        if meant := sorted(CHAT_ONLY & body.keys()):
            raise ConfigError(
                f"the sampling argument {meant[0]} is one of chat routes, and policies are asked by token ids",
                hint=f"Leave {meant[0]} out.",
            )
        read_sampling({name: value for name, value in body.items() if name not in TEMPLATE_ARGUMENTS})
    except ConfigError as error:
        raise ConfigError(f"{whose}: {error}", hint=error.hint) from error
