"""`hub check`: what the hub will say to an environment, and whether it plays where only its wheel is installed."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from verifiers.cli.output import Output, styled
from verifiers.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from verifiers.hub.schema import CheckReport, CheckResult

MARKS = {"ok": "✓", "failed": "✗", "skipped": "–"}
STYLES = {"ok": "ok", "failed": "error", "skipped": "note"}


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class CheckFlags:
    """What was given on the command line."""

    env_dir_path: Annotated[Path, Parameter(help="Folder of local environments.")] = Path("./environments")
    sdist: Annotated[Path | None, Parameter(help="Source archive that goes with a wheel.")] = None
    out_dir: Annotated[Path | None, Parameter(help="Where a build goes (default: dist in the project).")] = None
    static_only: Annotated[bool, Parameter(help="Only the hub's rules: install and run nothing.", negative="")] = False
    offline: Annotated[bool, Parameter(help="Let uv use only what is in its cache.", negative="")] = False
    private: Annotated[bool, Parameter(help="Check as for a private project.", negative="")] = False
    hub_url: Annotated[str | None, Parameter(help="URL of the hub [VF_HUB_URL, or the settings].")] = None
    env_args: Annotated[str, Parameter(alias="-a", help="Arguments of load_environment, a JSON object.")] = "{}"
    timeout: Annotated[float, Parameter(help="Seconds that import, load and rollouts may take together.")] = 600.0
    json: Annotated[bool, Parameter(help="The report as one JSON object on stdout.", negative="")] = False
    verbose: Annotated[bool, Parameter(alias="-v", help="Show tracebacks.", negative="")] = False


NO_FLAGS = CheckFlags()


def check(
    environment: Annotated[str, Parameter(help="Name of a local environment, its folder, or a wheel.")],
    /,
    *,
    flags: CheckFlags = NO_FLAGS,
) -> ExitCode:
    """Try the hub's rules on an environment, then install its wheel alone and let it play.

    The report is written beside the wheel. Exit code 1 if a check fails.
    """
    from verifiers.evals.values import json_table
    from verifiers.hub.build import Built, build, project_folder
    from verifiers.hub.check import check_wheel, report_path
    from verifiers.hub.client import find_hub_url
    from verifiers.hub.package.facts import Policy

    if flags.timeout <= 0:
        raise ConfigError("--timeout must be above 0", hint="Leave it out for ten minutes.")
    output = Output(json=flags.json, verbose=flags.verbose)
    if flags.offline:
        os.environ["UV_OFFLINE"] = "1"
    env_args: dict[str, Any] = json_table(flags.env_args, "-a/--env-args")
    if environment.endswith(".whl"):
        built = Built(_existing(Path(environment)), flags.sdist and _existing(flags.sdist))
    else:
        folder = project_folder(environment, flags.env_dir_path)
        output.note(f"building {folder}")
        built = build(folder, flags.out_dir)
    report = check_wheel(
        built,
        policy=Policy(private=flags.private),
        static_only=flags.static_only,
        env_args=env_args,
        seconds=flags.timeout,
        hub_url=find_hub_url(flags.hub_url),
        listen=lambda result: show(result, output),
    )
    output.event(report.model_dump(mode="json"))
    output.result(f"\n{summary(report)}\nreport: {report_path(built.wheel)}")
    return ExitCode.OK if report.passed else ExitCode.FAILED


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}", hint="Build it first (uv build), or name the project's folder.")
    return path


def show(result: CheckResult, output: Output) -> None:
    """One line for a check, and what to do where it failed."""
    mark = styled(f"{MARKS[result.status]} {result.status:<7}", STYLES[result.status], sys.stdout)
    output.result(f"{mark} {result.id:<12} {result.seconds:6.1f} s  {result.detail}")
    if result.status == "failed" and result.hint:
        output.result(f"          hint: {result.hint}")


def summary(report: CheckReport) -> str:
    """The verdict, the wheel, and its digest."""
    verdict = "passed" if report.passed else "failed"
    skipped = [result.id for result in report.checks if result.status == "skipped"]
    unmade = f"; not made: {', '.join(skipped)}" if skipped else ""
    return f"{report.wheel} {verdict}{unmade} (sha256 {report.wheel_sha256[:12]})"
