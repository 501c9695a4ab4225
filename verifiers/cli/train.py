"""`vf-train`: train a model on environments by reinforcement learning, show how it goes, keep everything.

Settings are those of `verifiers.train.config`, from files and as `section.name=value`; the flags here say what to do
with them. Running is `verifiers.cli.training`, and what runs `verifiers.train`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

from cyclopts import App, Parameter

from verifiers.cli.frame import framed, package_version, parsed, start
from verifiers.cli.output import Output
from verifiers.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from verifiers.cli.training import Asked

HERE = "."
"""What a bare --resume stands for: the run in the configuration's `output`."""


def _flag(text: str, letter: str | None = None) -> Parameter:
    return Parameter(alias=letter, help=text, negative="", show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class TrainFlags:
    """What was given beside settings."""

    output: Annotated[str | None, _flag("Folder of the run [outputs/train].", "-o")] = None
    resume: Annotated[
        str | None, _flag("Continue the run in `output` from its last checkpoint, or that in --resume FOLDER.", "-R")
    ] = None
    force: Annotated[bool, _flag("Resume although the model or an environment is another one.")] = False
    env_dir_path: Annotated[str, _flag("Folder of local environments [./environments].")] = "./environments"
    hub_url: Annotated[str | None, _flag("Hub of ids with an owner [VF_HUB_URL, or the settings].")] = None
    dry_run: Annotated[bool, _flag("Print every setting, and what would be run; train nothing.")] = False
    json: Annotated[bool, _flag("One JSON object a line on stdout, the last a summary.")] = False
    disable_tui: Annotated[bool, _flag("Plain lines instead of a live display.", "-d")] = False
    verbose: Annotated[bool, _flag("Show tracebacks and the whole log.", "-v")] = False


class Request(NamedTuple):
    """A parsed command line: files and overrides as they stood there."""

    targets: tuple[str, ...]
    flags: TrainFlags


app = App(
    name="vf-train",
    suppress_keyboard_interrupt=False,  # run_command answers for it
    help=(
        "Train a model on environments by reinforcement learning.\n\n"
        "  vf-train rl.toml                               what the file says\n"
        "  vf-train base.toml mine.toml trainer.lr=1e-5   files merged in order, settings on top\n"
        "  vf-train model.path=FOLDER env=my-env          no file at all\n"
        "  vf-train rl.toml --dry-run                     every setting, and what would be run\n"
        "  vf-train --resume outputs/train                continue a run from its last checkpoint\n"
        "  torchrun --nproc-per-node 8 -m verifiers.cli.train rl.toml    the trainer on several GPUs\n\n"
        "All settings: docs/reference/train-config.md. --section.name VALUE is section.name=VALUE."
    ),
    help_format="plaintext",
    version_format="plaintext",
    usage="Usage: vf-train [FILE.toml ...] [SECTION.NAME=VALUE ...] [OPTIONS]",
    version=package_version,
    version_flags=["--version"],
)


@app.default
def parse(
    *targets: Annotated[str, Parameter(help="TOML files, and settings as section.name=value.")],
    flags: TrainFlags = TrainFlags(),  # frozen, and cyclopts wants a default instance
) -> Request:
    return Request(targets, flags)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `vf-train`. Ends the process with one of the exit codes of `verifiers.errors.ExitCode`."""
    start(run, arguments)


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    return framed(arguments, lambda output: _command(arguments, output))


def _command(arguments: list[str], output: Output) -> ExitCode:
    asked = _asked(arguments)
    if asked is None:  # --help and --version have been answered
        return ExitCode.OK
    from verifiers.cli.training import train  # loads pydantic

    return train(asked, output)


def _asked(arguments: list[str]) -> Asked | None:
    settings, rest = settings_of(arguments)
    request = parsed(app, with_bare_resume(rest), "vf-train --help lists the options.")
    if not isinstance(request, Request):
        return None
    from verifiers.cli.training import Asked

    files = [target for target in request.targets if "=" not in target]
    settings = [*(target for target in request.targets if "=" in target), *settings]
    if not files and not settings and request.flags.resume is None:
        raise ConfigError(
            "nothing says what to train",
            hint="Name a file (vf-train rl.toml), or the model and an environment: "
            "vf-train model.path=FOLDER env=my-env",
        )
    return Asked(files, settings, request.flags)


def settings_of(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """`--section.name value` and `--section.name=value` as `section.name=value`, and what is left of the line.

    Without a value it is `true`.
    """
    settings: list[str] = []
    rest: list[str] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or "." not in name:
            rest.append(argument)
        elif equals:
            settings.append(f"{name}={value}")
        else:
            has_value = bool(waiting) and not waiting[0].startswith("--")
            settings.append(f"{name}={waiting.pop(0) if has_value else 'true'}")
    return settings, rest


def with_bare_resume(arguments: Sequence[str]) -> list[str]:
    """`--resume` alone gets a value: its own is optional, which the parser does not know."""
    whole: list[str] = []
    for argument in reversed(arguments):
        bare = not whole or whole[0].startswith("-") or whole[0].endswith(".toml") or "=" in whole[0]
        if argument in ("--resume", "-R") and bare:
            whole.insert(0, HERE)
        whole.insert(0, argument)
    return whole


if __name__ == "__main__":
    main()
