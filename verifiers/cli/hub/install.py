"""`hub install` and `hub pull`: a pinned environment into this Python, or its source into a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from verifiers.cli.hub.flags import NO_FLAGS, HubFlags
from verifiers.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from verifiers.cli.output import Output
    from verifiers.hub.install import Installed


def install(
    *ids: Annotated[str, Parameter(help="OWNER/NAME[@VERSION], several, or a lock: pylock.toml.")],
    python: Annotated[str | None, Parameter(help="Another interpreter or virtual environment [this one].")] = None,
    prereleases: Annotated[bool, Parameter(help="Let pre-releases be the latest.", negative="")] = False,
    dry_run: Annotated[bool, Parameter(help="Say what would be installed.", negative="")] = False,
    yes: Annotated[
        bool, Parameter(help="Agree in advance to relax a pin on another version of verifiers.", negative="")
    ] = False,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Install environments of a hub; nothing unrelated is upgraded."""
    from verifiers.hub.ids import parse_id
    from verifiers.hub.install import Options, install as install_ids
    from verifiers.hub.target import find_target

    if not ids:
        raise ConfigError("nothing was named", hint="Name it, as in: hub install alice/my-env@0.1.0")
    output = flags.output()
    wanted = [parse_id(one) for one in ids]
    options = Options(
        prereleases=prereleases,
        dry_run=dry_run,
        agree=lambda question: output.confirm(question, yes=yes),
        note=output.note,
        warn=output.warning,
    )
    target = find_target(python)
    with flags.client() as hub:
        done = install_ids(hub, wanted, target, options)
        show(done, hub.url, target.prefix, output, dry_run=dry_run)
    return ExitCode.OK


def show(done: Installed, hub: str, prefix: str, output: Output, *, dry_run: bool = False) -> None:
    """What an installation did, one line a package of the hub."""
    packages: list[dict[str, Any]] = []
    for one in done.packages:
        state = "present" if one.name in done.present else "planned" if dry_run else "installed"
        yanked = one.yanked.model_dump(mode="json") if one.yanked else None
        packages.append({"id": one.id, "sha256": one.file.sha256, "state": state, "asked": one.asked, "yanked": yanked})
        words = {"present": "is installed already", "planned": "would be installed", "installed": "installed"}
        output.result(f"{one.described} {words[state]}")
    output.event({"hub": hub, "serial": done.serial, "python": prefix, "packages": packages})
    output.note(f"in {prefix}")
