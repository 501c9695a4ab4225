"""`vf-sft`: train a model to imitate conversations, from files or from what `vf-eval` saved; keep everything.

Settings are those of `verifiers.train.config.SftConfig`, from files and as `section.name=value`; the flags here say
what to do with them. Running is `verifiers.cli.sft_session`, and what runs `verifiers.train.sft`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cyclopts import App, Parameter

from verifiers.cli.frame import framed, package_version, parsed, start
from verifiers.cli.output import Output
from verifiers.cli.training_line import Flags, line_of, settings_of, with_bare_resume
from verifiers.errors import ConfigError, ExitCode

NOTHING_GIVEN = Flags()


class Request(NamedTuple):
    """A parsed command line: files and settings as they stood there."""

    targets: tuple[str, ...]
    flags: Flags


app = App(
    name="vf-sft",
    suppress_keyboard_interrupt=False,  # run_command answers for it
    help=(
        "Train a model to imitate conversations.\n\n"
        "  vf-sft sft.toml                                          what the file says\n"
        "  vf-sft model.path=FOLDER data.files=outputs/evals/RUN    what vf-eval saved\n"
        "  vf-sft sft.toml data.min_reward=1 trainer.lr=1e-5        settings on top\n"
        "  vf-sft --resume outputs/sft                              continue a run\n\n"
        "All settings: docs/reference/train-config.md. --section.name VALUE is section.name=VALUE."
    ),
    help_format="plaintext",
    version_format="plaintext",
    usage="Usage: vf-sft [FILE.toml ...] [SECTION.NAME=VALUE ...] [OPTIONS]",
    version=package_version,
    version_flags=["--version"],
)


@app.default
def parse(
    *targets: Annotated[str, Parameter(help="TOML files, and settings as section.name=value.")],
    flags: Flags = NOTHING_GIVEN,  # cyclopts wants a default instance
) -> Request:
    return Request(targets, flags)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `vf-sft`. Ends the process with one of the exit codes of `verifiers.errors.ExitCode`."""
    start(run, arguments)


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    return framed(arguments, lambda output: _command(arguments, output))


def _command(arguments: list[str], output: Output) -> ExitCode:
    settings, rest = settings_of(arguments)
    request = parsed(app, with_bare_resume(rest), "vf-sft --help lists the options.")
    if not isinstance(request, Request):  # --help and --version have been answered
        return ExitCode.OK
    line = line_of(request.targets, settings)
    if line.empty and request.flags.resume is None:
        raise ConfigError(
            "nothing says what to train",
            hint="Name a file (vf-sft sft.toml), or the model and data: vf-sft model.path=FOLDER data.files=FILE",
        )
    from verifiers.cli.sft_session import train  # loads pydantic

    return train(line, request.flags, output)


if __name__ == "__main__":
    main()
