"""`hub install` and `hub pull`: a pinned environment into this Python, or its source into a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from verifiers.cli.hub.flags import NO_FLAGS, HubFlags
from verifiers.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from verifiers.cli.output import Output
    from verifiers.hub.install import Installed
    from verifiers.hub.lock import InstalledLock

_WORDS = {"present": "is installed already", "planned": "would be installed", "installed": "installed"}


def install(
    *ids: Annotated[str, Parameter(help="OWNER/NAME[@VERSION], several of them, or a lock: pylock.toml.")],
    requirements: Annotated[
        Path | None, Parameter(alias="-r", help="Install exactly what this lock says: pylock.toml.")
    ] = None,
    python: Annotated[str | None, Parameter(help="Another interpreter or virtual environment [this one].")] = None,
    prereleases: Annotated[bool, Parameter(help="Let pre-releases be the latest.", negative="")] = False,
    dry_run: Annotated[bool, Parameter(help="Say what would be installed.", negative="")] = False,
    yes: Annotated[
        bool, Parameter(help="Agree in advance to relax a pin on another version of verifiers.", negative="")
    ] = False,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Install environments of a hub; nothing unrelated is upgraded."""
    from verifiers.hub.install import Options
    from verifiers.hub.target import find_target

    output = flags.output()
    options = Options(
        prereleases=prereleases,
        dry_run=dry_run,
        agree=lambda question: output.confirm(question, yes=yes),
        note=output.note,
        warn=output.warning,
    )
    lock = _lock_of(ids, requirements)
    target = find_target(python)
    active = os.environ.get("VIRTUAL_ENV")
    if python is None and active and Path(active).resolve() != Path(target.prefix).resolve():
        output.warning(f"{active} is active, and this is the command of {target.prefix}: --python {active} means it")
    if lock is not None:
        from verifiers.hub.lock import install_lock
        from verifiers.hub.lock_file import read_lock

        installed = install_lock(read_lock(lock), target, options, flags.client_for, flags.token_for)
        show_lock(installed, target.prefix, output, dry_run=dry_run)
        return ExitCode.OK
    from verifiers.hub.ids import parse_id
    from verifiers.hub.install import install as install_ids

    wanted = [parse_id(one) for one in ids]
    with flags.client() as hub:
        show(install_ids(hub, wanted, target, options), hub.url, target.prefix, output, dry_run=dry_run)
    return ExitCode.OK


def _lock_of(ids: tuple[str, ...], requirements: Path | None) -> Path | None:
    """The lock that was named, by -r or as the one argument. ConfigError for both, several, or nothing."""
    locks = [Path(one) for one in ids if one.endswith(".toml")] + ([requirements] if requirements else [])
    if not locks and not ids:
        raise ConfigError("nothing was named", hint="Name it, as in: hub install alice/my-env@0.1.0")
    if len(locks) > 1 or (locks and len(ids) > (requirements is None)):
        raise ConfigError("a lock is installed by itself", hint="Install ids in a command of their own.")
    return locks[0] if locks else None


def show(done: Installed, hub: str, prefix: str, output: Output, *, dry_run: bool = False) -> None:
    """What an installation did, one line a package of the hub."""
    packages: list[dict[str, Any]] = []
    for one in done.packages:
        state = "present" if one.name in done.present else "planned" if dry_run else "installed"
        yanked = one.yanked.model_dump(mode="json") if one.yanked else None
        packages.append({"id": one.id, "sha256": one.file.sha256, "state": state, "asked": one.asked, "yanked": yanked})
        output.result(f"{one.described} {_WORDS[state]}")
    output.event({"hub": hub, "serial": done.serial, "python": prefix, "packages": packages})
    output.note(f"in {prefix}")


def show_lock(done: InstalledLock, prefix: str, output: Output, *, dry_run: bool = False) -> None:
    """The same for a lock."""
    packages = []
    for one in done.lock.packages:
        state = "present" if one.name in done.present else "planned" if dry_run else "installed"
        packages.append({"id": one.id, "sha256": one.sha256, "state": state})
        output.result(f"{one.id} (sha256:{one.sha256[:12]}) {_WORDS[state]}")
    output.event({"hub": done.lock.hub, "serial": done.lock.serial, "python": prefix, "packages": packages})
    output.note(f"in {prefix}")


def pull(
    id: Annotated[str, Parameter(help="OWNER/NAME[@VERSION].")],
    folder: Annotated[Path | None, Parameter(help="Where to [./NAME].")] = None,
    /,
    *,
    force: Annotated[bool, Parameter(help="Replace the folder if it is there.", negative="")] = False,
    prereleases: Annotated[bool, Parameter(help="Let pre-releases be the latest.", negative="")] = False,
    flags: HubFlags = NO_FLAGS,
) -> ExitCode:
    """Get the source of a release into a folder."""
    from verifiers.hub.ids import parse_id
    from verifiers.hub.install import warn_of_yanks
    from verifiers.hub.pull import pull as pull_id
    from verifiers.hub.resolve import Wanted
    from verifiers.hub.target import find_target

    output = flags.output()
    wanted = Wanted(find_target(None).version, prereleases=prereleases)
    with flags.client() as hub:
        pulled = pull_id(hub, parse_id(id), folder, wanted, force=force)
    warn_of_yanks([pulled.chosen], output.warning)
    if pulled.kind == "wheel":
        output.note(f"{pulled.chosen.id} has no source archive: these are the files of its wheel")
    output.event(
        {"id": pulled.chosen.id, "kind": pulled.kind, "sha256": pulled.file.sha256, "folder": str(pulled.folder)}
    )
    output.result(f"{pulled.chosen.described} is in {pulled.folder}, from {pulled.file.filename}")
    return ExitCode.OK
