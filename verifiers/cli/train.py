"""`vf-train`: train a model on environments by reinforcement learning, show how it goes, keep everything.

Settings are those of `verifiers.train.config`, from files and as `section.name=value`; the flags here say what to do
with them. Running is `verifiers.cli.train_session`, and what runs `verifiers.train`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

from cyclopts import App, Parameter

from verifiers.cli.frame import framed, package_version, parsed, start
from verifiers.cli.output import Output
from verifiers.cli.training_line import Flags, flag, line_of, settings_of, with_bare_resume
from verifiers.errors import ConfigError, ExitCode


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class TrainFlags(Flags):
    """What was given beside settings."""

    env_dir_path: Annotated[str, flag("Folder of local environments [./environments].")] = "./environments"
    hub_url: Annotated[str | None, flag("Hub of ids with an owner [VF_HUB_URL, or the settings].")] = None


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
    settings, rest = settings_of(arguments)
    request = parsed(app, with_bare_resume(rest), "vf-train --help lists the options.")
    if not isinstance(request, Request):  # --help and --version have been answered
        return ExitCode.OK
    line = line_of(request.targets, settings)
    if line.empty and request.flags.resume is None:
        raise ConfigError(
            "nothing says what to train",
            hint="Name a file (vf-train rl.toml), or the model and an environment: "
            "vf-train model.path=FOLDER env=my-env",
        )
    from verifiers.cli.train_session import train  # loads pydantic

    return train(line, request.flags, output)


if __name__ == "__main__":
    main()
