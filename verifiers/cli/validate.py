"""`vf-validate`: check an environment without a model: project, data, rubric, and what replies of a script earn.

The checks are `verifiers.validation`'s, which runs the environment's code in a process of its own. This file says what
the flags are and shows what was found.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from verifiers.cli.frame import framed, parsed, start
from verifiers.cli.output import Output, styled
from verifiers.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from verifiers.validation.findings import Result
    from verifiers.validation.supervise import Report

WIDTH = 90
"""Characters of a finding in the table; below it comes the whole."""
MARKS = {"ok": "✓", "error": "✗", "warning": "!", "info": "·", "not checked": "–", "skipped": "–"}


def _flag(text: str, letter: str | None = None, **more: Any) -> Parameter:
    return Parameter(alias=letter, help=text, negative="", show_default=lambda value: value or None, **more)


app = App(
    name="vf-validate",
    suppress_keyboard_interrupt=False,  # run_command answers for it
    help=(
        "Check an environment without a model: does it load, is its data sound, does a perfect reply earn the most\n"
        "and a useless one nothing, is scoring repeatable? Exit code 1 if there is an error.\n\n"
        "  vf-validate my-env\n"
        "  vf-validate my-env -a '{\"split\": \"test\"}' --strict --report report.md\n"
        "  vf-validate ./environments/my_env --skip card"
    ),
    help_format="plaintext",
    version_flags=[],
    result_action="return_value",
)


@app.default
def validate(
    *environments: Annotated[str, Parameter(help="Name of an environment, its hub id or folder.")],
    env_args: Annotated[str, _flag("Arguments of load_environment, a JSON object.", "-a")] = "{}",
    env_dir_path: Annotated[str, _flag("Folder of local environments.")] = "./environments",
    num_examples: Annotated[int, _flag("Tasks to play.", "-n")] = 6,
    seed: Annotated[int, _flag("Seed that draws the tasks and the random replies.")] = 0,
    skip: Annotated[
        list[str] | None, _flag("Check to leave out; repeatable, or several as in a,b.", negative_iterable="")
    ] = None,
    strict: Annotated[bool, _flag("Fail on warnings too.")] = False,
    timeout: Annotated[
        float, _flag("Seconds that importing, loading and each check may take; a reward function gets a quarter.")
    ] = 120.0,
    allow_network: Annotated[
        bool, _flag("Let reward functions and tools reach other machines; a judge may cost money.")
    ] = False,
    report: Annotated[Path | None, _flag("Write all of it to a file: Markdown for .md, else JSON.")] = None,
    json: Annotated[bool, _flag("One JSON object a line on stdout, the last a summary.")] = False,
    verbose: Annotated[bool, _flag("List the checks that found nothing, too; show tracebacks.", "-v")] = False,
) -> int:
    """Make all checks of each environment, one after the other."""
    from verifiers.evals.values import json_table  # these load pydantic and the engine
    from verifiers.validation.findings import Request
    from verifiers.validation.report import as_dict, write_report
    from verifiers.validation.supervise import validate as make_checks

    if not environments:
        raise ConfigError("no environment was named", hint="Name one, as in: vf-validate my-env")
    if num_examples < 1 or timeout <= 0:
        raise ConfigError("-n must be at least 1 and --timeout above 0", hint="Leave them out for the defaults.")
    output = Output(json=json, verbose=verbose)
    reports = []
    for name in environments:
        request = Request(
            env_id=name,
            env_dir=env_dir_path,
            env_args=json_table(env_args, "-a/--env-args"),
            num_examples=num_examples,
            seed=seed,
            skip=tuple(one.strip() for given in skip or () for one in given.split(",") if one.strip()),
            timeout=timeout,
            allow_network=allow_network,
        )
        found = make_checks(request, _Progress(name, output).hear)
        reports.append(found)
        show(found, output, strict=strict)
    if report is not None:
        write_report(report, reports, strict=strict)
        output.note(f"report: {report}")
    passed = all(one.passes(strict=strict) for one in reports)
    summaries = [as_dict(one, strict=strict) for one in reports]
    for summary in summaries:
        summary.pop("checks")
    output.event({"event": "summary", "schema_version": 1, "passed": passed, "environments": summaries})
    return ExitCode.OK if passed else ExitCode.FAILED


class _Progress:
    """Tells what takes long, on a terminal; and each result, in machine output."""

    def __init__(self, name: str, output: Output) -> None:
        self.name = name
        self.output = output

    def hear(self, event: dict[str, Any]) -> None:
        from verifiers.validation.findings import Result

        if event["event"] == "result":
            result = Result.from_event(event).to_dict()
            self.output.event({"event": "check", "environment": self.name, **result})
        elif event["event"] == "doing" and self.output.verbose:
            self.output.note(event["what"])


# --- what is shown --------------------------------------------------------------------------------------------


def show(report: Report, output: Output, *, strict: bool) -> None:
    """A table of the checks that have something to say, then each finding in full, then the figures."""
    from verifiers.validation.findings import CHECKS
    from verifiers.validation.report import sentence

    output.result(styled(report.described or report.environment, "bold", sys.stdout))
    told = [result for result in report.results if output.verbose or result.findings]
    output.table(["check", "result", ""], [[one.check, _mark(one), _line(one)] for one in told])
    if not output.verbose:
        _show_unmade(report.results, output)
    for result in report.results:
        check = CHECKS[result.check]
        for finding in result.findings:
            output.result(f"\n{MARKS[str(result.severity)]} {result.severity} {check.id}: {finding.what}")
            output.result(f"  why: {check.why}")
            output.result(f"  do:  {finding.fix or check.fix}")
    verdict = "passed" if report.passes(strict=strict) else "failed"
    output.result(f"\n{report.environment} {verdict}: {sentence(report)}; {report.seconds:.1f} s\n")


def _show_unmade(results: Sequence[Result], output: Output) -> None:
    """The checks that were not made, by reason: one cause, such as a load that fails, leaves many out."""
    reasons: dict[str, list[str]] = {}
    for result in results:
        if str(result.status) == "not checked":
            reasons.setdefault(result.note, []).append(result.check)
    for reason, checks in reasons.items():
        output.result(f"{MARKS['not checked']} not checked, {reason}: {', '.join(checks)}")


def _mark(result: Result) -> str:
    word = str(result.severity or result.status)
    return f"{MARKS[word]} {word}"


def _line(result: Result) -> str:
    if not result.findings:
        return shorten(result.note, WIDTH, placeholder=" …")  # with --verbose
    more = f" (and {len(result.findings) - 1} more)" if len(result.findings) > 1 else ""
    return shorten(result.findings[0].what, WIDTH, placeholder=" …") + more


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point `vf-validate`."""
    start(run, arguments)


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    return framed(arguments, lambda _: parsed(app, arguments, "vf-validate --help lists the options."))


if __name__ == "__main__":
    main()
