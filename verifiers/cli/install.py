"""`vf-install`: install an environment from a folder or a repository into this Python, and nothing over what is there.

uv installs; our own version of this package is a constraint, so that no resolution can put another package of that name
over it, and nothing that is installed is upgraded. An environment pinned to a version that we are not is explained,
and installed with the pin relaxed if the user agrees.

    vf-install my-env                    ./environments/my_env, editable
    vf-install my-env -r --repository https://github.com/me/envs -b main
    vf-install alice/demo@0.1.0          from a hub, as hub install does
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from verifiers.cli.frame import framed, package_version, parsed, start
from verifiers.cli.output import Output
from verifiers.errors import ConfigError, EnvironmentNotFoundError, ExitCode, UserError
from verifiers.hub.ids import is_hub_id, parse_id
from verifiers.settings import near_misses, read_toml, table_at

PACKAGE = "verifiers"


class InstallError(UserError):
    """The installer failed; what it said is on the terminal."""

    hint = "See what uv printed above."


def _flag(letter: str | None, text: str) -> Parameter:
    return Parameter(alias=letter, help=text, negative="", show_default=lambda value: value or None)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class InstallFlags:
    """What was given on the command line."""

    path: Annotated[str, _flag("-p", "Folder that holds local environments.")] = "./environments"
    from_repo: Annotated[bool, _flag("-r", "Install from a Git repository, see --repository.")] = False
    repository: Annotated[str | None, _flag(None, "URL of that repository.")] = None
    branch: Annotated[str, _flag("-b", "Branch or tag of that repository.")] = "main"
    hub_url: Annotated[str | None, _flag(None, "URL of the hub [VF_HUB_URL, or the settings].")] = None
    yes: Annotated[bool, _flag(None, "Agree in advance to relax a pin on another version of verifiers.")] = (
        False
    )
    json: Annotated[bool, _flag(None, "One JSON object on stdout.")] = False
    verbose: Annotated[bool, _flag("-v", "Show tracebacks.")] = False


app = App(
    name="vf-install",
    suppress_keyboard_interrupt=False,  # run_command answers for it
    help=(
        "Install an environment into this Python; nothing that is installed is upgraded.\n\n"
        "  vf-install my-env                      ./environments/my_env, editable\n"
        "  vf-install my-env -r --repository URL  from a Git repository\n"
        "  vf-install alice/demo@0.1.0            from a hub, as hub install does"
    ),
    help_format="plaintext",
    version_format="plaintext",
    usage="Usage: vf-install ENVIRONMENT [OPTIONS]",
    version=package_version,
    version_flags=["--version"],
)


@app.default
def parse(
    environment: Annotated[str, Parameter(help="Name of the environment, its hub id, or its folder.")],
    /,
    *,
    flags: InstallFlags = InstallFlags(),
) -> tuple[str, InstallFlags]:
    return environment, flags


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `vf-install`."""
    start(run, arguments)


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    return framed(arguments, lambda output: _command(arguments, output))


def _command(arguments: list[str], output: Output) -> ExitCode:
    request = parsed(app, arguments, "vf-install --help lists the options.")
    if not isinstance(request, tuple):  # --help and --version have been answered
        return ExitCode.OK
    environment, flags = request
    if is_hub_id(environment) and not (flags.from_repo or flags.repository):
        install_from_hub(environment, flags, output)
        return ExitCode.OK
    if flags.from_repo or flags.repository:
        install(repository_source(environment, flags), [], output)
    else:
        folder = local_folder(environment, Path(flags.path))
        install(["-e", str(folder)], relaxed(folder, output, yes=flags.yes), output)
    output.event({"event": "installed", "environment": environment})
    output.result(f"installed {environment}; try it: vf-eval {environment} -m local")
    return ExitCode.OK


def install_from_hub(environment: str, flags: InstallFlags, output: Output) -> None:
    """The same as `hub install`."""
    from verifiers.hub.client import HubClient, hub_url
    from verifiers.hub.install import Options, install as install_ids
    from verifiers.hub.target import find_target

    options = Options(
        agree=lambda question: output.confirm(question, yes=flags.yes), note=output.note, warn=output.warning
    )
    with HubClient(hub_url(flags.hub_url)) as hub:
        done = install_ids(hub, [parse_id(environment)], find_target(None), options)
    ours = next(one.id for one in done.packages if one.asked)
    output.event({"event": "installed", "environment": ours})
    output.result(f"installed {ours}; try it: vf-eval {ours} -m local")


def local_folder(environment: str, base: Path) -> Path:
    """The folder of a local environment: a path, or a name below `base`."""
    as_path = Path(environment).expanduser()
    if environment.startswith((".", "/", "~")):
        folder = as_path
    elif "@" in environment:
        raise EnvironmentNotFoundError(
            f"{environment} names a version, which is a hub's to choose", hint="Say whose it is: OWNER/NAME@VERSION"
        )
    else:
        folder = base / environment.replace("-", "_")
    if (folder / "pyproject.toml").is_file():
        return folder.resolve()
    names = [path.parent.name.replace("_", "-") for path in base.glob("*/pyproject.toml")]
    hint = near_misses(environment, names) or f"There are: {', '.join(sorted(names)) or 'none'} in {base}."
    raise EnvironmentNotFoundError(f"there is no environment in {folder}: no pyproject.toml", hint=hint)


def repository_source(environment: str, flags: InstallFlags) -> list[str]:
    """The requirement of an environment in a Git repository, for the installer."""
    if flags.repository is None:
        raise ConfigError(
            "no repository was named", hint="Name it: --repository https://host/owner/repository"
        )
    module = environment.replace("-", "_")
    project = module.replace("_", "-")
    return [f"{project} @ git+{flags.repository}@{flags.branch}#subdirectory=environments/{module}"]


def relaxed(folder: Path, output: Output, *, yes: bool = False) -> list[str]:
    """Overrides for the installer: this package in any version, if the environment pins another and the user agrees."""
    from packaging.requirements import InvalidRequirement, Requirement

    project = table_at(read_toml(folder / "pyproject.toml"), "project", where=str(folder / "pyproject.toml"))
    ours = version(PACKAGE)
    for text in project.get("dependencies", []):
        try:
            requirement = Requirement(str(text))
        except InvalidRequirement as error:
            raise ConfigError(f"{folder}: {text!r} is no requirement: {error}", cause=error) from error
        if _normal(requirement.name) != PACKAGE or requirement.specifier.contains(ours, prereleases=True):
            continue
        output.note(
            f"{folder.name} asks for {text}, and this is {PACKAGE} {ours}, which provides the same API."
        )
        if output.confirm(f"Install it with {PACKAGE} {ours} all the same?", yes=yes):
            return [PACKAGE]
        raise InstallError(
            f"{folder.name} asks for {text}; {PACKAGE} {ours} can not satisfy that",
            hint=f"Agree with --yes, or relax the requirement in its pyproject.toml: {PACKAGE}>=0.1",
        )
    return []


def install(source: list[str], overrides: list[str], output: Output) -> None:
    """Install into the Python that runs this. Nothing installed is upgraded, and this package stays what it is."""
    from uv import find_uv_bin

    with tempfile.TemporaryDirectory() as folder:
        files = []
        for option, lines in (
            ("--constraint", [f"{PACKAGE}=={version(PACKAGE)}"]),
            ("--override", overrides),
        ):
            if lines:
                path = Path(folder) / option.strip("-")
                path.write_text("\n".join(lines) + "\n")
                files += [option, str(path)]
        command = [find_uv_bin(), "pip", "install", "--python", sys.executable, *files, *source]
        # uv's own lines are progress: stdout is for data.
        done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise InstallError(f"uv pip install {' '.join(source)} ended with {done.returncode}")
    output.note(f"installed into {sys.prefix}")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
