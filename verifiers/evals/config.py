"""From a command line and its files to resolved evaluations, each value with its origin.

    flag > VF_* > [[eval]] entry > globals of the file > project's pyproject > environment's pyproject
         > the user's file > default

The tables that a project, an environment and the user's file may hold are `[tool.verifiers.eval]`,
`[tool.verifiers.eval]` and `[eval]`. Tables (arguments, sampling, headers) are merged key by key in that order, lists
are replaced, unknown settings are errors with near misses. A file holds globals, `[[eval]]` entries, and `[[ablation]]`
entries whose `sweep` lists are crossed.

    [evaluation] = resolve(["gsm8k"], {"model": "local", "num_examples": 20})
    evaluation.config.origins["num_examples"]     # 'flag'
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verifiers.errors import ConfigError
from verifiers.evals.connection import EMBEDDED, Wanted, connect, validation_message
from verifiers.evals.endpoints import DEFAULT_PATH, providers
from verifiers.evals.lookup import FoundEnvironment, find_environment
from verifiers.evals.values import KINDS, pairs, parse_text, typed
from verifiers.settings import (
    Layer,
    Setting,
    layered,
    project_file,
    read_toml,
    refuse_unknown,
    table_at,
    user_file,
    variables,
)
from verifiers.types.config import EvalConfig

logger = logging.getLogger(__name__)

ALIASES = {"id": "env_id", "args": "env_args", "sampling": "sampling_args", "resume_path": "resume"}
"""Other names of settings in files."""

MIRRORED = ("reasoning_effort", "enable_thinking")
"""Sampling settings of a file that chat templates read too: copied into extra_body.chat_template_kwargs."""

_PROPOSABLE = (
    "num_examples", "rollouts_per_example", "env_args", "extra_env_kwargs", "timeout", "sampling_args", "max_tokens",
    "temperature", "max_concurrent", "max_retries", "shuffle", "shuffle_seed", "independent_scoring",
    "on_reward_error", "pass_threshold", "state_columns", "rollout_limit",
)  # fmt: skip
"""What an environment may set: how it is played, never where the user's key is sent or files are written."""

_PASSED_ON = (
    "name", "env_dir_path", "num_examples", "rollouts_per_example", "shuffle", "shuffle_seed", "max_concurrent",
    "num_workers", "independent_scoring", "max_retries", "on_reward_error", "pass_threshold", "state_columns",
    "save_results", "output_dir", "save_to_hf_hub", "hf_hub_dataset_name", "seed", "verbose",
    "rollout_limit", "run_limit",
    "cache", "cache_dir", "isolated", "ray", "ray_options",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation, ready to play. `ask_model`: the endpoint has to say which model it serves.

    `resume` is False, True (the newest unfinished run) or the path of a run. `variant` tells the evaluations of a sweep
    apart (`level=2`). `notices` are for the user.
    """

    config: EvalConfig
    environment: FoundEnvironment
    ask_model: bool
    resume: bool | str
    variant: str
    notices: tuple[str, ...]


Prepare = Callable[[str, bool], FoundEnvironment | None]
"""Gets an environment from a hub: its id, and whether it is played in a virtual environment of its own."""


def resolve(
    targets: Sequence[str], flags: Mapping[str, Any], prepare: Prepare | None = None
) -> list[Evaluation]:
    """The evaluations that a command line asks for. `targets` are environment ids and TOML files.

    `flags` holds only what was given, under the settings' names. `prepare` is asked for each environment first; for
    what it has none of, `find_environment` is. ConfigError, EnvironmentNotFoundError and the like
    say what is wrong.
    """
    shared = Layer("flag", _named(flags, "the command line"))
    outer, inner = [shared, *_variable_layers()], _project_layers()
    return [
        _resolve_one([*outer, *layers, *inner], variant, prepare)
        for target in targets
        for layers, variant in _entries(target)
    ]


# --- layers ---------------------------------------------------------------------------------------------------


def _named(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Settings under their canonical names, each of its kind. ConfigError for unknown names and wrong kinds."""
    refuse_unknown(values, [*KINDS, *ALIASES], where)
    named: dict[str, Any] = {}
    for key, value in values.items():
        name = ALIASES.get(key, key)
        if name in named:
            raise ConfigError(f"{where} sets {name} twice, also as {key!r}")
        named[name] = typed(name, value, where)
    return named


def _variable_layers() -> list[Layer]:
    found = variables(name for name in KINDS if name not in ("env_id", "name"))
    return [Layer(f"VF_{name.upper()}", {name: parse_text(name, text)}) for name, text in found.items()]


def _project_layers() -> list[Layer]:
    path = project_file()
    if path is None:
        return []
    table = table_at(read_toml(path), "tool", "verifiers", "eval", where=str(path))
    return [Layer(str(path), _named(table, str(path)))] if table else []


def _environment_layer(environment: FoundEnvironment) -> Layer:
    """What the environment's author proposes. The caller can not mend its mistakes, so they warn."""
    where = f"{environment.env_id}'s pyproject.toml"
    proposed = {
        key: value for key, value in environment.defaults.items() if ALIASES.get(key, key) in _PROPOSABLE
    }
    if others := sorted(set(environment.defaults) - set(proposed)):
        logger.warning("[tool.verifiers.eval] of %s can not set %s: ignored", where, ", ".join(others))
    return Layer(where, _named(proposed, where))


def _user_tables() -> tuple[Layer, Mapping[str, Any]]:
    path = user_file()
    document = read_toml(path) if path.is_file() else {}
    refuse_unknown(document, ("eval", "providers", "hub"), str(path))
    table = _named(table_at(document, "eval", where=str(path)), f"[eval] of {path}")
    return Layer(str(path), table), table_at(document, "providers", where=str(path))


def _entries(target: str) -> Iterator[tuple[list[Layer], str]]:
    """For each evaluation of a target, the layers that the target itself brings, and what tells it apart."""
    if not target.endswith(".toml"):
        yield [Layer("command line", {"env_id": target})], ""
        return
    path = Path(target)
    if not path.is_file():
        raise ConfigError(
            f"there is no file {path}", hint="Check the path; an environment's name has no .toml."
        )
    document = read_toml(path)
    entries, ablations = _tables(document, "eval", path), _tables(document, "ablation", path)
    if not entries and not ablations:
        raise ConfigError(f"{path} has no [[eval]] and no [[ablation]] entry")
    shared = {key: value for key, value in document.items() if key not in ("eval", "ablation")}
    if "name" in shared:
        raise ConfigError(f"`name` belongs into an [[eval]] entry of {path}, not above them")
    file = Layer(f"{path.name} (globals)", _in_file(shared, path, f"the globals of {path}"))
    for number, entry in enumerate(entries, 1):
        where = f"{path.name} [[eval]] {number}"
        yield [Layer(where, _in_file(entry, path, where)), file], ""
    for number, ablation in enumerate(ablations, 1):
        where = f"{path.name} [[ablation]] {number}"
        for entry, variant in _crossed(ablation, where):
            yield [Layer(where, _in_file(entry, path, where)), file], variant


def _tables(document: Mapping[str, Any], name: str, path: Path) -> list[Mapping[str, Any]]:
    tables = document.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
        raise ConfigError(f"{path}: write [[{name}]] with double brackets, one for each entry")
    return tables


def _in_file(table: Mapping[str, Any], path: Path, where: str) -> dict[str, Any]:
    values = _named(table, where)
    if "endpoints_path" in values:
        values["endpoints_path"] = str(path.parent / values["endpoints_path"])
    if "sampling_args" in values:
        values["sampling_args"] = _mirrored(values["sampling_args"])
    return values


def _mirrored(sampling: Mapping[str, Any]) -> dict[str, Any]:
    copied = {key: sampling[key] for key in MIRRORED if key in sampling}
    return _merged({"extra_body": {"chat_template_kwargs": copied}}, sampling) if copied else dict(sampling)


def _crossed(ablation: Mapping[str, Any], where: str) -> Iterator[tuple[dict[str, Any], str]]:
    """One entry for each combination of the lists in `sweep` and `sweep.args`, and the combination in words."""
    fixed = {key: value for key, value in ablation.items() if key != "sweep"}
    sweep = dict(table_at(ablation, "sweep", where=where))
    argument_sweep = {**table_at(sweep, "args", where=where), **table_at(sweep, "env_args", where=where)}
    dimensions: list[tuple[tuple[str, ...], Any]] = [
        ((key,), values) for key, values in sweep.items() if key not in ("args", "env_args")
    ]
    dimensions += [(("env_args", key), values) for key, values in argument_sweep.items()]
    if not dimensions:
        raise ConfigError(f"{where} has nothing to sweep: add lists to [ablation.sweep]")
    for keys, values in dimensions:
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where}: sweep.{'.'.join(keys)} must be a list of values")
    arguments = {**fixed.pop("args", {}), **fixed.pop("env_args", {})}
    for keys, _ in dimensions:
        if keys[-1] in (arguments if len(keys) == 2 else fixed):
            raise ConfigError(f"{where}: {keys[-1]} is both fixed and swept")
    for combination in itertools.product(*(values for _, values in dimensions)):
        entry = {**fixed, "env_args": dict(arguments)}
        for (keys, _), value in zip(dimensions, combination, strict=True):
            (entry["env_args"] if len(keys) == 2 else entry)[keys[-1]] = value
        yield (
            entry,
            ", ".join(
                f"{keys[-1]}={value}" for (keys, _), value in zip(dimensions, combination, strict=True)
            ),
        )


# --- one evaluation -------------------------------------------------------------------------------------------


def _resolve_one(layers: list[Layer], variant: str, prepare: Prepare | None) -> Evaluation:
    user, own_providers = _user_tables()
    early = layered([*layers, user])
    if "env_id" not in early:
        raise ConfigError(f"an entry of {layers[-1].origin} names no environment", hint='Add id = "NAME".')
    env_id = early["env_id"].value
    environment = prepare(env_id, bool(_value(early, "isolated"))) if prepare is not None else None
    if environment is None:
        environment = find_environment(env_id, _value(early, "env_dir_path", "./environments"))
    layers = [*layers, _environment_layer(environment), user]
    settings = layered(layers)
    model = next((layer for layer in layers if _names_a_model(layer)), Layer("", {}))
    wanted = Wanted(
        model=model.values.get("model"),
        endpoint_id=model.values.get("endpoint_id"),
        provider=_value(settings, "provider"),
        api_base_url=_value(settings, "api_base_url"),
        api_key_var=_value(settings, "api_key_var"),
        api_client_type=_value(settings, "api_client_type"),
        headers=_headers(layers, "headers", "header"),
        headers_from_state=_headers(layers, "headers_from_state", "header_from_state"),
        endpoints_path=_value(settings, "endpoints_path", DEFAULT_PATH),
        price=_value(settings, "price"),
    )
    connection = connect(wanted, providers(own_providers, user.origin))
    seed = _seed(settings, connection.endpoint_id)
    fields = {name: settings[name].value for name in _PASSED_ON if name in settings}
    if environment.local:
        fields["env_dir_path"] = str(environment.path.parent)
    config = _eval_config(
        {
            **fields,
            "env_id": environment.env_id,
            "model": connection.model or "",
            "endpoint_id": connection.endpoint_id,
            "client_config": connection.client_config,
            "env_args": _table(layers, "env_args"),
            "extra_env_kwargs": _extra(layers),
            "sampling_args": _sampling(layers),
            "seed": seed,
            "hub_wheels": list(environment.hub_wheels),
            "origins": _origins(layers, settings, model.origin),
        }
    )
    return Evaluation(
        config=config,
        environment=environment,
        ask_model=connection.model is None,
        resume=_value(settings, "resume", False),
        variant=variant,
        notices=(connection.notice,) if connection.notice else (),
    )


def _eval_config(fields: dict[str, Any]) -> EvalConfig:
    from pydantic import ValidationError

    try:
        return EvalConfig(**fields)
    except ValidationError as error:
        raise ConfigError(
            validation_message(error, f"evaluation of {fields['env_id']}"), cause=error
        ) from error


def _value(settings: Mapping[str, Setting], name: str, default: Any = None) -> Any:
    return settings[name].value if name in settings else default


def _names_a_model(layer: Layer) -> bool:
    return layer.values.get("model") is not None or layer.values.get("endpoint_id") is not None


def _seed(settings: Mapping[str, Setting], endpoint_id: str | None) -> int | None:
    """No sampling seed unless asked for; the embedded model always gets one, so that its runs repeat."""
    embedded = endpoint_id is not None and endpoint_id.partition(":")[0] == EMBEDDED
    seed: int | None = _value(settings, "seed", 0 if embedded else None)
    return seed


def _origins(layers: Sequence[Layer], settings: Mapping[str, Setting], model_origin: str) -> dict[str, str]:
    origins = {name: setting.origin for name, setting in settings.items()}
    origins["model"] = model_origin or "default"
    for table in ("env_args", "extra_env_kwargs", "sampling_args"):
        parts = {"sampling_args": ("max_tokens", "temperature"), "extra_env_kwargs": ("timeout",)}.get(
            table, ()
        )
        found = [layer.origin for layer in layers if any(name in layer.values for name in (table, *parts))]
        if found:
            origins[table] = ", ".join(found)
    return origins


# --- tables that are merged -----------------------------------------------------------------------------------


def _merged(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Key by key; where both hold tables, these are merged too."""
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(below, value) if both else value  # type: ignore[arg-type]  # checked by `both`
    return merged


def _table(layers: Sequence[Layer], name: str) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for layer in reversed(layers):
        table.update(layer.values.get(name) or {})
    return table


def _extra(layers: Sequence[Layer]) -> dict[str, Any]:
    """Keywords for `set_kwargs`. Within a layer the time-out flag wins over the table."""
    extra: dict[str, Any] = {}
    for layer in reversed(layers):
        extra.update(layer.values.get("extra_env_kwargs") or {})
        if layer.values.get("timeout") is not None:
            extra["timeout_seconds"] = layer.values["timeout"]
    return extra


def _sampling(layers: Sequence[Layer]) -> dict[str, Any]:
    """Sampling arguments. Within a layer the table wins over max_tokens and temperature."""
    sampling: dict[str, Any] = {}
    for layer in reversed(layers):
        short = {
            key: layer.values[key]
            for key in ("max_tokens", "temperature")
            if layer.values.get(key) is not None
        }
        sampling = _merged(sampling, {**short, **(layer.values.get("sampling_args") or {})})
    return sampling


def _headers(layers: Sequence[Layer], table: str, listed: str) -> dict[str, str]:
    """Within a layer the list of `Name: Value` texts wins over the table."""
    headers: dict[str, str] = {}
    for layer in reversed(layers):
        headers.update(layer.values.get(table) or {})
        headers.update(pairs(layer.values.get(listed) or [], listed, layer.origin))
    return headers
