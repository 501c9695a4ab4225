"""Looking after what one has published: yank, unyank, delete, status, visibility, transfer-name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from cyclopts import Parameter

from verifiers.cli.hub.flags import NO_FLAGS, HubFlags
from verifiers.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from verifiers.cli.output import Output
    from verifiers.hub.client import HubClient
    from verifiers.hub.ids import HubId
    from verifiers.hub.schema import ProjectChange, ReleaseChange

CauseName = Literal["broken-reward", "leak", "unsafe", "dataset-gone", "other"]
Release = Annotated[str, Parameter(help="OWNER/NAME@VERSION.")]
Project = Annotated[str, Parameter(help="OWNER/NAME.")]
DryRun = Annotated[bool, Parameter(help="Make all checks and say what would change.", negative="")]
Yes = Annotated[bool, Parameter(alias="-y", help="Do not have the name typed.", negative="")]


def yank(
    id: Release,
    /,
    *,
    reason: Annotated[str, Parameter(help="Shown to everybody who meets the release.")],
    cause: Annotated[CauseName, Parameter(name="--class", help="What is wrong with it.")] = "other",
    dry_run: DryRun = False,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Withdraw a release: installers pass it over unless it is pinned. `hub unyank` takes it back."""
    output = flags.output()
    with flags.client() as hub:
        done = _release(hub, "POST", id, "/yank", dry_run, json={"reason": reason, "cause": cause})
    _tell(done, "yanked", output, dry_run=dry_run)
    return ExitCode.OK


def unyank(id: Release, /, *, dry_run: DryRun = False, flags: HubFlags = NO_FLAGS) -> ExitCode:
    """Offer a yanked release again."""
    output = flags.output()
    with flags.client() as hub:
        done = _release(hub, "DELETE", id, "/yank", dry_run)
    _tell(done, "offered again", output, dry_run=dry_run)
    return ExitCode.OK


def delete(id: Release, /, *, dry_run: DryRun = False, yes: Yes = False, flags: HubFlags = NO_FLAGS) -> ExitCode:
    """Delete a release, minutes after its upload and before anybody has it. Its version stays taken."""
    output = flags.output()
    with flags.client() as hub:
        planned = _release(hub, "DELETE", id, "", True)
        if dry_run:
            _tell(planned, "deleted", output, dry_run=True)
            return ExitCode.OK
        output.note("\n".join(planned.files))
        _typed(f"Delete {planned.id} for ever?", planned.id, "deleted", output, yes=yes)
        done = _release(hub, "DELETE", id, "", False)
    _tell(done, "deleted", output)
    return ExitCode.OK


def status(
    id: Project,
    status: Literal["active", "archived", "deprecated", "quarantined"],
    /,
    *,
    reason: Annotated[str | None, Parameter(help="Why; needed for all but active.")] = None,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Mark a project: archived takes no uploads, deprecated warns.

    Quarantined offers no files; only the hub's admins set and lift it.
    """
    output = flags.output()
    with flags.client() as hub:
        done = _project(hub, id, {"status": status, "status_reason": reason})
    output.event({"dry_run": False, **done.model_dump(mode="json")})
    why = f": {done.status_reason}" if done.status_reason else ""
    output.result(f"{done.id} is {done.status}{why}" if done.changed else f"{done.id} was {done.status} already")
    return ExitCode.OK


def visibility(
    id: Project,
    visibility: Literal["public", "private"],
    /,
    *,
    dry_run: DryRun = False,
    yes: Yes = False,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Show a project to everybody, or to the owner's members only."""
    output = flags.output()
    wanted = {"visibility": visibility}
    with flags.client() as hub:
        done = _project(hub, id, wanted, dry_run=True)
        if done.changed and not dry_run:
            seen = "everybody will see it" if visibility == "public" else "others can no longer install it"
            _typed(f"Make {done.id} {visibility}: {seen}?", done.id, "changed", output, yes=yes)
            done = _project(hub, id, wanted)
    output.event({"dry_run": dry_run, **done.model_dump(mode="json")})
    if not done.changed:
        output.result(f"{done.id} was {visibility} already")
    elif dry_run:
        output.result(f"{done.id} is {done.visibility} and would be {visibility}")
    else:
        output.result(f"{done.id} is {done.visibility}")
    if done.visibility == "public" and not done.plain_name:
        output.note("another project has the name in the whole-hub index; the owner's and its own index have this one")
    return ExitCode.OK


def transfer_name(
    id: Project,
    /,
    *,
    to: Annotated[str, Parameter(help="The owner who gets it, with a public project of the same name.")],
    dry_run: DryRun = False,
    yes: Yes = False,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Give a project's name in the whole-hub index to another owner's project."""
    from verifiers.hub.ids import parse_id
    from verifiers.hub.schema import ProjectChange

    output = flags.output()
    project = parse_id(id)
    path = f"{_address(project)}/transfer-name"
    with flags.client() as hub:
        answer = hub.request("POST", path, json={"to": to}, params={"dry_run": "true"})
        if not dry_run:
            question = f"Whoever installs {project.name} by name alone will get {to}'s code. Go on?"
            _typed(question, project.project, "given away", output, yes=yes)
            answer = hub.request("POST", path, json={"to": to})
        done = hub.read(answer, ProjectChange)
    output.event({"dry_run": dry_run, **done.model_dump(mode="json"), "to": f"{to}/{project.name}"})
    output.result(f"{project.name} {'would mean' if dry_run else 'means'} {to}/{project.name} in the whole-hub index")
    return ExitCode.OK


# --- what they share --------------------------------------------------------------------------------------------


def _release(hub: HubClient, method: str, id: str, what: str, dry_run: bool, **options: Any) -> ReleaseChange:
    from verifiers.hub.ids import parse_id
    from verifiers.hub.schema import ReleaseChange

    release = parse_id(id)
    if release.version is None:
        raise ConfigError(
            f"{id} names no version", hint=f"Name it: {release.project}@VERSION (hub versions {release.project})."
        )
    path = f"{_address(release)}/{release.version}{what}"
    answer = hub.request(method, path, params={"dry_run": str(dry_run).lower()}, **options)
    return hub.read(answer, ReleaseChange)


def _project(hub: HubClient, id: str, what: dict[str, Any], dry_run: bool = False) -> ProjectChange:
    from verifiers.hub.ids import parse_id
    from verifiers.hub.schema import ProjectChange

    path, params = _address(parse_id(id)), {"dry_run": str(dry_run).lower()}
    return hub.read(hub.request("PATCH", path, json=what, params=params), ProjectChange)


def _address(id: HubId) -> str:
    return f"/api/v1/{quote(id.owner, safe='')}/{quote(id.name, safe='')}"


def _typed(question: str, name: str, done: str, output: Output, *, yes: bool) -> None:
    """ConfigError unless the name was typed."""
    if not output.confirm_name(question, name, yes=yes):
        raise ConfigError(f"nothing was {done}", hint=f"Type {name} when asked, or give --yes.")


def _tell(done: ReleaseChange, word: str, output: Output, *, dry_run: bool = False) -> None:
    output.event({"dry_run": dry_run, **done.model_dump(mode="json")})
    if not done.changed:
        output.result(f"{done.id} was {word} already")
        return
    output.result(f"{done.id} {'would be' if dry_run else 'is'} {word}")
    output.result("\n".join(f"  {file}" for file in done.files))
