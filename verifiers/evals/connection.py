"""Which model answers, and how it is reached: from names and flags to a `ClientConfig`.

A model's name is looked up in the endpoint registry; what is not there is served by a provider; an explicit base URL,
key variable or client type replaces what those say. `local[:PATH]` is the embedded model. Nothing here opens a
connection or starts a server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from verifiers.errors import ConfigError, MissingKeyError
from verifiers.evals.endpoints import Provider, load_endpoints
from verifiers.settings import near_misses
from verifiers.types.config import ClientConfig, EndpointConfig, EvalConfig

EMBEDDED = "local"
"""The reserved name of the embedded model; `local:PATH` serves another GGUF file, or a model's folder."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What flags and files say about the model; None where they say nothing."""

    model: str | None = None
    endpoint_id: str | None = None
    provider: str | None = None
    api_base_url: str | None = None
    api_key_var: str | None = None
    api_client_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    headers_from_state: Mapping[str, str] = field(default_factory=dict)
    endpoints_path: str | None = None
    price: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """The model and its endpoint. `model` None: ask the endpoint what it serves. `notice` is for the user."""

    model: str | None
    endpoint_id: str | None
    client_config: ClientConfig
    notice: str | None = None


def connect(wanted: Wanted, providers: Mapping[str, Provider]) -> Connection:
    """Decide where the model is. ConfigError for names that are in no table."""
    name = wanted.endpoint_id or wanted.model
    if name is not None and name.partition(":")[0] == EMBEDDED:
        return _embedded(name, wanted)
    if wanted.provider is not None and wanted.provider not in providers:
        hint = near_misses(wanted.provider, providers) or f"Providers: {', '.join(providers)}."
        raise ConfigError(f"unknown provider {wanted.provider!r}", hint=hint)
    if name is None:
        return _unnamed(wanted, providers)
    replicas = _replicas(name, wanted)
    if replicas:
        return _registered(name, replicas, wanted, providers)
    return _served(wanted, _provider(wanted, providers), name)


def check_keys(config: EvalConfig) -> None:
    """MissingKeyError (exit 3) unless every remote endpoint's key variable is set."""
    missing = config.client_config.missing_key_vars()
    if missing:
        raise MissingKeyError(
            missing,
            hint=f"export {missing[0]}=… (any text if the endpoint wants no key), name another variable with -k, "
            f"or use the embedded model, which needs none: -m {EMBEDDED}",
        )


def _embedded(name: str, wanted: Wanted) -> Connection:
    if wanted.api_base_url is not None:
        raise ConfigError(
            f"-m {name} is the embedded model, which has no base URL ({wanted.api_base_url})",
            hint="Leave out the base URL (-b), or name the model that this endpoint serves (-m).",
        )
    if name not in (EMBEDDED, f"{EMBEDDED}:") and not os.path.exists(name.partition(":")[2]):
        path = name.partition(":")[2]
        raise ConfigError(
            f"there is no model {path}",
            hint=f"Give the path of a GGUF file or of a model's folder: -m {EMBEDDED}:PATH.",
        )
    kind = wanted.api_client_type or "openai_chat_completions"
    return Connection(name, name, _client_config(api_base_url="http://127.0.0.1", api_key_var="", client_type=kind))


def _unnamed(wanted: Wanted, providers: Mapping[str, Provider]) -> Connection:
    if wanted.api_base_url is not None or wanted.provider is not None:
        provider = _provider(wanted, providers)
        model = provider.model if wanted.api_base_url is None else None
        return _served(wanted, provider, model)
    named = next((name for name, row in providers.items() if row.model and os.environ.get(row.key)), None)
    if named is None:
        found = _embedded(EMBEDDED, wanted)
        notice = (
            "no model was named and no key is set: the embedded model answers, a small one that runs on this machine "
            "(-m MODEL -b URL for another)"
        )
        return Connection(found.model, found.endpoint_id, found.client_config, notice)
    provider = providers[named]
    found = _served(wanted, provider, provider.model)
    notice = f"no model was named: {provider.model} of {named} answers, since {provider.key} is set"
    return Connection(found.model, found.endpoint_id, found.client_config, notice)


def _provider(wanted: Wanted, providers: Mapping[str, Provider]) -> Provider:
    """The named provider; otherwise the first whose key is set; otherwise the first."""
    if wanted.provider is not None:
        return providers[wanted.provider]
    general = [row for row in providers.values() if row.model]
    return next((row for row in general if os.environ.get(row.key)), general[0])


def _replicas(name: str, wanted: Wanted) -> list[EndpointConfig]:
    direct = wanted.api_base_url is not None and wanted.api_key_var is not None
    if wanted.endpoint_id is None and direct:
        return []
    registry = load_endpoints(wanted.endpoints_path) if wanted.endpoints_path else {}
    if wanted.endpoint_id is not None and name not in registry:
        hint = near_misses(name, registry) or f"It has: {', '.join(registry) or 'no rows'}."
        raise ConfigError(f"no endpoint {name!r} in the registry {wanted.endpoints_path}", hint=hint)
    return registry.get(name, [])


def _registered(
    name: str, replicas: list[EndpointConfig], wanted: Wanted, providers: Mapping[str, Provider]
) -> Connection:
    first = replicas[0]
    provider = providers[wanted.provider] if wanted.provider is not None else None
    url = wanted.api_base_url or (provider.url if provider else first.base_url)
    key = wanted.api_key_var or (provider.key if provider else first.api_key_var)
    kind = wanted.api_client_type or (provider.client_type if provider else first.api_client_type)
    several = (
        [] if provider is not None or wanted.api_base_url is not None or len(replicas) == 1 else replicas
    )
    config = _client_config(
        api_base_url=url,
        api_key_var=key,
        client_type=kind or "openai_chat_completions",
        extra_headers={**first.extra_headers, **wanted.headers},
        endpoint_configs=[
            {
                "api_base_url": replica.base_url,
                "api_key_var": wanted.api_key_var or replica.api_key_var,
                "extra_headers": {**replica.extra_headers, **wanted.headers},
                "price": wanted.price or replica.price,
            }
            for replica in several
        ],
        price=wanted.price or first.price,
        **_from_state(wanted),
    )
    model = wanted.model if wanted.endpoint_id is not None and wanted.model is not None else first.model
    return Connection(model, name, config)


def _served(wanted: Wanted, provider: Provider, model: str | None) -> Connection:
    config = _client_config(
        api_base_url=wanted.api_base_url or provider.url,
        api_key_var=wanted.api_key_var or provider.key,
        client_type=wanted.api_client_type or provider.client_type,
        extra_headers=dict(wanted.headers),
        price=wanted.price,
        **_from_state(wanted),
    )
    return Connection(model, None, config)


def _from_state(wanted: Wanted) -> dict[str, Any]:
    if not wanted.headers_from_state:
        return {}
    default = ClientConfig.model_fields["extra_headers_from_state"].get_default(call_default_factory=True)
    return {"extra_headers_from_state": {**default, **wanted.headers_from_state}}


def _client_config(**fields: Any) -> ClientConfig:
    from pydantic import ValidationError

    try:
        return ClientConfig(**fields)
    except ValidationError as error:
        raise ConfigError(validation_message(error, "the endpoint"), cause=error) from error


def validation_message(error: Any, where: str) -> str:
    """The first problem of a pydantic ValidationError, in one line."""
    problem = error.errors()[0]
    name = ".".join(str(part) for part in problem["loc"])
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        message = "there is no such setting"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{where}: {name}: {message}{more}" if name else f"{where}: {message}{more}"
