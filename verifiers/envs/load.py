"""`load_environment`: from the id of an installed environment to the environment.

An environment is a module with a function `load_environment(**arguments)`. Only what Python can import is found
here; commands that take an environment from a folder put that folder on the path first.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

from verifiers.envs.environment import Environment
from verifiers.envs.installed import installed_package, installed_packages
from verifiers.error_text import place_of, text_of
from verifiers.errors import (
    NEWER_API,
    EnvironmentArgumentError,
    EnvironmentLoadError,
    EnvironmentNotFoundError,
    Error,
    UpstreamApiError,
    is_failure,
)

_ID = re.compile(r"(?:(?P<owner>[^/@]+)/)?(?P<name>[^/@]+)(?:@(?P<version>[^/@]+))?\Z")
_NEWER_MODULES = ("verifiers.v1",)
_NAMES_IN_IMPORT_ERROR = re.compile(r"cannot import name '(\w+)' from 'verifiers'")


def split_id(env_id: str) -> tuple[str | None, str, str | None]:
    """`owner/name@version` as its three parts; owner and version are None if not given."""
    match = _ID.match(env_id.strip().rstrip("/"))
    if match is None:
        raise EnvironmentNotFoundError(
            f"{env_id!r} is no environment id", hint="An id is a name, owner/name or owner/name@version."
        )
    return match["owner"], match["name"], match["version"]


def module_name(env_id: str) -> str:
    """The module of an environment: its name with underscores."""
    return split_id(env_id)[1].replace("-", "_")


def load_environment(env_id: str, **env_args: Any) -> Environment:
    """Import an environment and call its `load_environment(**env_args)`.

    Raises EnvironmentNotFoundError (a ValueError) if it is not installed, EnvironmentArgumentError for arguments
    it does not take, UpstreamApiError if it needs the upstream package's newer API, and EnvironmentLoadError (a
    RuntimeError) for whatever else its code raises. Typed errors of this package pass as they are.
    """
    module = import_environment(env_id)
    loader = getattr(module, "load_environment", None)
    if not callable(loader):
        hint = f"Define load_environment(**arguments) in it, or see what vf-init {split_id(env_id)[1]} writes."
        if module.__name__ in sys.stdlib_module_names:
            hint = "Python's standard library has a module of that name: give the environment another one."
        raise EnvironmentLoadError(
            f"the module {module.__name__} ({getattr(module, '__file__', 'built in')}) has no load_environment",
            hint=hint,
        )
    _check_arguments(env_id, loader, env_args)
    try:
        loaded = loader(**env_args)
        environment = _run(loaded) if inspect.iscoroutine(loaded) else loaded
    except Error:
        raise
    except BaseException as error:  # boundary: code of the environment's author
        if not is_failure(error):
            raise
        misfits = _misfits(loader, env_args) or None
        raise _explained(env_id, error, "load_environment raised", misfits) from error
    if not isinstance(environment, Environment):
        raise EnvironmentLoadError(
            f"load_environment of {env_id} returned {type(environment).__name__}, not an Environment",
            hint="Return a verifiers.Environment, such as SingleTurnEnv(...).",
        )
    environment.env_id = environment.env_id or split_id(env_id)[1]
    environment.env_args = environment.env_args or dict(env_args)
    environment.mention_problems()
    return environment


def import_environment(env_id: str) -> ModuleType:
    """Import the module of an environment. Raises as `load_environment` does."""
    _, name, version = split_id(env_id)
    module = module_name(env_id)
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module:
            raise _not_found(env_id, module) from error
        raise _explained(env_id, error, "its import failed") from error
    except BaseException as error:  # boundary: importing runs the author's code
        if not is_failure(error):
            raise
        raise _explained(env_id, error, "its import raised") from error
    _check_version(name, version)
    return imported


def _not_found(env_id: str, module: str) -> EnvironmentNotFoundError:
    installed = {name for name, _ in installed_packages()}
    near = difflib.get_close_matches(module.replace("_", "-"), installed, n=3)
    meant = f" Did you mean {', '.join(near)}?" if near else ""
    return EnvironmentNotFoundError(
        f"no environment {env_id!r}: there is no module {module} to import; is the package installed?",
        hint=f"Install it (vf-install {env_id}), or name the folder that holds it with --env-dir-path.{meant}",
    )


def _check_version(name: str, version: str | None) -> None:
    if version is None:
        return
    installed = installed_package(name)  # None if loaded from a folder: there is no version to compare with
    if installed is not None and installed.version != version:
        raise EnvironmentNotFoundError(
            f"{name}@{version} was asked for, but {installed.version} is installed",
            hint=f"Install that version: vf-install {name}@{version}",
        )


def _check_arguments(env_id: str, loader: Callable[..., Any], env_args: dict[str, Any]) -> None:
    signature = inspect.signature(loader)
    try:
        signature.bind(**env_args)
    except TypeError as error:
        accepted = [str(parameter) for parameter in signature.parameters.values()]
        unknown = [key for key in env_args if key not in signature.parameters]
        near = [
            match for key in unknown for match in difflib.get_close_matches(key, list(signature.parameters), n=1)
        ]
        meant = f" Did you mean {', '.join(near)}?" if near else ""
        raise EnvironmentArgumentError(
            f"load_environment of {env_id}: {error}",
            hint=f"It accepts: {', '.join(accepted) or 'no arguments'}.{meant}",
            cause=error,
        ) from error


_PLAIN: dict[Any, type] = {name: kind for kind in (int, float, bool, str) for name in (kind, kind.__name__)}
"""Annotations, maybe as text, that a value can be held against."""


def _misfits(loader: Callable[..., Any], env_args: dict[str, Any]) -> str:
    """Which arguments are of another kind than their annotations say: likely why it raised. Empty if none is."""
    annotated = {name: one.annotation for name, one in inspect.signature(loader).parameters.items()}
    kinds = {name: _PLAIN[annotated[name]] for name in env_args if annotated.get(name) in _PLAIN}
    return " ".join(
        f"{name} takes {kind.__name__}, and was given {env_args[name]!r}."
        for name, kind in kinds.items()
        if not isinstance(env_args[name], (int, float) if kind is float else kind)
    )


def _explained(env_id: str, error: BaseException, what: str, hint: str | None = None) -> Error:
    """The typed error for what an environment's code raised: newer API, missing dependency, or its own fault."""
    newer = _newer_name(error)
    if newer is not None:
        return UpstreamApiError(
            f"environment {env_id} uses {newer}, which belongs to the newer API of the upstream package "
            "(verifiers 0.4 and later), not to load_environment + Rubric",
            cause=error,
        )
    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return EnvironmentLoadError(
            f"environment {env_id} needs the package {package}, which is not installed",
            hint=f"Install the environment with what it declares: vf-install {split_id(env_id)[1]}. "
            f"If its pyproject.toml does not name {package}, add it to the dependencies there.",
            cause=error,
        )
    said = text_of(error)
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    text = f"environment {env_id} did not load: {what} {text}{place_of(error)}"
    return EnvironmentLoadError(text, hint=hint, cause=error)


def _newer_name(error: BaseException | None) -> str | None:
    while error is not None:
        if isinstance(error, UpstreamApiError):
            return str(error.name or "verifiers.v1")
        if isinstance(error, ModuleNotFoundError) and str(error.name).startswith(_NEWER_MODULES):
            return str(error.name)
        match = _NAMES_IN_IMPORT_ERROR.search(str(error)) if isinstance(error, ImportError) else None
        if match:
            return f"verifiers.{match[1]}" if match[1] in NEWER_API else None
        error = error.__cause__
    return None


def _run(coroutine: Any) -> Any:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, coroutine).result()
