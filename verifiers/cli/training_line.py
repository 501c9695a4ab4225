"""What the lines of `vf-train` and `vf-sft` have in common: files, `section.name=value`, --resume with and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from verifiers.errors import ConfigError

HOW = "Write section.name=value, or FILE.toml."

HERE = "."
"""What a bare --resume stands for: the run in the configuration's `output`."""


def flag(text: str, letter: str | None = None) -> Parameter:
    """A flag with its line of help."""
    return Parameter(alias=letter, help=text, negative="", show_default=False)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Flags:
    """What both commands take beside settings."""

    output: Annotated[str | None, flag("Folder of the run [the setting `output`].", "-o")] = None
    resume: Annotated[
        str | None, flag("Continue the run in `output` from its last checkpoint, or that in --resume FOLDER.", "-R")
    ] = None
    force: Annotated[
        bool, flag("Resume although files of the model, or code of an environment, changed. Its tasks must not have.")
    ] = False
    dry_run: Annotated[bool, flag("Print every setting, and what would be run; train nothing.")] = False
    json: Annotated[bool, flag("One JSON object a line on stdout, the last a summary.")] = False
    disable_tui: Annotated[bool, flag("Plain lines instead of a live display.", "-d")] = False
    verbose: Annotated[bool, flag("Show tracebacks and the whole log.", "-v")] = False


@dataclass(frozen=True, slots=True)
class Line:
    """Files and settings as they stood there."""

    files: Sequence[str]
    settings: Sequence[str]

    @property
    def empty(self) -> bool:
        """Whether it names nothing."""
        return not self.files and not self.settings


def line_of(targets: Sequence[str], settings: Sequence[str]) -> Line:
    """Targets without flags are files, and settings if they have a `=`."""
    files = [target for target in targets if "=" not in target]
    for file in files:
        if not file.endswith(".toml") and not Path(file).exists():
            raise ConfigError(f"{file!r} is neither a file nor a setting", hint=HOW)
    return Line(files, [*(target for target in targets if "=" in target), *settings])


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
