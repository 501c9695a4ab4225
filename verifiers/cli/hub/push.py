"""`hub push`: build, check, show what would happen, ask once, publish, and return when clients can see it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from verifiers.cli.hub.flags import NO_FLAGS, HubFlags
from verifiers.errors import ConfigError, ExitCode, UserError

if TYPE_CHECKING:
    from verifiers.cli.output import Output
    from verifiers.hub.push import Listen, Plan
    from verifiers.hub.schema import CheckReport, Published

LARGE = 4 << 20
"""Bytes from which on a progress bar is worth a line."""
LISTED = 40
"""Files of an archive that the plan names."""


class CheckFailedError(UserError):
    """The release breaks a rule, or does not play."""

    hint = "Mend what is said above, and try it with: hub check"


def push(
    environment: Annotated[str, Parameter(help="Name of a local environment, or its folder.")],
    /,
    *,
    env_dir_path: Annotated[Path, Parameter(help="Folder of local environments.")] = Path("./environments"),
    owner: Annotated[str | None, Parameter(help="Publish for this owner [the token's own].")] = None,
    visibility: Annotated[
        Literal["public", "private"] | None, Parameter(help="Of a project that this makes [public].")
    ] = None,
    bump: Annotated[
        Literal["patch", "minor", "major"] | None,
        Parameter(help="Raise the version in pyproject.toml once the release is visible."),
    ] = None,
    static_only: Annotated[bool, Parameter(help="Only the hub's rules: install and run nothing.", negative="")] = False,
    dry_run: Annotated[bool, Parameter(help="Build, check, show the plan, and stop.", negative="")] = False,
    yes: Annotated[bool, Parameter(alias="-y", help="Agree to the plan in advance.", negative="")] = False,
    wait: Annotated[float, Parameter(help="Seconds in which clients must come to see the release.")] = 60.0,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Build an environment with uv, check it, and publish wheel and source archive together.

    A repeat with the same content changes nothing and exits with 0. Exit code 1 if a check fails or the version is
    published with other content.
    """
    from verifiers.hub.build import build, project_folder
    from verifiers.hub.bump import bump as raise_version, check_can_bump
    from verifiers.hub.push import carry_out, make_plan, wait_until_visible
    from verifiers.hub.schema import Whoami

    output = flags.output()
    folder = project_folder(environment, env_dir_path)
    if bump is not None:
        check_can_bump(folder)
    with flags.client() as hub, tempfile.TemporaryDirectory(prefix="hub-push-") as scratch:
        if owner is None or not dry_run:  # first, since building and checking take long
            token = hub.get("/api/v1/whoami", Whoami)
            owner = owner or token.owner
        output.note(f"building {folder}")
        built = build(folder, Path(scratch))
        plan = make_plan(hub, built, owner=owner, visibility=visibility)
        if plan.state == "published":
            told: dict[str, Any] = {**plan.to_dict(), "created": False}
            output.event(told)
            output.result(f"{plan.id} is already published, same {'bytes' if same_bytes(plan) else 'content'}")
            return ExitCode.OK
        report = _checked(built, plan, output, static_only=static_only)
        show(plan, output)
        if dry_run:
            output.event({**plan.to_dict(), "created": False, "dry_run": True})
            return ExitCode.OK
        if not output.confirm(f"Publish {plan.id} at {plan.hub}?", yes=yes):
            raise ConfigError("nothing was published", hint="Agree on the terminal, or in advance with --yes.")
        with _progress(plan, output) as listen:
            published = carry_out(hub, plan, report, listen)
        wait_until_visible(hub, plan, wait)
        raised = raise_version(folder, plan.version, bump) if bump is not None else None
        _tell(plan, published, raised, output)
    return ExitCode.OK


def same_bytes(plan: Plan) -> bool:
    """Whether what was built is what is published, byte for byte."""
    from verifiers.hub.fetch import sha256_of

    return all(sha256_of(file.path) == file.sha256 for file in plan.files)


def _checked(built: Any, plan: Plan, output: Output, *, static_only: bool) -> CheckReport:
    """The check report. CheckFailedError if a check failed."""
    from verifiers.cli.hub.check import show as show_check, summary
    from verifiers.hub.check import check_wheel
    from verifiers.hub.package.facts import Policy

    report = check_wheel(
        built, policy=Policy(private=plan.visibility == "private"), static_only=static_only,
        hub_url=plan.hub, listen=lambda result: show_check(result, output), save=False,
    )  # fmt: skip
    if not report.passed:
        failed = next(check for check in report.checks if check.status == "failed")
        raise CheckFailedError(f"{summary(report)}: {failed.id}: {failed.detail}", hint=failed.hint)
    return report


def show(plan: Plan, output: Output) -> None:
    """The plan, on the terminal."""
    latest = f" (latest there: {plan.latest})" if plan.latest else ""
    output.result(f"\n{plan.id}  {plan.state}, {plan.visibility}{latest}\n  to {plan.hub}")
    rows = [[f"  {file.name}", f"{file.size:,}", file.sha256, file.state] for file in plan.files]
    output.table(["  file", "bytes", "sha256", ""], rows)
    for file in plan.files:
        inside = file.contents()
        output.result(f"\n  in {file.name}:")
        output.table(
            ["    file", "bytes"], [[f"    {name}", f"{size:,}"] for name, size in list(inside.items())[:LISTED]]
        )
        if len(inside) > LISTED:
            output.result(f"    … and {len(inside) - LISTED:,} more; --dry-run --json lists all")


def _tell(plan: Plan, published: Published, raised: str | None, output: Output) -> None:
    """What is there now, and how to get it."""
    from verifiers.hub.client import find_hub_url

    output.event({**plan.to_dict(), **published.model_dump(mode="json"), "next_version": raised})
    for remark in published.warnings:
        output.warning(remark)
    output.result(f"published {plan.id} (sha256 {plan.digest[:12]})")
    named = "" if find_hub_url() == plan.hub else f" --hub-url {plan.hub}"
    output.result(f"  hub install {plan.id}{named}\n  vf-eval {plan.id}{named}")
    if raised is not None:
        output.note(f"pyproject.toml now says version {raised}")


@contextmanager
def _progress(plan: Plan, output: Output) -> Iterator[Listen]:
    """A bar for large files on a terminal; nothing elsewhere."""
    import sys

    from verifiers.cli.output import is_terminal

    total = sum(file.size for file in plan.files if file.state == "new")
    if output.json or total < LARGE or not is_terminal(sys.stderr):
        yield lambda name, sent, size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {file.name: bars.add_task(file.name, total=file.size) for file in plan.files if file.state == "new"}
        yield lambda name, sent, size: bars.update(tasks[name], completed=sent, total=size)
