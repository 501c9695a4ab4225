"""`hub inspect` and `hub diff`: into releases, without installing them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from verifiers.cli.hub.flags import NO_FLAGS, HubFlags
from verifiers.cli.output import is_terminal
from verifiers.errors import ExitCode
from verifiers.hub.terminal import printable

if TYPE_CHECKING:
    from verifiers.cli.output import Output
    from verifiers.hub.schema import Difference, FileChange

_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


def inspect(
    id: Annotated[str, Parameter(help="OWNER/NAME[@VERSION]; without a version, the latest.")],
    path: Annotated[str | None, Parameter(help="A text file of the wheel, printed as it is.")] = None,
    *,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """List the files of a release, or print one of them."""
    from verifiers.hub.ids import parse_id
    from verifiers.hub.look import contents, text
    from verifiers.hub.resolve import short

    output = flags.output()
    with flags.client() as hub:
        if path is not None:
            release, found = text(hub, parse_id(id), path)
            output.event({"id": release.id, "digest": release.digest, "path": path, "text": found})
            output.result(shown_here(found).removesuffix("\n"))
            return ExitCode.OK
        listing = contents(hub, parse_id(id))
    output.event(listing.model_dump(mode="json"))
    output.note(f"{listing.id} {short(listing.sha256)}: {listing.filename}")
    output.table(["file", "bytes"], [[one.path, f"{one.size:,}"] for one in listing.members])
    return ExitCode.OK


def diff(
    before: Annotated[str, Parameter(help="OWNER/NAME@VERSION, or a wheel of this machine.")],
    after: Annotated[str, Parameter(help="The same, or another version of the same project.")],
    *,
    stat: Annotated[bool, Parameter(help="Only which files changed.", negative="")] = False,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Show what changed between two releases, or a local wheel and a release."""
    from verifiers.hub.look import compare

    output = flags.output()
    with flags.client() as hub:
        found = compare(hub, before, after)
    output.event(found.model_dump(mode="json"))
    output.note(f"{found.before} → {found.after}")
    _show(output, found, stat)
    return ExitCode.OK


def _show(output: Output, found: Difference, stat: bool) -> None:
    rows = [[_SIGNS[change.change], change.path, _sizes(change)] for change in found.files]
    output.table(["", "file", "bytes"], rows)
    lines = [f"{sign} dependency {name}" for sign, name in _entries(found.dependencies)]
    lines += [f"{sign} hub dependency {name}" for sign, name in _entries(found.hub_dependencies)]
    lines += [f"~ {one.field}: {_shown(one.before)} → {_shown(one.after)}" for one in found.fields]
    for line in lines:
        output.result(line)
    if not stat:
        for change in found.files:
            if change.diff:
                output.result("\n" + shown_here(change.diff).removesuffix("\n"))
            elif change.note:
                output.note(f"{change.path}: {change.note}")
    if not rows and not lines:
        output.note("nothing differs")


def shown_here(text: str) -> str:
    """Text of somebody else: for a terminal without what steers one, for a file or a pipe as it is."""
    return printable(text, keep="\n\t") if is_terminal(sys.stdout) else text


def _entries(change: Any) -> list[tuple[str, str]]:
    return [*(("-", name) for name in change.removed), *(("+", name) for name in change.added)]


def _sizes(change: FileChange) -> str:
    return " → ".join(f"{size:,}" for size in (change.before, change.after) if size is not None)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={_shown(one)}" for name, one in value.items() if one) or "nothing"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return "nothing" if value is None else printable(str(value))
