"""`hub owner`: users, organisations and their members; `hub audit`: what has happened to them and their projects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from cyclopts import App, Parameter

from verifiers.cli.hub.flags import NO_FLAGS, HubFlags
from verifiers.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from verifiers.cli.output import Output
    from verifiers.hub.schema import MemberList

app = App(name="owner", help="Organisations and their members.", help_format="plaintext")

RoleName = Literal["reader", "publisher", "admin"]


@app.command(name="list")
def list_owners(*, flags: HubFlags = NO_FLAGS) -> ExitCode:
    """The owners that you have a role with."""
    from verifiers.hub.schema import OwnerList

    output = flags.output()
    with flags.client() as hub:
        found = hub.get("/api/v1/owners", OwnerList)
    output.event(found.model_dump(mode="json"))
    rows = [[one.owner, one.kind, one.role, f"{one.created_at:%Y-%m-%d}"] for one in found.owners]
    output.table(["owner", "kind", "your role", "since"], rows)
    return ExitCode.OK


@app.command
def create(
    name: Annotated[str, Parameter(help="2 to 39 of a-z, 0-9 and single -.")],
    /,
    *,
    kind: Literal["user", "organisation"] = "user",
    admin: Annotated[str | None, Parameter(help="The organisation's first admin [you].")] = None,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Make a user and print its first token, or make an organisation. For admins of the hub."""
    from verifiers.hub.schema import CreatedOwner

    if admin is not None and kind == "user":
        raise ConfigError("only an organisation has an admin", hint="Add --kind organisation, or leave --admin out.")
    output = flags.output()
    asked = {"owner": name, "kind": kind, "admin": admin}
    with flags.client() as hub:
        made = hub.read(hub.request("POST", "/api/v1/owners", json=asked), CreatedOwner)
    output.event(made.model_dump(mode="json"))
    if made.token is not None:
        output.result(made.token)
        output.note(f"the first token of {made.owner}; it is shown this once")
    else:
        output.result(f"{made.owner} is an organisation now")
    return ExitCode.OK


@app.command
def members(organisation: str, /, *, flags: HubFlags = NO_FLAGS) -> ExitCode:
    """The members of an organisation, and their roles."""
    from verifiers.hub.schema import MemberList

    with flags.client() as hub:
        found = hub.get(_members(organisation), MemberList)
    _show(found, flags.output())
    return ExitCode.OK


@app.command
def add(
    organisation: str,
    user: str,
    /,
    *,
    role: Annotated[RoleName, Parameter(help="reader sees, publisher publishes and yanks, admin does the rest.")],
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Add a member to an organisation, or change its role."""
    from verifiers.hub.schema import MemberList

    with flags.client() as hub:
        answer = hub.request("PUT", _members(organisation, user), json={"role": role})
        _show(hub.read(answer, MemberList), flags.output())
    return ExitCode.OK


@app.command
def remove(organisation: str, user: str, /, *, flags: HubFlags = NO_FLAGS) -> ExitCode:
    """Remove a member from an organisation. Its tokens do nothing there from the next request on."""
    output = flags.output()
    with flags.client() as hub:
        hub.request("DELETE", _members(organisation, user))
    output.event({"owner": organisation, "removed": user})
    output.result(f"{user} is no member of {organisation} any more")
    return ExitCode.OK


def _members(organisation: str, *user: str) -> str:
    parts = [quote(part, safe="") for part in (organisation, "members", *user)]
    return "/api/v1/owners/" + "/".join(parts)


def _show(found: MemberList, output: Output) -> None:
    output.event(found.model_dump(mode="json"))
    rows = [[one.user, one.role, f"{one.since:%Y-%m-%d}"] for one in found.members]
    output.table(["member", "role", "since"], rows)
    if not rows:  # an organisation always has an admin
        output.note(f"{found.owner} is a user: only organisations have members")


def audit(
    *,
    owner: Annotated[str | None, Parameter(help="Of this owner [of the whole hub, for its admins].")] = None,
    project: Annotated[str | None, Parameter(help="Of this project of the owner.")] = None,
    action: Annotated[str | None, Parameter(help="Only these, as in release.yank.")] = None,
    after: Annotated[int, Parameter(help="Only what came after this serial.")] = 0,
    limit: Annotated[int, Parameter(help="At most so many events.")] = 100,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """What has happened, by serial: who did what to which project, token or member."""
    from verifiers.hub.schema import AuditPage

    output = flags.output()
    asked: dict[str, Any] = {"owner": owner, "project": project, "action": action, "after": after, "limit": limit}
    with flags.client() as hub:
        page = hub.get("/api/v1/audit", AuditPage, **asked)
    output.event(page.model_dump(mode="json"))
    rows = []
    for event in page.events:
        what = f"{event.owner or '–'}" + (f"/{event.project}" if event.project else "")
        what += f"@{event.version}" if event.version else ""
        told = ", ".join(f"{key}={value}" for key, value in event.data.items() if value not in (None, [], ""))
        rows.append([str(event.serial), f"{event.at:%Y-%m-%d %H:%M:%S}", event.action, event.actor or "–", what, told])
    output.table(["serial", "at", "action", "by", "what", "data"], rows)
    if page.next is not None:
        output.hint(f"there is more: --after {page.next}")
    return ExitCode.OK
