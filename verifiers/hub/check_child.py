"""The process in which `hub check` runs an environment as its users will: installed, alone, and somewhere else.

    python -I -m verifiers.hub.check_child FD NAME JSON_ARGUMENTS

One JSON line to FD for each check, as `verifiers.hub.schema.CheckResult`; it ends at the first that is not ok. What
the environment prints goes to stdout.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from verifiers.clients.scripted import ScriptedClient
from verifiers.envs.environment import Environment
from verifiers.envs.load import import_environment, load_environment
from verifiers.error_text import ErrorChain, text_of
from verifiers.errors import (
    AuthenticationError,
    DataUnavailableError,
    EnvironmentCodeError,
    EnvironmentLoadError,
    MissingExtraError,
    MissingKeyError,
    as_error,
    is_failure,
)
from verifiers.scopes import Limit

TASKS, TURNS, SECONDS = 2, 8, 120.0
"""How much is played: two tasks, each once."""
OUTSIDE = {cls.__name__ for cls in (AuthenticationError, DataUnavailableError, MissingExtraError, MissingKeyError)}
"""Failures for want of something that an environment may need and this machine has not: they say nothing of it."""


KEY_NAME = re.compile(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*_(?:KEY|TOKEN|SECRET)\b")


class NotCheckedError(Exception):
    """The check can not be made here; the text says why."""


def is_outside(chain: str) -> bool:
    """Whether an error is for want of something that this machine has not, such as a key, by its classes and texts."""
    unset = [name for name in KEY_NAME.findall(chain) if not os.environ.get(name)]
    return bool(unset) or any(name in chain for name in OUTSIDE)


def check_import(name: str, _arguments: dict[str, Any], _made: dict[str, Environment]) -> str:
    """The module imports."""
    return f"the module {import_environment(name).__name__}"


def check_load(name: str, arguments: dict[str, Any], made: dict[str, Environment]) -> str:
    """load_environment returns an environment."""
    made["environment"] = load_environment(name, **arguments)
    return type(made["environment"]).__name__


def check_evaluate(_name: str, _arguments: dict[str, Any], made: dict[str, Environment]) -> str:
    """Rollouts with a model that says "ok" end, and are scored."""
    results = made["environment"].evaluate_sync(
        ScriptedClient("ok"), "scripted", num_examples=TASKS, rollout_limit=Limit(turns=TURNS, seconds=SECONDS)
    )
    records = results["outputs"]
    if not records:
        raise EnvironmentLoadError("it has no tasks", hint="Give it a dataset or an eval_dataset with rows.")
    for record in records:
        _look_at(record)
    rewards = ", ".join(f"{record['reward']:g}" for record in records)
    return f"{len(records)} rollouts with a scripted model, rewards {rewards}"


def _look_at(record: Any) -> None:
    errors = [error for error in (record.get("error"), *(record.get("scoring_errors") or {}).values()) if error]
    if record["reward"] is not None:
        return
    for error in errors:
        if error["kind"] == "judge" or is_outside(f"{error['error_chain_str']} {error['message']}"):
            raise NotCheckedError(error["message"])
    said = "; ".join(error["message"] for error in errors) or "it has no reward"
    raise EnvironmentCodeError(said, hint="See vf-validate, which tries many more replies.")


CHECKS: dict[str, Callable[[str, dict[str, Any], dict[str, Environment]], str]] = {
    "import": check_import,
    "load": check_load,
    "evaluate": check_evaluate,
}


def main() -> None:
    """Make the checks, in order, and tell."""
    descriptor, name, arguments = int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    os.set_inheritable(descriptor, False)  # what the environment starts must not keep the pipe open
    made: dict[str, Environment] = {}
    for check, run in CHECKS.items():
        began = time.perf_counter()
        told: dict[str, Any] = {"id": check, "hint": None}
        try:
            told |= {"status": "ok", "detail": run(name, arguments, made)}
        except NotCheckedError as reason:
            told |= {"status": "skipped", "detail": str(reason)}
        except BaseException as error:  # boundary: the environment's code
            if not is_failure(error):
                raise
            outside = is_outside(" ".join(f"{type(link).__name__} {text_of(link)}" for link in ErrorChain(error).chain))
            typed = as_error(error, EnvironmentLoadError, check)
            told |= {"status": "skipped" if outside else "failed", "detail": text_of(typed), "hint": typed.hint}
        told["seconds"] = round(time.perf_counter() - began, 3)
        os.write(descriptor, json.dumps(told).encode() + b"\n")
        if told["status"] != "ok":
            break
    sys.stdout.flush()
    os._exit(0)  # threads that the environment has left must not keep the report waiting


if __name__ == "__main__":
    main()
