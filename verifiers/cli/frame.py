"""The frame that all commands share: read the line, run, answer for every way it can end.

    app = App(name="vf-demo", version=package_version, suppress_keyboard_interrupt=False, …)

    def main(arguments: Sequence[str] | None = None) -> None:
        start(run, arguments)

    def run(arguments: list[str]) -> int:
        return framed(arguments, lambda output: parsed(app, arguments, "vf-demo --help lists the options."))

What a command does is its own file's business, what it prints `verifiers.cli.output`'s.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cyclopts import App, CycloptsError, UnknownOptionError

from verifiers.cli.output import Output, run_command, with_standard_streams
from verifiers.errors import ConfigError, ExitCode
from verifiers.exits import leave


def package_version() -> str:
    """What `--version` prints."""
    from importlib.metadata import version  # email and more, for which `--help` need not wait

    return version("verifiers")


def start(run: Callable[[list[str]], int], arguments: Sequence[str] | None) -> NoReturn:
    """An entry point: run the command with the process's own arguments, or these, and end the process."""
    if arguments is not None:
        raise SystemExit(run(list(arguments)))
    with_standard_streams()
    leave(run(sys.argv[1:]))


def framed(arguments: Sequence[str], command: Callable[[Output], Any]) -> int:
    """Run a command and return its exit code; what is none (help was printed) is a success."""
    output = Output(json="--json" in arguments, verbose=bool({"--verbose", "-v"} & set(arguments)))

    def to_its_end() -> ExitCode:
        result = command(output)
        return ExitCode(result) if isinstance(result, int) else ExitCode.OK

    return run_command(to_its_end, output)


def parsed(app: App, arguments: Sequence[str], hint: str) -> Any:
    """What the called function returned. ConfigError with `hint` for a line that the command does not take."""
    try:
        return app(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
    except UnknownOptionError as error:
        raise ConfigError(_unknown(error), hint=hint, cause=error) from error
    except CycloptsError as error:
        raise ConfigError(str(error).strip(), hint=hint, cause=error) from error


def _unknown(error: UnknownOptionError) -> str:
    """What it says, but an option that begins like the unknown one comes before one that looks like it."""
    word = (error.token.keyword or error.token.value).partition("=")[0]
    known = [name for argument in error.argument_collection for name in argument.names]
    begin = [name for name in known if word.startswith("--") and len(word) > 4 and name.startswith(word)]
    return f"Unknown option: {word}. Did you mean {begin[0]}?" if begin else str(error).strip()
