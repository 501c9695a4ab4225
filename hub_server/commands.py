"""The server's own commands. `hub serve`, `hub admin` and the others of the SDK start these in this Python.

Every setting is a flag of every command that needs it. stdout is for data (a token, a report), stderr for talk; an
error is what, why and what to do, once. Exit codes are those of all commands (docs/reference/errors.md).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from hub_server.problems import Problem
from hub_server.settings import Settings, load_settings
from verifiers.errors import ConfigError, Error, ExitCode

STORE = ("data", "database_url", "storage")
"""The settings that say where a hub is: what commands beside a running server need."""


def with_settings(names: Sequence[str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command a flag for each of these settings, and `--config`; its `**given` takes them."""

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        own = inspect.signature(function, eval_str=True)
        kept = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        config = Parameter(help="TOML file of settings [HUB_CONFIG].")
        flags = [_flag("config", Annotated[Path | None, config])]
        for name in names:
            field = Settings.model_fields[name]
            flags.append(_flag(name, Annotated[field.annotation | None, Parameter(help=field.description)]))  # type: ignore[operator]

        def command(*arguments: Any, **options: Any) -> Any:
            return function(*arguments, **options)

        command.__doc__, command.__name__ = function.__doc__, function.__name__
        command.__signature__ = inspect.Signature(kept + flags)  # type: ignore[attr-defined]
        return command

    return wrap


def _flag(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


app = App(name="hub", help="Serve a hub and look after it.", help_format="plaintext", version_flags=[])
admin = App(name="admin", help="Owners, tokens and the SDK's wheel, on the machine of the hub.")
app.command(admin)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point of `python -m hub_server`."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    try:
        result = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        return int(result) if isinstance(result, int) else ExitCode.OK
    except CycloptsError as error:
        return _fail(ConfigError(str(error).strip(), hint="python -m hub_server COMMAND --help lists the flags."))
    except Error as error:
        return _fail(error)
    except Problem as problem:
        return _fail(ConfigError(problem.message, hint=problem.hint))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _fail(error: Error) -> int:
    sys.stderr.write(f"error: {error}\nhint: {error.hint}\n")
    return error.exit_code


# --- the server -------------------------------------------------------------------------------------------------


@app.command
@with_settings(tuple(Settings.model_fields))
def serve(
    *,
    bootstrap_owner: Annotated[str | None, Parameter(help="Make this owner first; its token goes to stdout.")] = None,
    **given: Any,
) -> int:
    """Serve a hub."""
    from hub_server.maintenance.serve import serve as run_server

    return run_server(load_settings(**given), bootstrap_owner)


# --- owners -----------------------------------------------------------------------------------------------------


@admin.command(name="create-owner")
@with_settings(STORE)
def create_owner(
    name: str,
    /,
    *,
    kind: Literal["user", "organisation"] = "user",
    site_admin: Annotated[bool, Parameter(help="An admin of every owner and of the hub.", negative="")] = False,
    **given: Any,
) -> None:
    """Make an owner and print its token, once. An owner that is there gets none."""
    from hub_server.maintenance.first_token import bootstrap

    if (token := bootstrap(load_settings(**given), name, kind, site_admin=site_admin)) is not None:
        sys.stdout.write(token + "\n")
